"""The folder a demo leaves behind: which one may be used, and what in it belongs to an earlier demo.

Only the entries that a demo writes are ever removed, and only from a folder that a demo made (or with --force).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from trtbuild.errors import TrtbuildError
from trtbuild.output import refuse_dash, write_atomically

#: Written first and last: marks the folder, then holds the result.
MARKER = "demo.json"
#: Made anew by every run; the imported model is kept, since it is checked by its own digest.
REPLACED = ("trtbuild.yaml", "build", "logs")


def prepare(folder: Path, *, force: bool) -> None:
    """Make `folder` an empty demo folder, except for the model of an earlier demo.

    Raises:
        UsageError: it is called "-".
        TrtbuildError: it holds something else, or the server of an earlier demo still uses it.
    """
    refuse_dash(folder)
    if folder.exists() and not folder.is_dir():
        raise TrtbuildError(f"{folder} is not a folder", hint="choose another one with --output")
    if folder.is_dir() and any(folder.iterdir()) and not is_demo(folder) and not force:
        raise TrtbuildError(
            f"{folder} exists and was not made by `trtbuild demo`",
            hint=f"choose another one with --output; --force replaces {', '.join((*REPLACED, 'model', MARKER))} in it",
        )
    pid = running_server(folder)
    if pid is not None:
        raise TrtbuildError(
            f"the server of an earlier `trtbuild demo --keep` still runs from {folder} (process {pid})",
            hint=f"stop it with `kill {pid}`, or choose another folder with --output",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (*REPLACED, *(["model"] if force else [])):
            path = folder / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        (folder / "logs").mkdir()
    except OSError as error:
        raise TrtbuildError(
            f"cannot use {folder}: {error.strerror}", hint="choose another one with --output"
        ) from error
    record(folder, {"complete": False})


def record(folder: Path, result: dict[str, Any]) -> None:
    """Write what is known about the demo into its marker."""
    write_atomically(folder / MARKER, json.dumps({"trtbuild_demo": 1, **result}, indent=2, ensure_ascii=False) + "\n")


def is_demo(folder: Path) -> bool:
    """Say whether a demo made the folder."""
    return _marker(folder).get("trtbuild_demo") == 1


def running_server(folder: Path) -> int | None:
    """Return the process id of a server that an earlier demo left running, or None."""
    pid = _marker(folder).get("server_pid")
    if not isinstance(pid, int):
        return None
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None  # it is gone
    return pid if b"serve" in words and b"trtbuild" in words else None


def _marker(folder: Path) -> dict[str, Any]:
    try:
        value = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
