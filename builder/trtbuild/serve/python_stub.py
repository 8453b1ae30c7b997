"""The Python that the server's Python backend embeds: which stub it is, and which libpython it must load.

The stub is a program with an interpreter inside. It takes its packages from the first `python3` in PATH but its
interpreter from a libpython found by the dynamic loader; when the two are different builds, C extensions of the
standard library fail with undefined symbols (`import ssl` is the first to do so). So the library must be that of the
running interpreter, to the patch version. Imports the standard library only: the bootstrap uses it before anything
is installed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtbuild.errors import TrtbuildError

if TYPE_CHECKING:
    from trtbuild.serve.locate import ServerInstall

STUB_NAME = "triton_python_backend_stub"
#: The kernel keeps so many characters of a process's name (TASK_COMM_LEN of Linux, without the NUL).
STUB_COMM = STUB_NAME[:15]
#: How a stub names its library: libpython3.11.so.1.0, or libpython3-419a3a08.13.so.1.0 where the wheel brings a copy whose
#: name was made unique; then the old name is still in the file's string table, unused.
_NEEDED = re.compile(rb"libpython3(?:-[0-9a-f]+)?\.(\d+)\.so\.1\.0\x00")
#: Loads a libpython without initializing it and prints its version.
_ASK_VERSION = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.Py_GetVersion.restype = ctypes.c_char_p
print(library.Py_GetVersion().decode().split()[0])
"""


@dataclass(frozen=True, slots=True)
class PythonStub:
    """The stub to run and the library it must find.

    Attributes:
        path: the stub program.
        needed: file names under which the stub may ask the loader for libpython.
        libpython: the library of the running interpreter.
    """

    path: Path
    needed: frozenset[str]
    libpython: Path


def python_version() -> str:
    """Return the running interpreter's version as libpython reports it, such as "3.11.7"."""
    return sys.version.split()[0]


def python_folder() -> Path:
    """Return the folder that must come first in the server's PATH: its `python3` decides which packages models see."""
    return Path(sys.executable).parent


def find_stub(install: ServerInstall) -> PythonStub | None:
    """Return the stub for the running interpreter; None when the server stands alone, without a Python backend.

    Raises:
        TrtbuildError: there is no stub for this Python, no libpython that matches it, or no `python3` beside it.
    """
    if install.backends is None:
        return None
    refuse_unusual_builds()
    if not (python_folder() / "python3").exists():
        raise TrtbuildError(
            f"there is no python3 beside {sys.executable}; the Python backend finds packages through that name",
            hint="run trtbuild from a virtual environment: python3 -m venv .venv",
        )
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    path = _carrier_stub(install.stubs, minor) if install.stubs else install.backends / "python" / STUB_NAME
    if not path.is_file():
        raise TrtbuildError(f"the Python backend has no stub: {path} is missing", hint="reinstall tritonserver")
    found = list(_NEEDED.finditer(path.read_bytes()))
    if not found:
        raise TrtbuildError(f"{path} is not linked to any libpython3", hint="reinstall tritonserver")
    embedded = f"3.{found[0][1].decode()}"
    if embedded != minor:
        raise TrtbuildError(
            f"the Python backend of {install.binary} embeds Python {embedded}, this is Python {minor}",
            hint=f"install trtbuild for python{embedded} and run it from there",
        )
    return PythonStub(path, frozenset(match[0].rstrip(b"\x00").decode() for match in found), find_libpython())


def _carrier_stub(stubs: Path, minor: str) -> Path:
    path = stubs / minor / STUB_NAME
    if not path.is_file():
        known = sorted(
            (folder.name for folder in stubs.iterdir()), key=lambda name: [int(part) for part in name.split(".")]
        )
        raise TrtbuildError(
            f"this tritonserver has no Python backend for Python {minor}; it has {', '.join(known)}",
            hint="make the environment with one of those, for example: make PYTHON=python3.12",
        )
    return path


def refuse_unusual_builds() -> None:
    """Raise unless this is an ordinary CPython: the stubs embed one with the plain ABI.

    Raises:
        TrtbuildError: another implementation, a debug build or a free-threaded one.
    """
    if sys.implementation.name != "cpython" or sys.abiflags:
        raise TrtbuildError(
            f"{sys.executable} is {sys.implementation.name} {python_version()} with ABI flags '{sys.abiflags}'; "
            "the Python backend embeds a plain CPython",
            hint="use an ordinary CPython 3.10 to 3.13, not a debug or free-threaded build",
        )


def find_libpython() -> Path:
    """Return the shared library of exactly the running interpreter.

    The library that this process has mapped is the answer when there is one. A statically linked interpreter (Debian's,
    conda's, uv's) has none mapped; then the usual folders are searched and each candidate is asked for its version.

    Raises:
        TrtbuildError: none has the same version; names the package or the build option that brings one.
    """
    version = python_version()
    name = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
    mapped = _mapped_library(name)
    if mapped is not None:
        return mapped
    seen: list[str] = []
    for folder in _library_folders():
        candidate = folder / name
        if candidate.is_file():
            found = library_version(candidate)
            if found == version:
                return candidate
            seen.append(f"{candidate} is {found or 'not loadable'}")
    raise TrtbuildError(
        f"the server's Python backend needs {name} of Python {version} ({sys.executable})"
        + (f"; found only: {', '.join(seen)}" if seen else ", which this machine does not have"),
        hint=libpython_remedy(),
    )


def libpython_remedy() -> str:
    """Return what brings the missing library, by where the interpreter comes from."""
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    if sys.base_prefix == "/usr":
        return f"Debian or Ubuntu: apt-get install libpython{minor} (the version of the package python{minor})"
    return (
        "use a Python that comes with its shared library: the distribution's, uv's or conda's, or build this one with "
        "--enable-shared (pyenv: PYTHON_CONFIGURE_OPTS=--enable-shared)"
    )


def _mapped_library(name: str) -> Path | None:
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        path = line.partition("/")[2]
        if path.endswith("/" + name):
            return Path("/" + path)
    return None


def _library_folders() -> Iterator[Path]:
    seen = set()
    triplet = sysconfig.get_config_var("MULTIARCH")
    places = [sysconfig.get_config_var("LIBDIR"), f"{sys.base_prefix}/lib", f"{sys.base_exec_prefix}/lib"]
    places += [f"/usr/lib/{triplet}"] if triplet else []
    places += ["/usr/lib64", "/usr/local/lib"]
    for place in places:
        if place and place not in seen:
            seen.add(place)
            yield Path(place)


def library_version(library: Path) -> str | None:
    """Return the Python version a libpython reports, asked in a process of its own; None when it does not load."""
    command = [sys.executable, "-I", "-S", "-c", _ASK_VERSION, str(library)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else None
