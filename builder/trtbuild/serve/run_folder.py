"""The temporary folder a server runs from: a backend directory put together for this interpreter, and safe paths.

    RUN/nvidia_pytriton.libs/           links to the carrier's libraries, and libpython of this interpreter
    RUN/server/triton/backends/python/  the backend, the stub, `stub_preface` and the utilities that import it
    RUN/lib/                            system install only: libpython, for LD_LIBRARY_PATH
    RUN/repository                      link to the model repository, where its path is not a plain one

The carrier's stub looks for libraries in $ORIGIN/../../../../nvidia_pytriton.libs (its RPATH, which no environment
variable overrides). Copied into RUN it finds the links above, so it loads this interpreter's own library, even where
the wheel brings another build of the same Python.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from trtbuild.errors import TrtbuildError
from trtbuild.serve.locate import ServerInstall
from trtbuild.serve.python_stub import STUB_NAME, PythonStub

UTILITIES = "triton_python_backend_utils.py"
#: The server starts stubs through a shell, unquoted, and stubs of Python 3.11 and later encode file names as ASCII.
_ODD = re.compile(r"[^A-Za-z0-9_./+=@%:,-]")
#: The module that every stub imports before its model.py.
PREFACE = "trtbuild_stub_preface"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Where the parts of one run lie.

    Attributes:
        path: the folder itself; to be removed after the run.
        repository: the path of the model repository to give to the server.
        backends: the backend directory to give to the server; None: leave it to the server.
        library_path: a folder for the front of LD_LIBRARY_PATH; None: not needed.
    """

    path: Path
    repository: Path
    backends: Path | None
    library_path: Path | None


def is_plain_path(path: Path) -> bool:
    """Say whether the server can handle the path: ASCII, and nothing a shell would take apart."""
    return not odd_characters(str(path))


def odd_characters(path: str) -> str:
    """Return the characters of a path that the server cannot handle, each once."""
    return "".join(dict.fromkeys(_ODD.findall(path)))


def make_run_folder(install: ServerInstall, stub: PythonStub | None, repository: Path) -> RunFolder:
    """Make the folder for one run and return what is where.

    Raises:
        TrtbuildError: the folder for temporary files has a path the server cannot handle, or programs cannot run there.
    """
    run = Path(tempfile.mkdtemp(prefix="trtbuild-serve-"))
    try:
        _require_usable(run)
        if not is_plain_path(repository):
            link = run / "repository"
            link.symlink_to(repository)
            repository = link
        if install.backends is None or stub is None:
            return RunFolder(run, repository, None, None)
        backends = _link_backends(run / "server" / "triton" / "backends", install.backends)
        library_path = _place_stub(run, backends / "python" / STUB_NAME, install, stub)
        return RunFolder(run, repository, backends, library_path)
    except BaseException:
        shutil.rmtree(run)
        raise


def _require_usable(run: Path) -> None:
    if not is_plain_path(run):
        raise TrtbuildError(
            f"the folder for temporary files, {run.parent}, has a path that tritonserver's Python backend cannot handle",
            hint="set TMPDIR to a path of ASCII letters, digits and ._-+ only",
        )
    if os.statvfs(run).f_flag & os.ST_NOEXEC:
        raise TrtbuildError(
            f"the folder for temporary files, {run.parent}, is mounted noexec; the Python backend's stub runs from there",
            hint="set TMPDIR to a folder where programs may run",
        )


def _link_backends(target: Path, source: Path) -> Path:
    (target / "python").mkdir(parents=True)
    for backend in source.iterdir():
        if backend.name != "python":
            (target / backend.name).symlink_to(backend)
    for file in (source / "python").iterdir():
        if file.name not in (UTILITIES, STUB_NAME, "__pycache__"):
            (target / "python" / file.name).symlink_to(file)
    shutil.copyfile(Path(__file__).with_name("stub_preface.py"), target / "python" / f"{PREFACE}.py")
    utilities = (source / "python" / UTILITIES).read_text(encoding="utf-8")
    (target / "python" / UTILITIES).write_text(
        f"import {PREFACE}\n{utilities}\nserialize_byte_tensor = {PREFACE}.with_item_size(serialize_byte_tensor)\n",
        encoding="utf-8",
    )
    return target


def _place_stub(run: Path, target: Path, install: ServerInstall, stub: PythonStub) -> Path | None:
    """Put the stub in its place and return the folder that LD_LIBRARY_PATH must name, if any."""
    if install.libraries is None:
        target.symlink_to(stub.path)
        folder = run / "lib"
    else:
        shutil.copy2(stub.path, target)
        folder = run / install.libraries.name
    folder.mkdir()
    for library in install.libraries.iterdir() if install.libraries else ():
        if library.name not in stub.needed:
            (folder / library.name).symlink_to(library)
    for name in stub.needed:
        (folder / name).symlink_to(stub.libpython)
    return folder if install.libraries is None else None
