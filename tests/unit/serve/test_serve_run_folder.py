"""The folder a server runs from."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from trtbuild.errors import TrtbuildError
from trtbuild.serve.locate import ServerInstall
from trtbuild.serve.python_stub import STUB_NAME, PythonStub
from trtbuild.serve.run_folder import RunFolder, is_plain_path, make_run_folder

NEEDED = frozenset({"libpython3.11.so.1.0", "libpython3-ab12.11.so.1.0"})


@pytest.fixture
def made() -> Iterator[list[RunFolder]]:
    """Run folders to be removed after the test."""
    folders: list[RunFolder] = []
    yield folders
    for folder in folders:
        shutil.rmtree(folder.path)


@pytest.fixture
def install(tmp_path: Path) -> ServerInstall:
    """A system install with a second backend."""
    root = tmp_path / "opt"
    for file in ("python/libtriton_python.so", f"python/{STUB_NAME}", "tensorrtllm/libtriton_tensorrtllm.so"):
        (root / "backends" / file).parent.mkdir(parents=True, exist_ok=True)
        (root / "backends" / file).write_bytes(b"\x7fELF")
    (root / "backends" / "python" / "triton_python_backend_utils.py").write_text("TENSOR = 1\n", encoding="utf-8")
    return ServerInstall(root / "bin" / "tritonserver", "system", root / "backends", None, None, None)


@pytest.fixture
def stub(tmp_path: Path) -> PythonStub:
    (tmp_path / "stub").write_bytes(b"stub")
    (tmp_path / "libpython").write_bytes(b"library")
    return PythonStub(tmp_path / "stub", NEEDED, tmp_path / "libpython")


def test_a_system_install_keeps_its_other_backends(
    install: ServerInstall, stub: PythonStub, tmp_path: Path, made: list[RunFolder]
) -> None:
    made.append(make_run_folder(install, stub, tmp_path))
    backends, library_path = made[0].backends, made[0].library_path
    assert backends is not None and library_path is not None and install.backends is not None
    assert (backends / "tensorrtllm").resolve() == install.backends / "tensorrtllm"
    assert (backends / "python" / "libtriton_python.so").resolve().parent == install.backends / "python"
    assert (backends / "python" / STUB_NAME).resolve() == stub.path
    assert {file.name for file in library_path.iterdir()} == NEEDED
    assert all(file.resolve() == stub.libpython for file in library_path.iterdir())


def test_a_carriers_stub_finds_this_interpreters_library_where_it_looks(
    install: ServerInstall, stub: PythonStub, tmp_path: Path, made: list[RunFolder]
) -> None:
    libraries = tmp_path / "nvidia_pytriton.libs"
    libraries.mkdir()
    for name in ("libcudart-0952.so.12", "libpython3-ab12.11.so.1.0"):
        (libraries / name).write_bytes(b"\x7fELF")
    carrier = ServerInstall(install.binary, "carrier", install.backends, tmp_path, libraries, None)
    made.append(make_run_folder(carrier, stub, tmp_path))
    assert made[0].backends is not None
    placed = made[0].backends / "python" / STUB_NAME
    assert not placed.is_symlink()  # $ORIGIN would follow a link
    assert placed.read_bytes() == b"stub"
    looked_in = placed.parent / "../../../../nvidia_pytriton.libs"
    assert (looked_in / "libcudart-0952.so.12").resolve() == libraries / "libcudart-0952.so.12"
    assert all((looked_in / name).resolve() == stub.libpython for name in NEEDED)
    assert made[0].library_path is None


def test_the_utilities_are_the_servers_own_behind_a_preface(
    install: ServerInstall, stub: PythonStub, tmp_path: Path, made: list[RunFolder]
) -> None:
    made.append(make_run_folder(install, stub, tmp_path))
    assert made[0].backends is not None
    folder = made[0].backends / "python"
    text = (folder / "triton_python_backend_utils.py").read_text(encoding="utf-8")
    assert text.startswith("import trtbuild_stub_preface\nTENSOR = 1\n")
    compile(text, "utilities", "exec")
    assert (folder / "trtbuild_stub_preface.py").is_file()


@pytest.mark.parametrize("name", ["plain", "with space", "quo'te", "Яблоко", "semi;colon", "dollar$HOME"])
def test_the_server_always_gets_a_plain_path_to_the_repository(
    install: ServerInstall, stub: PythonStub, tmp_path: Path, made: list[RunFolder], name: str
) -> None:
    repository = tmp_path / name
    (repository / "echo").mkdir(parents=True)
    made.append(make_run_folder(install, stub, repository))
    given = made[0].repository
    assert is_plain_path(given)
    assert (given == repository) is (name == "plain")
    assert (given / "echo").is_dir()


@pytest.mark.parametrize("name", ["a b", "ж"])
def test_an_odd_folder_for_temporary_files_is_refused_and_left_empty(
    install: ServerInstall, stub: PythonStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / name))
    with pytest.raises(TrtbuildError, match=f"temporary files, {tmp_path}/{name}") as caught:
        make_run_folder(install, stub, tmp_path)
    assert "TMPDIR" in caught.value.hint
    assert list((tmp_path / name).iterdir()) == []


def test_a_folder_where_programs_cannot_run_is_refused(
    install: ServerInstall, stub: PythonStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_NOEXEC))
    with pytest.raises(TrtbuildError, match="is mounted noexec"):
        make_run_folder(install, stub, tmp_path)
