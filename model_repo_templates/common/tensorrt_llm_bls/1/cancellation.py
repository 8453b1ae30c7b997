"""Passing the cancellation of a request on to the request that is made for it inside the server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Watch:
    """One request that is being served.

    Attributes:
        is_cancelled: the client has given up; set by the watcher.
        is_stopped: nobody wants more of the answer.
        running: model and id of the inner request that could be stopped; None between two.
    """

    def __init__(self, sender: Any, inner_id: str) -> None:
        self.sender = sender
        self.inner_id = inner_id
        self.is_cancelled = self.is_stopped = False
        self.running: tuple[str, str] | None = None
        self._steps = 0

    def begin(self, model: str) -> str:
        """Return an id for the next inner request, which goes to that model."""
        self._steps += 1
        self.running = (model, f"{self.inner_id}.{self._steps}")
        return self.running[1]


class CancellationWatcher:
    """A thread that looks whether the client of the running request is gone and then stops the inner request.

    It exists because the serving thread waits inside Triton for the next token, which may take long: in a queue, in a
    long prompt, or when the whole answer comes at once. A stop is repeated until the request has ended, since one that
    overtakes the start of its request is without effect.

    Args:
        stop: stops the inner request of a watched one.
        period_seconds: how often to look.
    """

    def __init__(self, stop: Callable[[Watch], None], *, period_seconds: float) -> None:
        self._stop = stop
        self._period_seconds = period_seconds
        self._changed = threading.Condition()
        self._watch: Watch | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="cancellation", daemon=True)
        self._thread.start()

    @contextmanager
    def watching(self, sender: Any, inner_id: str) -> Iterator[Watch]:
        """Watch a request while the block runs; once it has ended no stop is sent for it."""
        watch = Watch(sender, inner_id)
        with self._changed:
            self._watch = watch
            self._changed.notify()
        try:
            yield watch
        finally:
            with self._changed:
                self._watch = None

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        with self._changed:
            while not self._is_closed:
                self._changed.wait(timeout=None if self._watch is None else self._period_seconds)
                if self._watch is not None and self._watch.sender.is_cancelled():
                    self._watch.is_cancelled = True
                    self._stop(self._watch)
