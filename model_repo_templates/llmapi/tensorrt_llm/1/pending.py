"""One request that Triton waits for: its response sender, and how it ends."""

from __future__ import annotations

import threading
from typing import Any

import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class Pending:
    """A request without its final response.

    A decoupled request ends with an empty final response, or with an error that is final; one that is not decoupled has a single response,
    which is the final one.

    Args:
        request: Triton's request.
        is_decoupled: whether there may be any number of responses.

    Attributes:
        request_id: the client's name for it, may be empty.
    """

    def __init__(self, request: Any, *, is_decoupled: bool) -> None:
        self._sender = request.get_response_sender()
        self.request_id = str(request.request_id())
        self._is_decoupled = is_decoupled
        self._lock = threading.Lock()

    def send(self, outputs: dict[str, Any]) -> None:
        """Send one response, the only one if the request is not decoupled."""
        response = pb_utils.InferenceResponse(
            output_tensors=[pb_utils.Tensor(name, values) for name, values in outputs.items()]
        )
        if not self._is_decoupled:
            self._close(response)
            return
        with self._lock:
            if self._sender is not None:
                self._sender.send(response)

    def finish(self) -> None:
        """End the request well; does nothing when it is over."""
        self._close(None if self._is_decoupled else pb_utils.InferenceResponse(output_tensors=[]))

    def fail(self, response: Any) -> None:
        """End the request with an error response; does nothing when it is over."""
        self._close(response)

    def cancel(self) -> None:
        """End the request as cancelled; does nothing when it is over."""
        error = pb_utils.TritonError("the request was cancelled", pb_utils.TritonError.CANCELLED)
        self._close(pb_utils.InferenceResponse(error=error))

    def is_abandoned(self) -> bool:
        """Return whether the client has gone.

        The lock is held while Triton is asked: a server of version 2.51 that is asked about a request whose final response it has just sent
        reads freed memory and dies.
        """
        with self._lock:
            return self._sender is not None and bool(self._sender.is_cancelled())

    def _close(self, response: Any) -> None:
        """Send the final response. The sender is given up at once: left to the garbage collector, it can block a shutdown."""
        with self._lock:
            sender, self._sender = self._sender, None
            if sender is None:
                return
            if response is None:
                sender.send(flags=FINAL)
            else:
                sender.send(response, flags=FINAL)
