"""Runs trtbuild commands as a user types them: shown first, timed, their output kept in a log file per step.

Every command is a process of its own in a session of its own, so that Ctrl-C reaches us alone and we decide in which order
things stop. Knows nothing about what the commands do.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtbuild.errors import CheckFailed, TrtbuildError

logger = logging.getLogger(__name__)

#: Lines of a failed command's log that are shown.
TAIL_LINES = 25
#: How long a command that was asked to stop may take before it is killed, seconds.
STOP_S = 30.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Step:
    """A finished step: its name, the command as typed, how long it took, and what it printed on stdout."""

    name: str
    command: str
    seconds: float
    stdout: str = field(repr=False)


@dataclass(slots=True)
class Background:
    """A command that keeps running, and the JSON line it printed when it was ready."""

    process: subprocess.Popen[bytes]
    step: Step
    ready: dict[str, Any]

    def addresses(self) -> dict[str, Any]:
        """Return the URLs it announced and its process id; stopping that process stops all that it started."""
        return {**{key: url for key, url in self.ready.items() if key.endswith("_url")}, "pid": self.process.pid}

    def stop(self) -> None:
        """Ask it to stop and wait until it is gone."""
        _stop(self.process, signal.SIGTERM)


class Runner:
    """Runs one step after the other.

    Args:
        logs: existing folder for the log files.
        program: what "trtbuild" stands for; default: this installation.
    """

    def __init__(self, logs: Path, program: tuple[str, ...] = (sys.executable, "-m", "trtbuild")) -> None:
        self._logs = logs
        self._program = program
        self.steps: list[Step] = []

    def run(self, *arguments: str) -> Step:
        """Run a command to its end and return what it printed.

        Raises:
            CheckFailed: it ended with exit code 3.
            TrtbuildError: it ended with another exit code than 0; the message has the end of its log.
        """
        command, log, started = self._announce(arguments)
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [*self._program, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=sink,
                start_new_session=True,
            )  # fmt: skip
            try:
                stdout = _output_of(process)
            except BaseException:
                _stop(process, signal.SIGINT)
                raise
            sink.write(stdout)
        if process.returncode != 0:
            raise _failure(command, process.returncode, log)
        return self._finish(arguments[0], command, started, stdout.decode("utf-8", "replace"))

    def start(self, *arguments: str) -> Background:
        """Start a command that keeps running, and wait for the JSON line that it prints when it is ready.

        Raises:
            TrtbuildError: it ended instead.
        """
        command, log, started = self._announce(arguments)
        out = log.with_suffix(".out")
        with log.open("wb") as sink, out.open("wb") as result:
            process = subprocess.Popen(
                [*self._program, *arguments], stdin=subprocess.DEVNULL, stdout=result, stderr=sink,
                start_new_session=True,
            )  # fmt: skip
        try:
            while not (line := out.read_text(encoding="utf-8")).endswith("\n"):
                try:
                    code = process.wait(_POLL_S)
                except subprocess.TimeoutExpired:
                    continue
                raise _failure(command, code, log)
            ready = json.loads(line)
        except BaseException:
            _stop(process, signal.SIGTERM)
            raise
        return Background(process, self._finish(arguments[0], command, started, line), ready)

    def _announce(self, arguments: tuple[str, ...]) -> tuple[str, Path, float]:
        command = as_typed("trtbuild", *arguments)
        logger.info("$ %s", command)
        return command, self._logs / f"{len(self.steps) + 1}-{arguments[0]}.log", time.perf_counter()

    def _finish(self, name: str, command: str, started: float, stdout: str) -> Step:
        step = Step(name, command, time.perf_counter() - started, stdout)
        self.steps.append(step)
        logger.info("  %-10s %6.1f s", name, step.seconds)
        return step


def as_typed(*words: str) -> str:
    """Return a command as it is typed into bash or zsh; a word with a line break is written as $'...'."""
    return " ".join(f"$'{_escaped(word)}'" if "\n" in word else shlex.quote(word) for word in words)


def _escaped(word: str) -> str:
    return word.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")


def _output_of(process: subprocess.Popen[bytes]) -> bytes:
    """Wait for a process and return its stdout. In short waits: a signal that comes just before an endless one would not end it."""
    while True:
        try:
            return process.communicate(timeout=0.5)[0]
        except subprocess.TimeoutExpired:
            continue


def _failure(command: str, code: int, log: Path) -> TrtbuildError:
    """Return the error for a command that ended badly, with the end of what it wrote."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-TAIL_LINES:]
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    error = CheckFailed if code == CheckFailed.exit_code else TrtbuildError
    return error("\n".join([f"`{command}` {how}", *(f"  | {line}" for line in lines)]), hint=f"its whole log: {log}")


def _stop(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal, wait, and kill what is left of the command's session; a second Ctrl-C cuts the wait short."""
    try:
        if process.poll() is None:
            process.send_signal(number)
            process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        logger.warning("process %d did not stop within %.0f s and is killed", process.pid, STOP_S)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # nothing was left
        process.wait()
