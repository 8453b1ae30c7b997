"""Frames of HTTP/2 (RFC 9113) and one stream of them: what `http2` is made of."""

from __future__ import annotations

import struct
from typing import Protocol

from trtbuild_client.load.outcomes import Outcome

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS, PADDED, HAS_PRIORITY, ACK = 0x1, 0x4, 0x8, 0x20, 0x1
FRAME_HEADER = struct.Struct(">HBBBI")  # length (16 + 8 bits), type, flags, stream


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


def frame(kind: int, flags: int, number: int, payload: bytes) -> bytes:
    """Return one frame."""
    return FRAME_HEADER.pack(len(payload) >> 8, len(payload) & 0xFF, kind, flags, number) + payload


def percent_decoded(text: bytes) -> str:
    """Return a grpc-message as text (gRPC over HTTP/2, "Responses": percent-encoded UTF-8)."""
    from urllib.parse import unquote_to_bytes

    return unquote_to_bytes(text).decode("utf-8", "replace")
