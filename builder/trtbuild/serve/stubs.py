"""The Python stubs of a running server: which model each executes, and which of them has died.

tritonserver 2.51 does not look after them. When a stub is killed, requests that run there get no answer and no error, the
model stays "ready", and the process stays a zombie, because the server waits only for stubs that it ends itself. Just
that tells a dead stub from one whose model was unloaded. Or the server aborts itself, when it finds a lock that the stub held.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from trtbuild.serve.exit_status import describe_status
from trtbuild.serve.python_stub import STUB_COMM, STUB_NAME

PROC = Path("/proc")
#: Fields of /proc/PID/stat behind the name, counted from 0 (proc(5): state is field 3, ppid 4, starttime 22, exit_code 52).
_STATE, _PARENT, _STARTED, _EXIT_CODE = 0, 1, 19, 49


@dataclass(frozen=True, slots=True)
class Stub:
    """One process of the Python backend.

    Attributes:
        pid: its process id.
        started: when it began, which no later process of the same number shares.
        model: the model that it executes, as messages name it.
    """

    pid: int
    started: str
    model: str


@dataclass(frozen=True, slots=True)
class _Process:
    name: str
    fields: list[str]

    @property
    def parent(self) -> int:
        return int(self.fields[_PARENT])

    @property
    def started(self) -> str:
        return self.fields[_STARTED]

    @property
    def is_zombie(self) -> bool:
        return self.fields[_STATE] == "Z"

    @property
    def status(self) -> int:
        """How it ended, negative for a signal."""
        return os.waitstatus_to_exitcode(int(self.fields[_EXIT_CODE]))  # as wait(2) gives it


class Stubs:
    """The stubs among the descendants of a process.

    `find` looks through all processes, once for each time that models were loaded; `died` reads one file of /proc for
    each stub and can be called often.

    Args:
        root: the server, or the mpirun above several.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._known: dict[int, Stub] = {}
        self._gone: dict[int, Stub] = {}
        self._zombies: set[int] = set()

    def find(self) -> None:
        """Take note of the stubs that run now."""
        processes = dict(_processes())
        for pid, process in processes.items():
            if pid not in self._known and _is_stub(process, processes) and self._root in _ancestors(pid, processes):
                self._known[pid] = Stub(pid, process.started, _model(pid))

    def died(self) -> str | None:
        """Return which stub has ended without being told to, and how; None when none has.

        One that is a zombie in two calls in a row counts: the server takes note at once of those that it ends itself.
        """
        before, self._zombies = self._zombies, set()
        for stub in list(self._known.values()):
            process = _read(stub.pid)
            if process is None or process.started != stub.started:
                # The server has ended it, since its model was unloaded or gets another; or it is the server that ends.
                self._gone[stub.pid] = self._known.pop(stub.pid)
                self.find()
            elif process.is_zombie:
                self._zombies.add(stub.pid)
                if stub.pid in before:
                    return _death(stub, process.status)
        return None

    def killed(self, signals: Mapping[int, int]) -> str | None:
        """Return which stub was killed before the server was gone, and how; None when none was.

        Args:
            signals: process id -> signal of processes that were killed.
        """
        stubs = self._gone | self._known
        return next((_death(stubs[pid], -number) for pid, number in signals.items() if pid in stubs), None)


def _death(stub: Stub, status: int) -> str:
    return f"the process of {stub.model} (pid {stub.pid}) died: {describe_status(status)}"


def _is_stub(process: _Process, processes: dict[int, _Process]) -> bool:
    """Say whether a process is a stub; what a stub has forked bears its name, and is the model's own business."""
    above = processes.get(process.parent)
    return process.name == STUB_COMM and (above is None or above.name != STUB_COMM)


def _model(pid: int) -> str:
    """Return the model of a stub by its command line: the program, and then REPOSITORY/MODEL/VERSION/model.py."""
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        words = []
    files = [Path(after) for word, after in pairwise(words) if Path(word).name == STUB_NAME]
    parts = files[0].parts[-3:-1] if files else ()  # a zombie has no words
    return f"model '{parts[0]}' version {parts[1]}" if len(parts) == 2 else "a Python model"


def _ancestors(pid: int, processes: dict[int, _Process]) -> Iterator[int]:
    while pid in processes:
        pid = processes[pid].parent
        yield pid


def _processes() -> Iterator[tuple[int, _Process]]:
    for folder in PROC.iterdir():
        if folder.name.isdecimal() and (process := _read(int(folder.name))) is not None:
            yield int(folder.name), process


def _read(pid: int) -> _Process | None:
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None  # it has ended
    name, _, rest = text.partition("(")[2].rpartition(")")
    return _Process(name, rest.split())
