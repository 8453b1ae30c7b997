"""How a process ended, in words."""

from __future__ import annotations

import signal

#: Shells report a child killed by signal N as exit code 128 + N.
_SHELL_SIGNAL_BASE = 128


def describe_status(status: int) -> str:
    """Return words for an exit status as `subprocess` gives it: a negative one is a signal."""
    if status < 0:
        return f"killed by signal {-status} ({_signal_name(-status)})"
    name = _signal_name(status - _SHELL_SIGNAL_BASE) if status > _SHELL_SIGNAL_BASE else None
    return f"exit code {status}" + (
        f" (a shell's word for signal {status - _SHELL_SIGNAL_BASE}, {name})" if name else ""
    )


def _signal_name(number: int) -> str | None:
    return signal.Signals(number).name if number in signal.valid_signals() and number < signal.SIGRTMIN else None
