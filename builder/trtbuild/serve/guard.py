"""A small process between trtbuild and the server, so that nothing is left behind whoever dies first.

    trtbuild ──stdin──► guard ──► tritonserver ──► Python stubs
             ◄─stdout──

Run as a script (`python -I -S guard.py`), standard library only. The first line of its input is the plan, a JSON
object (see `Plan`). Later lines are orders: `stop` (SIGINT, then SIGTERM, then SIGKILL) and `kill`. End of input means
that trtbuild is gone or done: the server is stopped if it still runs, the run folder is removed, the guard ends. It
answers with one JSON object a line: `{"event": "started", "pid": N}`, `{"event": "failed", "error": TEXT}` or
`{"event": "exited", "status": N, "killed": {PID: SIGNAL}}`, where a negative status is a signal, and `killed` are the
server's descendants that a signal had ended before the server was gone.

 * trtbuild is killed: its end of the pipe closes, the guard stops the server.
 * the guard is killed: the kernel kills the server (PR_SET_PDEATHSIG); stubs notice and end.
 * the server is killed: the guard kills what is left of its process group and descendants, and removes its files in
   /dev/shm. Only processes descended from this guard and files with this run's prefix are ever touched.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import FrameType
from typing import Any, TypedDict

SHARED_MEMORY = Path("/dev/shm")
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)
#: How long the server gets after SIGTERM before SIGKILL.
TERMINATE_GRACE_S = 3.0
_POLL_S = 1.0


class _Errors(TypedDict, total=False):
    errors: str


class Plan(_Errors):
    """What to run.

    Attributes:
        command: argument vector of the server.
        log: file that gets the server's output, appended.
        prefix: prefix of the server's files in /dev/shm.
        run_folder: removed at the very end.
        grace_s: how long the server gets after SIGINT before SIGTERM, seconds.
        errors: file that gets its stderr, appended; missing: the log does.
    """

    command: list[str]
    log: str
    prefix: str
    run_folder: str
    grace_s: float


def remove_shared_memory(prefix: str, folder: Path = SHARED_MEMORY) -> None:
    """Remove the files in /dev/shm whose names begin with the prefix."""
    for file in folder.glob(f"{prefix}*"):
        file.unlink(missing_ok=True)


def _emit(**event: Any) -> None:
    try:
        os.write(1, json.dumps(event).encode() + b"\n")
    except BrokenPipeError:
        pass  # trtbuild is gone: nobody is left to tell, and the clean-up must go on


class Guard:
    """One server, from start to the last trace of it."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._parent = os.getppid()
        self._input = b""
        self._input_open = True
        self._process: subprocess.Popen[bytes] | None = None
        self._killed: dict[int, int] = {}
        self._step = -1
        self._deadline: float | None = None
        self._escalation = (
            (signal.SIGINT, plan["grace_s"]),
            (signal.SIGTERM, TERMINATE_GRACE_S),
            (signal.SIGKILL, None),
        )
        self._wakeup, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, _ignore)
        signal.signal(signal.SIGTERM, self._on_terminate)

    def run(self) -> None:
        """Start the server, obey orders until it has ended, clean up."""
        if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
        self._start()
        if not self._input_open:
            self._escalate(0)
        while self._process is not None:
            if self._has_exited(self._process.pid):
                self._finish(self._process)
                self._process = None
                self._deadline = None
            else:
                self._wait()
        while self._input_open:  # trtbuild may still want to read the log
            self._wait()
        shutil.rmtree(self._plan["run_folder"])

    def _start(self) -> None:
        errors_path = Path(self._plan.get("errors") or self._plan["log"])
        with Path(self._plan["log"]).open("ab") as log, errors_path.open("ab") as errors:
            try:
                self._process = subprocess.Popen(
                    self._plan["command"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=errors,
                    start_new_session=True,
                    preexec_fn=_die_with_guard,  # safe: the guard has one thread
                )
            except OSError as error:
                _emit(event="failed", error=f"{error.strerror}: {self._plan['command'][0]}")
            else:
                _emit(event="started", pid=self._process.pid)

    def _finish(self, process: subprocess.Popen[bytes]) -> None:
        self._note_killed(process)
        os.killpg(process.pid, signal.SIGKILL)  # before the server is reaped, so that its number is still its own
        process.wait()
        _reap_descendants()
        remove_shared_memory(self._plan["prefix"])
        _emit(event="exited", status=process.returncode, killed=self._killed)

    def _reap_orphans(self) -> None:
        """Reap what the server's descendants left to us and has ended; the server itself is not touched."""
        while self._process is not None:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid == self._process.pid:
                return
            self._reap_orphan(ended.si_pid)

    def _note_killed(self, process: subprocess.Popen[bytes]) -> None:
        """Reap what had ended with the server, or before it: the kernel has made us the parent of all that it left."""
        for pid in _children():
            if pid != process.pid and self._has_exited(pid):
                self._reap_orphan(pid)

    def _reap_orphan(self, pid: int) -> None:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status < 0:
            self._killed[pid] = -status

    @staticmethod
    def _has_exited(pid: int) -> bool:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _wait(self) -> None:
        """Wait for an order, a signal or a deadline, and act on it."""
        timeout = _POLL_S if self._deadline is None else min(_POLL_S, max(0.0, self._deadline - time.monotonic()))
        readable, _, _ = select.select([self._wakeup, *([0] if self._input_open else [])], [], [], timeout)
        if self._wakeup in readable:
            os.read(self._wakeup, 4096)
            self._reap_orphans()
        if 0 in readable:
            self._read_orders()
        elif self._input_open and os.getppid() != self._parent:
            self._close_input()  # trtbuild died, and a process it forked still holds the pipe
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._escalate(self._step + 1)

    def _read_orders(self) -> None:
        data = os.read(0, 4096)
        if not data:
            self._close_input()
            return
        self._input += data
        *orders, self._input = self._input.split(b"\n")
        for order in orders:
            self._escalate({b"stop": 0, b"kill": len(self._escalation) - 1}[order])

    def _close_input(self) -> None:
        self._input_open = False
        self._escalate(0)

    def _escalate(self, step: int) -> None:
        """Go to a step of the escalation, never back."""
        if step <= self._step or self._process is None:
            return
        self._step = step
        number, grace_s = self._escalation[step]
        self._deadline = None if grace_s is None else time.monotonic() + grace_s
        if self._has_exited(self._process.pid):
            return
        if number == signal.SIGKILL:
            os.killpg(self._process.pid, number)
        else:
            os.kill(self._process.pid, number)

    def _on_terminate(self, _number: int, _frame: FrameType | None) -> None:
        self._close_input()


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Do nothing; unlike SIG_IGN, a handler is not inherited by the server."""


def _die_with_guard() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _reap_descendants() -> None:
    """Kill and reap what the server left; as a subreaper the guard has become the parent of all of it."""
    while True:
        for pid in _children():
            os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    """Return the process ids whose parent is this process."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended while we looked
            if int(stat.rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(entry.name))
    return found


if __name__ == "__main__":
    with open(0, "rb", buffering=0, closefd=False) as _stdin:
        _plan: Plan = json.loads(_stdin.readline())
    Guard(_plan).run()
