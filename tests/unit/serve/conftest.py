"""Fixtures of the server tests: a repository, stand-in servers, and the check that nothing is left behind."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from serve_helpers import write_echo

from trtbuild.serve.supervisor import new_server_id


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A model repository with one Python model that returns its input."""
    return write_echo(tmp_path / "repository")


@pytest.fixture
def stub_server(tmp_path: Path) -> Callable[[str], Path]:
    """Returns a function that makes an executable stand-in for tritonserver with the behaviour named."""

    def make(behaviour: str) -> Path:
        path = tmp_path / f"tritonserver-{behaviour}"
        program = shlex.join([sys.executable, str(Path(__file__).with_name("stub_server.py")), behaviour])
        path.write_text(f'#!/bin/sh\nexec {program} "$@"\n', encoding="utf-8")
        path.chmod(0o755)
        return path

    return make


@pytest.fixture(autouse=True)
def no_trace_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test gets a TMPDIR of its own and must leave no run folder in it and no shared memory of its servers."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    prefixes: list[str] = []
    monkeypatch.setattr("trtbuild.serve.supervisor.new_server_id", _recording(prefixes))
    yield
    assert list(folder.glob("trtbuild-serve-*")) == []
    assert [file for prefix in prefixes for file in Path("/dev/shm").glob(f"{prefix}*")] == []


def _recording(prefixes: list[str]) -> Callable[[], str]:
    def make() -> str:
        prefixes.append(new_server_id())
        return prefixes[-1]

    return make
