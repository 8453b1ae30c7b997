"""Which stub and which libpython a server needs for the running interpreter."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest

from trtbuild.errors import TrtbuildError
from trtbuild.serve import python_stub
from trtbuild.serve.locate import ServerInstall
from trtbuild.serve.python_stub import STUB_NAME, find_libpython, find_stub, library_version

MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"
LIBRARY = f"libpython{MINOR}.so.1.0"


def elf(*names: str) -> bytes:
    """Return bytes with the string table that a stub linked to these libraries has."""
    return b"\x7fELF\x00" + b"".join(name.encode() + b"\x00" for name in names)


def carrier(folder: Path, stubs: dict[str, bytes]) -> ServerInstall:
    """Make a carrier with the given stubs."""
    for version, content in stubs.items():
        (folder / "stubs" / version).mkdir(parents=True)
        (folder / "stubs" / version / STUB_NAME).write_bytes(content)
    (folder / "backends").mkdir()
    return ServerInstall(
        folder / "tritonserver", "carrier", folder / "backends", folder / "stubs", folder / "libs", None
    )


def system(folder: Path, content: bytes | None) -> ServerInstall:
    """Make a system install with the given stub."""
    (folder / "backends" / "python").mkdir(parents=True)
    if content is not None:
        (folder / "backends" / "python" / STUB_NAME).write_bytes(content)
    return ServerInstall(folder / "tritonserver", "system", folder / "backends", None, None, None)


@pytest.fixture
def some_libpython(monkeypatch: pytest.MonkeyPatch) -> Path:
    path = Path("/somewhere") / LIBRARY
    monkeypatch.setattr(python_stub, "find_libpython", lambda: path)
    return path


def test_the_stub_of_this_python_is_taken(tmp_path: Path, some_libpython: Path) -> None:
    stub = find_stub(carrier(tmp_path, {"3.8": elf("libpython3.8.so.1.0"), MINOR: elf(LIBRARY)}))
    assert stub is not None
    assert stub.path == tmp_path / "stubs" / MINOR / STUB_NAME
    assert (stub.needed, stub.libpython) == ({LIBRARY}, some_libpython)


def test_a_library_with_a_made_up_name_is_recognized_beside_the_old_name(tmp_path: Path, some_libpython: Path) -> None:
    made_up = f"libpython3-419a3a08.{sys.version_info.minor}.so.1.0"
    stub = find_stub(carrier(tmp_path, {MINOR: elf(LIBRARY, "libc.so.6", made_up)}))
    assert stub is not None
    assert stub.needed == {LIBRARY, made_up}


def test_a_python_without_stub_is_told_which_there_are(tmp_path: Path, some_libpython: Path) -> None:
    install = carrier(tmp_path, {"3.9": elf("libpython3.9.so.1.0"), "3.99": b"", "3.8": b""})
    with pytest.raises(TrtbuildError, match=rf"no Python backend for Python {MINOR}; it has 3\.8, 3\.9, 3\.99"):
        find_stub(install)


def test_a_container_with_another_python_says_which_one_to_use(tmp_path: Path, some_libpython: Path) -> None:
    with pytest.raises(TrtbuildError, match=rf"embeds Python 3\.99, this is Python {MINOR}") as caught:
        find_stub(system(tmp_path, elf("libpython3.99.so.1.0")))
    assert "python3.99" in caught.value.hint


@pytest.mark.parametrize("content", [None, b"#!/bin/sh\n"])
def test_a_broken_backend_is_an_error(tmp_path: Path, some_libpython: Path, content: bytes | None) -> None:
    with pytest.raises(TrtbuildError, match=r"is missing|is not linked to any libpython3"):
        find_stub(system(tmp_path, content))


def test_a_server_that_stands_alone_needs_no_stub(tmp_path: Path) -> None:
    assert find_stub(ServerInstall(tmp_path / "tritonserver", "system", None, None, None, None)) is None


def test_an_interpreter_without_the_name_python3_is_refused(
    tmp_path: Path, some_libpython: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    with pytest.raises(TrtbuildError, match="no python3 beside"):
        find_stub(carrier(tmp_path, {MINOR: elf(LIBRARY)}))


@pytest.mark.parametrize(("name", "flags"), [("pypy", ""), ("cpython", "t"), ("cpython", "d")])
def test_unusual_builds_of_python_are_refused(monkeypatch: pytest.MonkeyPatch, name: str, flags: str) -> None:
    monkeypatch.setattr(sys, "implementation", SimpleNamespace(name=name))
    monkeypatch.setattr(sys, "abiflags", flags)
    with pytest.raises(TrtbuildError, match=f"is {name} .* with ABI flags '{flags}'"):
        python_stub.refuse_unusual_builds()


def test_the_library_found_reports_the_running_version() -> None:
    assert library_version(find_libpython()) == python_stub.python_version()


def test_a_file_that_is_no_library_has_no_version(tmp_path: Path) -> None:
    (tmp_path / LIBRARY).write_bytes(b"not ELF")
    assert library_version(tmp_path / LIBRARY) is None


@pytest.fixture
def static(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An interpreter without a library of its own in memory; returns the folder where one is searched."""
    monkeypatch.setattr(python_stub, "_mapped_library", lambda name: None)
    monkeypatch.setattr(python_stub, "_library_folders", lambda: iter([tmp_path / "nowhere", tmp_path]))
    return tmp_path


def test_a_static_interpreter_takes_a_library_of_the_same_version(
    static: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (static / LIBRARY).touch()
    monkeypatch.setattr(python_stub, "library_version", lambda path: python_stub.python_version())
    assert find_libpython() == static / LIBRARY


def test_a_library_of_another_patch_version_is_refused_and_named(static: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (static / LIBRARY).touch()
    monkeypatch.setattr(python_stub, "library_version", lambda path: f"{MINOR}.999")
    with pytest.raises(TrtbuildError, match=rf"found only: {static}/{LIBRARY} is {MINOR}\.999"):
        find_libpython()


@pytest.mark.parametrize(
    ("prefix", "remedy"),
    [("/usr", f"apt-get install libpython{MINOR}"), ("/home/me/.pyenv/versions/x", "--enable-shared")],
)
def test_a_missing_library_is_answered_with_what_brings_it(
    static: Path, monkeypatch: pytest.MonkeyPatch, prefix: str, remedy: str
) -> None:
    monkeypatch.setattr(sys, "base_prefix", prefix)
    with pytest.raises(TrtbuildError, match="which this machine does not have") as caught:
        find_libpython()
    assert LIBRARY in caught.value.message
    assert remedy in caught.value.hint


def test_the_folders_searched_begin_with_the_interpreters_own() -> None:
    folders = list(python_stub._library_folders())
    assert folders[0] == Path(sysconfig.get_config_var("LIBDIR"))
    assert len(folders) == len(set(folders))
