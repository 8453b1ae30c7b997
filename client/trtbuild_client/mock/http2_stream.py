"""One stream of an HTTP/2 connection as a gRPC server sees it: messages in, messages and trailers out, flow control."""

from __future__ import annotations

import struct
from array import array
from typing import Protocol

from trtbuild_client.hpack import Header, encode
from trtbuild_client.http2_frames import CANCEL, DATA, END_HEADERS, END_STREAM, HEADERS, RST_STREAM, frame

_PREFIX = struct.Struct(">BI")


class Carrier(Protocol):
    """What a stream needs of its connection; see `http2.Connection`."""

    window_bytes: int
    peer_window_bytes: int
    peer_frame_bytes: int
    streams: dict[int, Stream]
    stamps: list[tuple[array[int], int]]

    def write(self, data: bytes) -> None:
        """Write frames."""

    def drop(self) -> None:
        """Break the connection."""


class StreamHandler(Protocol):
    """What serves one stream."""

    def message(self, data: bytes) -> None:
        """Take one gRPC message."""

    def half_closed(self) -> None:
        """The peer will send no more."""

    def lost(self) -> None:
        """The peer gave the stream up, or the connection broke."""


class Stream:
    """One stream as a server sees it; everything is sent at once as far as the peer's windows allow.

    Attributes:
        headers: of the request.
        is_over: nothing can be sent any more.
    """

    def __init__(self, connection: Carrier, number: int, headers: dict[bytes, bytes]) -> None:
        self.headers = headers
        self.is_over = False
        self.handler: StreamHandler | None = None
        self.window_bytes = connection.peer_window_bytes
        self._connection = connection
        self._number = number
        self._has_headers = False
        self._received = bytearray()
        self._waiting = bytearray()
        self._trailers: list[Header] | None = None

    def send(self, *messages: bytes, stamps: array[int] | None = None) -> None:
        """Send messages, each framed as gRPC wants it.

        Args:
            stamps: gets the time of writing, nanoseconds of `time.monotonic_ns`, once for each message.
        """
        if self.is_over:
            return
        if stamps is not None:
            self._connection.stamps.append((stamps, len(messages)))
        self._waiting += b"".join(part for each in messages for part in (_PREFIX.pack(0, len(each)), each))
        self.flush()

    def finish(self, trailers: list[Header]) -> None:
        """Send what still waits, then the trailers; this ends the stream."""
        if self.is_over:
            return
        self._trailers = trailers
        self.flush()

    def reset(self) -> None:
        """End the stream as a failure of the transport."""
        if not self.is_over:
            self._over()
            self._connection.write(frame(RST_STREAM, 0, self._number, struct.pack(">I", CANCEL)))

    def drop_connection(self) -> None:
        """Break the TCP connection under it, with everything that runs on it."""
        self._connection.drop()

    def flush(self) -> None:
        """Send as much as the windows allow."""
        connection = self._connection
        frames = [] if self._has_headers else [self._head()]
        while self._waiting:
            size = min(len(self._waiting), self.window_bytes, connection.window_bytes, connection.peer_frame_bytes)
            if size <= 0:
                break
            frames.append(frame(DATA, 0, self._number, self._waiting[:size]))
            del self._waiting[:size]
            self.window_bytes -= size
            connection.window_bytes -= size
        if not self._waiting and self._trailers is not None:
            frames.append(frame(HEADERS, END_HEADERS | END_STREAM, self._number, encode(self._trailers)))
            self._over()
        if frames:
            connection.write(b"".join(frames))

    def flush_waiting(self) -> None:
        """Go on with what a window held up."""
        if self._waiting:
            self.flush()

    def receive(self, data: bytes, *, is_last: bool) -> None:
        """Take a piece of the request's body."""
        self._received += data
        while len(self._received) >= _PREFIX.size and self.handler is not None:
            _, length = _PREFIX.unpack_from(self._received)
            end = _PREFIX.size + length
            if len(self._received) < end:
                break
            message = bytes(self._received[_PREFIX.size : end])
            del self._received[:end]
            self.handler.message(message)
        if is_last and self.handler is not None:
            self.handler.half_closed()

    def lost(self) -> None:
        """Note that the peer is gone."""
        if not self.is_over:
            self._over()
            if self.handler is not None:
                self.handler.lost()

    def _head(self) -> bytes:
        self._has_headers = True
        headers: list[Header] = [(b":status", b"200"), (b"content-type", b"application/grpc")]
        return frame(HEADERS, END_HEADERS, self._number, encode(headers))

    def _over(self) -> None:
        self.is_over = True
        self._connection.streams.pop(self._number, None)
