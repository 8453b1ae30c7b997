"""One stream of a connection that a client opened, and who takes what comes on it."""

from __future__ import annotations

from typing import Protocol

from trtbuild_client.load.outcomes import Outcome


class Handler(Protocol):
    """Takes what comes on one stream."""

    def message(self, data: bytes, start: int, end: int, now_ns: int) -> None:
        """Take data[start:end], one whole gRPC message."""

    def trailers(self, status: int, text: str, now_ns: int) -> None:
        """Take the gRPC status that ends the stream; nothing follows."""

    def broken(self, outcome: Outcome, now_ns: int, text: str, code: int) -> None:
        """Take the end of a stream that has no status; nothing follows."""


class Stream:
    """One request and its answer.

    Attributes:
        window: bytes that may be sent now.
        rest: the beginning of a message whose end has not come.
    """

    __slots__ = ("handler", "http_status", "number", "received", "rest", "unsent", "window")

    def __init__(self, number: int, handler: Handler, window: int) -> None:
        self.number = number
        self.handler = handler
        self.window = window
        self.rest = b""
        self.unsent = b""
        self.received = 0
        self.http_status = 0


def percent_decoded(text: bytes) -> str:
    """Return a grpc-message as text (gRPC over HTTP/2, "Responses": percent-encoded UTF-8)."""
    from urllib.parse import unquote_to_bytes

    return unquote_to_bytes(text).decode("utf-8", "replace")
