"""Deadlines: checking them, what is left of one, and those for the first token and between tokens.

The deadline of the whole request belongs to the transport.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING

from trtbuild_client import defaults
from trtbuild_client.arguments import shown
from trtbuild_client.durations import LONGEST, LONGEST_S
from trtbuild_client.errors import DeadlineExceeded, InvalidRequest, Phase

if TYPE_CHECKING:
    from trtbuild_client.wire import WireRequest


def seconds(value: float | None, name: str) -> float | None:
    """Return a timeout in seconds, None meaning no limit.

    Raises:
        InvalidRequest: not a number above 0 and at most `durations.LONGEST_S`.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= LONGEST_S:
        raise InvalidRequest(
            f"{name}={shown(value)}",
            hint=f"It must be a number of seconds above 0 and at most {LONGEST_S:.0f} ({LONGEST}), or None for no limit.",
        )
    return float(value)


def connect_limit_s(connect_timeout_s: float, timeout_s: float | None) -> float:
    """Return the deadline of questions about the server: never longer than that of a whole answer."""
    limit_s = seconds(connect_timeout_s, "connect_timeout_s") or defaults.CONNECT_TIMEOUT_S
    return min(limit_s, timeout_s or limit_s)


def less(request: WireRequest, spent_s: float, address: str) -> WireRequest:
    """Return the request with the time that is left to it.

    Raises:
        DeadlineExceeded: none is left.
    """
    if request.timeout_s is None or spent_s <= 0.001:  # the first attempt has all of it
        return request
    if spent_s >= request.timeout_s:
        raise DeadlineExceeded(
            f"no answer from model '{request.model}' on {address} within {request.timeout_s:g} s, over several attempts",
            phase="total",
            timeout_s=request.timeout_s,
            hint="Raise the timeout, or look at the server's load.",
        )
    return replace(request, timeout_s=request.timeout_s - spent_s)


class Watchdog:
    """Cancels a call when no token arrives in time.

    One thread per watched request, and none when neither limit is given.

    Args:
        cancel: called once, from the watching thread, when a limit passes.
        first_token_s: seconds until the first token.
        between_tokens_s: seconds from one token to the next.

    Attributes:
        expired: the phase whose limit passed, None while none did.
    """

    def __init__(
        self, cancel: Callable[[], None], *, first_token_s: float | None, between_tokens_s: float | None
    ) -> None:
        self.expired: Phase | None = None
        self._cancel = cancel
        self._first_token_s = first_token_s
        self._between_tokens_s = between_tokens_s
        self._phase: Phase = "first_token"
        self._due_s = math.inf
        self._stopped = False
        self._changed = threading.Condition()

    def __enter__(self) -> Watchdog:
        if self._first_token_s is not None or self._between_tokens_s is not None:
            self._due_s = self._due_in(self._first_token_s)
            threading.Thread(target=self._watch, name="trtbuild-client-watchdog", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def token_arrived(self) -> None:
        """Start waiting for the next token."""
        with self._changed:
            previous_s, self._due_s = self._due_s, self._due_in(self._between_tokens_s)
            self._phase = "between_tokens"
            if self._due_s < previous_s:  # the thread sleeps for longer than is now allowed
                self._changed.notify()

    def pause(self) -> None:
        """Stop waiting until the next `token_arrived`."""
        with self._changed:
            self._due_s = math.inf

    @staticmethod
    def _due_in(limit_s: float | None) -> float:
        return math.inf if limit_s is None else time.monotonic() + limit_s

    def _watch(self) -> None:
        with self._changed:
            while not self._stopped:
                remaining_s = self._due_s - time.monotonic()
                if remaining_s <= 0:
                    self.expired = self._phase
                    break
                self._changed.wait(None if math.isinf(remaining_s) else remaining_s)
        if self.expired is not None:
            self._cancel()
