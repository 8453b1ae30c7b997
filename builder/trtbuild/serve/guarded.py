"""The near end of `guard.py`: start a process under guard, hear how it does, have it stopped."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtbuild.errors import TrtbuildError
from trtbuild.serve import guard

_AWAIT_S = 1.0


class GuardedProcess:
    """A process that ends, with all its descendants, when it is told to or when we are gone.

    Args:
        plan: what to run; the run folder is removed by `close`.
        environment: environment of the process.

    Attributes:
        pid: its process id.
        status: how it ended, negative for a signal; None while it runs.
        killed: process id -> signal of its descendants that had been killed before it ended.

    Raises:
        TrtbuildError: it could not be executed.
    """

    def __init__(self, plan: guard.Plan, environment: Mapping[str, str]) -> None:
        self._plan = plan
        self._pending = b""
        self.pid = 0
        self.status: int | None = None
        self.killed: dict[int, int] = {}
        with Path(plan["log"]).open("ab") as log:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        try:
            self._order(json.dumps(plan))
            event = self._next_event(None)
            if event is None or event["event"] != "started":
                reason = event["error"] if event else "its guard ended; the log says why"
                raise TrtbuildError(
                    f"cannot run {plan['command'][0]}: {reason}", hint="check the file and its permissions"
                )
            self.pid = event["pid"]
        except BaseException:
            self.close()
            raise

    def poll(self, timeout_s: float) -> int | None:
        """Wait at most this long for the process to end; return its status, None while it runs."""
        if self.status is None:
            deadline = time.monotonic() + timeout_s
            event = self._next_event(deadline)
            if event is not None:
                self.killed = {int(pid): number for pid, number in event["killed"].items()}
                self.status = event["status"]
            elif self._guard.poll() is not None:
                self._clean_up_for_guard()
        return self.status

    def stop(self) -> None:
        """Have the process stopped: SIGINT, after the grace time SIGTERM, then SIGKILL. Return when all of it is gone.

        An interruption (a second Ctrl-C) kills it at once, and is raised again when it is gone.
        """
        try:
            self._order("stop")
            self._await_end()
        except KeyboardInterrupt:
            self.kill()
            raise

    def kill(self) -> None:
        """Have the process and its descendants killed at once; return when they are gone."""
        self._order("kill")
        self._await_end()

    def close(self) -> None:
        """Let the guard remove the run folder and end; a process still running is stopped first."""
        stdin, stdout = self._guard.stdin, self._guard.stdout
        assert stdin is not None and stdout is not None
        stdin.close()
        self._guard.wait()
        stdout.close()

    def _await_end(self) -> None:
        while self.poll(_AWAIT_S) is None:
            pass

    def _order(self, text: str) -> None:
        assert self._guard.stdin is not None
        try:
            os.write(self._guard.stdin.fileno(), text.encode() + b"\n")
        except BrokenPipeError:
            pass  # the guard is gone; `poll` finds out and cleans up

    def _next_event(self, deadline: float | None) -> dict[str, Any] | None:
        """Return the next event; None when the deadline passes first or the guard ends without one."""
        assert self._guard.stdout is not None
        while b"\n" not in self._pending:
            timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._guard.stdout], [], [], timeout)[0]:
                return None
            data = os.read(self._guard.stdout.fileno(), 4096)
            if not data:
                self._guard.wait()
                return None
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        event: dict[str, Any] = json.loads(line)
        return event

    def _clean_up_for_guard(self) -> None:
        """Do what the guard, itself killed, can no longer do; the kernel has killed the server with it."""
        guard.remove_shared_memory(self._plan["prefix"])
        shutil.rmtree(self._plan["run_folder"], ignore_errors=True)
        self.status = self._guard.returncode
