"""What ends a load test from outside: SIGINT and SIGTERM. What was measured until then is kept."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

#: Signals that end a load test.
STOPPING = (signal.SIGINT, signal.SIGTERM)


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


class Stop:
    """Whether a signal asked for the end.

    Attributes:
        signal: its number, None while none has come.
    """

    def __init__(self) -> None:
        self.signal: int | None = None


def leave(number: int) -> NoReturn:
    """End what runs as a signal does.

    Raises:
        Terminated: SIGTERM.
        KeyboardInterrupt: another signal.
    """
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


@contextmanager
def obeyed() -> Iterator[None]:
    """Let both signals raise (see `leave`) within a block.

    A script's `command &` has SIGINT ignored from the beginning (POSIX, Shell Command Language, 2.11); a load test ends by it all the same.
    """
    with _handled(lambda number, frame: leave(number), signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler):
        yield


@contextmanager
def noted() -> Iterator[Stop]:
    """Note the first signal instead of raising in the middle of something; a second one raises. Signals that nobody handles stay so."""
    stop = Stop()

    def note(number: int, frame: FrameType | None) -> None:
        if stop.signal is not None:
            leave(number)
        stop.signal = number

    with _handled(note):
        yield stop


@contextmanager
def _handled(handler: object, *also: object) -> Iterator[None]:
    """Have signals handled that a function handles already, or whose handling is one of `also`; in the main thread only, where Python can."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        found = {number: signal.getsignal(number) for number in STOPPING}
        before = {number: each for number, each in found.items() if callable(each) or each in also}
    for number in before:
        signal.signal(number, handler)  # type: ignore[arg-type]  # a handler of the two functions above
    try:
        yield
    finally:
        for number, each in before.items():
            signal.signal(number, each)


@contextmanager
def blocked() -> Iterator[None]:
    """Block both signals; processes that are started within the block never get them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
