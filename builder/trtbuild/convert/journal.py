"""What an unfinished conversion has finished: one line per tensor, in the folder under construction.

A line is written after the tensor's last byte. What a line says is checked against the file before it is believed, so that a crash of the
whole machine, which may lose either, costs time only.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

NAME = "unfinished.jsonl"
#: Stands where the name of a written file would: the digest is that of something read.
INPUTS = ""


class Journal:
    """The journal of a folder; safe to use from several threads.

    Args:
        folder: the folder under construction.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._lock = threading.Lock()
        self._done = _read(self._path)
        self._file = self._path.open("a", encoding="utf-8")

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def done(self, file: str) -> dict[str, str]:
        """Return tensor name -> SHA-256 of what was finished of a file."""
        return {name: digest for (where, name), digest in self._done.items() if where == file}

    def add(self, digests: Mapping[tuple[str, str], str]) -> None:
        """Note finished tensors: (file, tensor) -> SHA-256."""
        lines = "".join(json.dumps([file, name, digest]) + "\n" for (file, name), digest in digests.items())
        with self._lock:
            self._file.write(lines)
            self._file.flush()

    def remove(self) -> None:
        """Remove the journal: everything is finished."""
        self._path.unlink()


def _read(path: Path) -> dict[tuple[str, str], str]:
    """Return what whole lines say; the last one may be cut off."""
    found: dict[tuple[str, str], str] = {}
    for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else ():
        try:
            entry = json.loads(line)
        except ValueError:
            break  # whatever follows a damaged line is done again
        if not (isinstance(entry, list) and len(entry) == 3 and all(isinstance(each, str) for each in entry)):
            break
        found[entry[0], entry[1]] = entry[2]
    return found
