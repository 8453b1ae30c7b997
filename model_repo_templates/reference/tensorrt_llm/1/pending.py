"""Requests that Triton waits for: their response senders, their rows in the engine, and how they end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from trtbuild.reference.base import BaseEngine
from trtbuild.reference.sequence import Sequence

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class Pending:
    """One request of Triton: one or more rows that answer through the same sender.

    A decoupled request ends with an empty final response, or with an error that is final; one that is not decoupled has
    a single response, which is the final one.

    Args:
        sender: Triton's response sender.
        request_id: the client's name for it, may be empty.
        is_decoupled: whether there may be any number of responses.
        on_row_done: called with the sequence of every row that has ended.
        on_close: called once, when the last response is out.
    """

    def __init__(
        self,
        sender: Any,
        request_id: str,
        *,
        is_decoupled: bool,
        on_row_done: Callable[[Sequence], None],
        on_close: Callable[[Pending], None],
    ) -> None:
        self._sender = sender
        self.request_id = request_id
        self._sequences: list[Sequence] = []
        self._is_decoupled = is_decoupled
        self._on_row_done, self._on_close = on_row_done, on_close
        self._open_rows = 1
        self._is_abandoned = False
        self._lock = threading.Lock()

    def expect(self, rows: int) -> None:
        """Say how many rows will answer, before any does."""
        self._open_rows = rows

    def watch(self, sequence: Sequence) -> None:
        """Remember a row, so that it can be cancelled."""
        with self._lock:
            if self._sender is not None:
                self._sequences.append(sequence)

    @property
    def sequences(self) -> list[Sequence]:
        """The rows that can be cancelled; none when the request is closed."""
        with self._lock:
            return list(self._sequences)

    def send(self, outputs: dict[str, np.ndarray[Any, Any]]) -> None:
        """Send one response; nobody reads it when the client has left."""
        if self._is_abandoned:
            return
        response = pb_utils.InferenceResponse(
            output_tensors=[pb_utils.Tensor(name, values) for name, values in outputs.items()]
        )
        if self._is_decoupled:
            self._sender.send(response)
        else:
            self._close(response)

    def finish_row(self, sequence: Sequence, error: str | None) -> None:
        """Take note that a row is done; the last one ends the request."""
        self._on_row_done(sequence)
        failure = None
        if self._is_abandoned:
            failure = pb_utils.TritonError("the client cancelled the request", pb_utils.TritonError.CANCELLED)
        elif error is not None:
            failure = pb_utils.TritonError(error, pb_utils.TritonError.INTERNAL)
        response = None if failure is None else pb_utils.InferenceResponse(error=failure)
        with self._lock:
            self._open_rows -= 1
            is_last = self._open_rows == 0
        if is_last:
            self._close(response)
        elif response is not None:
            self._sender.send(response)

    def fail(self, error: Any) -> None:
        """End the request with an error; for requests none of whose rows was accepted."""
        self._close(pb_utils.InferenceResponse(error=error))

    def acknowledge(self) -> None:
        """End a request that has no answer."""
        self._close(None if self._is_decoupled else pb_utils.InferenceResponse(output_tensors=[]))

    def is_abandoned_by_client(self) -> bool:
        """Return whether the client has cancelled the request, and stop sending if so.

        The lock is held while Triton is asked: a server of version 2.51 that is asked about a request whose final
        response it has just sent reads freed memory and dies.
        """
        with self._lock:
            if self._sender is not None and self._sender.is_cancelled():
                self._is_abandoned = True
            return self._is_abandoned

    def _close(self, response: Any) -> None:
        """Send the final response, empty or not; does nothing when the request is closed.

        The sender is given up at once: left to the garbage collector, it can block the server's shutdown.
        """
        with self._lock:
            sender, self._sender = self._sender, None
            self._sequences.clear()
        if sender is None:
            return
        if response is None:
            sender.send(flags=FINAL)
        else:
            sender.send(response, flags=FINAL)
        self._on_close(self)


class PendingRequests:
    """All requests that are not answered completely.

    Args:
        engine: where their rows run.
        is_decoupled: see `Pending`.
        on_row_done: see `Pending`.
    """

    def __init__(self, engine: BaseEngine, *, is_decoupled: bool, on_row_done: Callable[[Sequence], None]) -> None:
        self._engine, self._is_decoupled, self._on_row_done = engine, is_decoupled, on_row_done
        self._all: dict[int, Pending] = {}
        self._lock = threading.Lock()

    def open(self, request: Any) -> Pending:
        """Return the pending request that answers a request of Triton."""
        pending = Pending(
            request.get_response_sender(),
            request.request_id(),
            is_decoupled=self._is_decoupled,
            on_row_done=self._on_row_done,
            on_close=self._forget,
        )
        with self._lock:
            self._all[id(pending)] = pending
        return pending

    def stop(self, request_id: str, *, besides: Pending) -> None:
        """End the running requests of that name as if their answers were complete; none may be left, which is fine."""
        for pending in self._snapshot():
            if pending.request_id == request_id and pending is not besides:
                self._cancel(pending)

    def cancel_abandoned(self) -> None:
        """Cancel the requests whose clients have gone."""
        for pending in self._snapshot():
            if pending.is_abandoned_by_client():
                self._cancel(pending)

    def _cancel(self, pending: Pending) -> None:
        for sequence in pending.sequences:
            self._engine.cancel(sequence)

    def _snapshot(self) -> list[Pending]:
        with self._lock:
            return list(self._all.values())

    def _forget(self, pending: Pending) -> None:
        with self._lock:
            self._all.pop(id(pending), None)
