"""Finding a tritonserver: the order of places, and what lies around one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trtbuild.errors import TrtbuildError
from trtbuild.serve import locate
from trtbuild.serve.locate import find_server, install_command


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def make_carrier(site: Path, version: str = "0.7.0") -> Path:
    """Make the layout of an unpacked carrier wheel and return its binary."""
    root = site / "pytriton" / "tritonserver"
    for folder in (root / "backends" / "python", root / "python_backend_stubs" / "3.11", site / "nvidia_pytriton.libs"):
        folder.mkdir(parents=True)
    (site / f"nvidia_pytriton-{version}.dist-info").mkdir()
    (site / "pytriton" / "__init__.py").write_text("raise ImportError('must not be imported')\n", encoding="utf-8")
    return executable(root / "bin" / "tritonserver")


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment in which no tritonserver is installed; returns its prefix."""
    prefix = tmp_path / "prefix"
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(locate, "SYSTEM_SERVER", tmp_path / "opt" / "tritonserver" / "bin" / "tritonserver")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    return prefix


def test_a_missing_server_is_an_error_that_prints_the_command_to_install_one(bare: Path) -> None:
    with pytest.raises(TrtbuildError, match="no tritonserver found") as caught:
        find_server()
    assert install_command() in caught.value.hint
    assert (
        f"-m pip install --no-deps --target {bare}/share/trtbuild/tritonserver nvidia-pytriton==0.7.0"
        in install_command()
    )


def test_the_command_survives_a_path_with_a_space(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", "/home/a b/.venv")
    assert "--target '/home/a b/.venv/share/trtbuild/tritonserver'" in install_command()


def test_a_package_that_is_only_importable_is_found_and_not_imported(bare: Path, tmp_path: Path) -> None:
    binary = make_carrier(tmp_path / "site")
    assert find_server().binary == binary


def test_the_carrier_folder_comes_before_an_importable_package(bare: Path, tmp_path: Path) -> None:
    make_carrier(tmp_path / "site")
    binary = make_carrier(bare / "share" / "trtbuild" / "tritonserver")
    assert find_server().binary == binary


def test_the_systems_server_comes_before_a_carrier(bare: Path, tmp_path: Path) -> None:
    make_carrier(bare / "share" / "trtbuild" / "tritonserver")
    root = tmp_path / "opt" / "tritonserver"
    binary = executable(root / "bin" / "tritonserver")
    (root / "backends" / "python").mkdir(parents=True)
    (root / "TRITON_VERSION").write_text("2.60.0\n", encoding="utf-8")
    found = find_server()
    assert (found.binary, found.kind, found.version) == (binary, "system", "2.60.0")
    assert found.backends == root / "backends"
    assert found.stubs is None


def test_the_one_named_comes_first(bare: Path, tmp_path: Path) -> None:
    make_carrier(bare / "share" / "trtbuild" / "tritonserver")
    named = executable(tmp_path / "mine" / "tritonserver")
    found = find_server(named)
    assert (found.binary, found.kind, found.backends, found.version) == (named, "system", None, None)


@pytest.mark.parametrize("kind", ["missing", "folder", "not executable"])
def test_a_named_file_that_cannot_run_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "tritonserver"
    if kind == "folder":
        path.mkdir()
    elif kind == "not executable":
        path.write_text("", encoding="utf-8")
    with pytest.raises(TrtbuildError, match="is not an executable file"):
        find_server(path)


@pytest.mark.parametrize(("wheel", "server"), [("0.7.0", "2.51.0"), ("0.5.0", None)])
def test_a_carrier_is_described_with_its_stubs_and_libraries(tmp_path: Path, wheel: str, server: str | None) -> None:
    found = find_server(make_carrier(tmp_path, wheel))
    assert (found.kind, found.version) == ("carrier", server)
    assert found.stubs == tmp_path / "pytriton" / "tritonserver" / "python_backend_stubs"
    assert found.libraries == tmp_path / "nvidia_pytriton.libs"


def test_what_lies_around_is_found_through_a_link_to_the_binary(tmp_path: Path) -> None:
    binary = make_carrier(tmp_path / "site")
    link = tmp_path / "bin" / "tritonserver"
    link.parent.mkdir()
    link.symlink_to(binary)
    assert find_server(link).stubs == tmp_path / "site" / "pytriton" / "tritonserver" / "python_backend_stubs"
