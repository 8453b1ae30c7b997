"""Deadlines for the first token and between tokens. The deadline of the whole request belongs to the transport."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from types import TracebackType

from trtbuild_client.errors import InvalidRequest, Phase


def seconds(value: float | None, name: str) -> float | None:
    """Return a timeout in seconds, None meaning no limit.

    Raises:
        InvalidRequest: not a finite number above 0.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise InvalidRequest(f"{name}={value!r}", hint="It must be a number of seconds above 0, or None for no limit.")
    return float(value)


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
