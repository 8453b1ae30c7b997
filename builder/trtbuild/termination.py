"""SIGTERM while something is written: an interruption like Ctrl-C, so that what Ctrl-C cleans up and says is cleaned up and said."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(KeyboardInterrupt):
    """SIGTERM came; whoever handles an interruption handles it, and the exit code says which it was."""


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Make SIGTERM raise Terminated while the block runs, where nobody else handles it; in the main thread, the only one that signals reach."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _raise(_number: int, _frame: FrameType | None) -> None:
    raise Terminated
