"""Running `trtllm-build` under guard: its output goes to a log and to whoever watches, line by line; it dies when we do.

    trtbuild ──► guard (serve/guard.py) ──► trtllm-build ──► one process per worker

Whoever dies first, nothing is left: see the guard. What it gets of the environment says `build_environment`.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtbuild.errors import ToolFailed, TrtbuildError
from trtbuild.redaction import Redactor
from trtbuild.serve.guard import Plan
from trtbuild.serve.guarded import GuardedProcess
from trtbuild.serve.signals import stop_signals_interrupt
from trtbuild.trtllm.build_environment import builder_environment, secrets_of_builder

#: How often output is looked for.
_POLL_S = 0.2
#: How long a builder that is told to stop gets before it is terminated; it has nothing to save.
_GRACE_S = 2.0
#: Lines of the tool that an error shows (field report EB19).
SHOWN_LINES = 20
#: Lines that are kept to find out why a build failed.
_KEPT_LINES = 4000


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    Attributes:
        status: as `subprocess` gives it; negative for a signal.
        lines: the last lines of both streams, in the order they came.
        error_lines: the last lines of stderr.
        seconds: how long it took.
    """

    status: int
    lines: tuple[str, ...]
    error_lines: tuple[str, ...]
    seconds: float

    def shown(self) -> str:
        """Return the last lines of stderr, or of everything when stderr was empty, as the end of a message."""
        lines, stream = (self.error_lines, "stderr") if self.error_lines else (self.lines, "output")
        last = [line for line in lines if line.strip()][-SHOWN_LINES:]
        if not last:
            return "; it printed nothing"
        return f"; the last {len(last)} lines of its {stream}:\n" + "\n".join(f"  {line}" for line in last)


class _Stream:
    """A growing file: complete lines as they come.

    Args:
        path: created if it is not there.
        clean: what is done to each line.
    """

    def __init__(self, path: Path, clean: Callable[[str], str]) -> None:
        path.touch()
        self._clean = clean
        self._file = path.open("rb")
        self._partial = b""
        self.last: deque[str] = deque(maxlen=_KEPT_LINES)

    def read(self, *, is_over: bool = False) -> tuple[list[str], bool]:
        """Return the lines completed since the last call, and whether anything came at all; in the end an unfinished line counts."""
        data = self._file.read()
        *complete, self._partial = (self._partial + data).split(b"\n")
        if is_over and self._partial:
            complete, self._partial = [*complete, self._partial], b""
        lines = [self._clean(line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]) for line in complete]
        self.last.extend(lines)
        return lines, bool(data)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def run_builder(
    command: Sequence[str],
    *,
    log: Path,
    stall_timeout_s: float,
    on_line: Callable[[str], None],
    environment: Mapping[str, str] | None = None,
) -> Outcome:
    """Run the builder to its end.

    Args:
        command: program and arguments.
        log: file that gets every line of both streams as it comes.
        stall_timeout_s: a builder that prints nothing for so long is stopped.
        on_line: called with every line.
        environment: to choose from (`builder_environment`); None is that of this process.

    Raises:
        UsageError: TRTBUILD_BUILDER_ENV is not allowed.
        ToolFailed: it cannot be run, or printed nothing for `stall_timeout_s`.
        KeyboardInterrupt: a signal asked to stop; the builder and its workers are gone then.
    """
    inherited = os.environ if environment is None else environment
    given, clean = builder_environment(inherited), Redactor(secrets_of_builder(inherited)).known
    run_folder = Path(tempfile.mkdtemp(prefix="trtbuild-engine-"))
    out, err = _Stream(run_folder / "stdout", clean), _Stream(run_folder / "stderr", clean)
    lines: deque[str] = deque(maxlen=_KEPT_LINES)
    plan: Plan = {
        "command": list(command),
        "log": str(run_folder / "stdout"),
        "errors": str(run_folder / "stderr"),
        "prefix": f"trtbuild_engine_{os.getpid()}_",
        "run_folder": str(run_folder),
        "grace_s": _GRACE_S,
    }
    started = time.monotonic()
    with log.open("a", encoding="utf-8", errors="replace") as written, _stoppable():

        def pump(*, is_over: bool = False) -> bool:
            came = False
            for stream in (out, err):
                new, any_bytes = stream.read(is_over=is_over)
                came |= any_bytes
                for line in new:
                    written.write(line + "\n")
                    lines.append(line)
                    on_line(line)
            written.flush()
            return came

        try:
            process = GuardedProcess(plan, given)
        except TrtbuildError as error:
            _close(out, err)
            raise ToolFailed(error.message, hint=error.hint) from error
        except BaseException:
            _close(out, err)
            raise
        try:
            status = _watch(process, pump, stall_timeout_s)
            pump(is_over=True)
        finally:
            process.close()
            _close(out, err)
    outcome = Outcome(status, tuple(lines), tuple(err.last), time.monotonic() - started)
    if outcome.status == _STALLED:
        raise ToolFailed(
            f"{Path(command[0]).name} printed nothing for {stall_timeout_s:g} s (engine.stall_timeout_s) and was stopped{outcome.shown()}",
            hint="a rank that waits for another, or a GPU that hangs; where large layers take this long, raise engine.stall_timeout_s",
        )
    return outcome


#: Stands for the status of a builder that was stopped because it stalled; no process ends with it.
_STALLED = 10**6


def _watch(process: GuardedProcess, pump: Callable[[], bool], stall_timeout_s: float) -> int:
    """Return the status, `_STALLED` when it had to be stopped."""
    heard = time.monotonic()
    try:
        while (status := process.poll(_POLL_S)) is None:
            if pump():
                heard = time.monotonic()
            elif time.monotonic() - heard > stall_timeout_s:
                process.kill()
                return _STALLED
    except BaseException:
        process.kill()
        raise
    return status


def _stoppable() -> contextlib.AbstractContextManager[None]:
    """Make signals raise; other threads than the main one cannot, and leave them to it."""
    is_main = threading.current_thread() is threading.main_thread()
    return stop_signals_interrupt() if is_main else contextlib.nullcontext()


def _close(*streams: _Stream) -> None:
    for stream in streams:
        stream.close()
