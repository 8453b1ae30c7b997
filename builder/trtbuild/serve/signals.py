"""Turning requests to stop into one exception."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stop_signals_interrupt() -> Iterator[None]:
    """Make SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt while the block runs; main thread only.

    SIGINT counts even where a shell started the command in the background and had it ignored. SIGHUP stays ignored
    where it is (nohup).
    """
    before = {number: signal.getsignal(number) for number in _STOP_SIGNALS}
    for number, handler in before.items():
        if number != signal.SIGHUP or handler != signal.SIG_IGN:
            signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
