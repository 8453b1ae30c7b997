"""HTTP/2 (RFC 9113) for a gRPC server in one event loop: frames, flow control, streams. Knows no gRPC method and no Triton.

Written for the mock server, since a benchmark of clients on one machine must not be limited by its server: a message costs
one write of one buffer, and what is sent together leaves together.
"""

from __future__ import annotations

import asyncio
import struct
import time
from array import array
from collections.abc import Callable

from trtbuild_client.hpack import Decoder, HpackError
from trtbuild_client.http2_frames import (
    ACK,
    COMPRESSION_ERROR,
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW_BYTES,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_BYTES,
    MAX_FRAME_SIZE,
    NO_ERROR,
    PADDED,
    PING,
    PREFACE,
    PROTOCOL_ERROR,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)
from trtbuild_client.mock.http2_stream import Stream, StreamHandler

#: What a peer may send before we confirm: large, so that requests are never held up.
_OUR_WINDOW_BYTES = 2**30


class Connection(asyncio.Protocol):
    """One client's connection.

    Args:
        open_stream: returns what serves a new stream.
        on_lost: called once when the connection is gone.

    Attributes:
        window_bytes: what the peer will take on this connection now.
        peer_window_bytes: what it takes on a new stream.
        peer_frame_bytes: the longest frame it takes.
        stamps: where the time of the next write is to be noted, and how often.
    """

    def __init__(
        self, open_stream: Callable[[Stream], StreamHandler], on_lost: Callable[[Connection], None] = lambda _: None
    ) -> None:
        self.window_bytes = self.peer_window_bytes = DEFAULT_WINDOW_BYTES
        self.peer_frame_bytes = MAX_FRAME_BYTES
        self.streams: dict[int, Stream] = {}
        self._open_stream = open_stream
        self._on_lost = on_lost
        self._decoder = Decoder()
        self._buffer = bytearray()
        self._has_preface = False
        self._block: tuple[int, int, bytearray] | None = None
        self._received_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self.stamps: list[tuple[array[int], int]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet the client."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        settings = struct.pack(">HI", INITIAL_WINDOW_SIZE, _OUR_WINDOW_BYTES)
        more = struct.pack(">I", _OUR_WINDOW_BYTES - DEFAULT_WINDOW_BYTES)
        self.write(frame(SETTINGS, 0, 0, settings) + frame(WINDOW_UPDATE, 0, 0, more))

    def connection_lost(self, error: Exception | None) -> None:
        """End the streams that ran on it."""
        self._transport = None
        for stream in list(self.streams.values()):
            stream.lost()
        self._on_lost(self)

    def write(self, data: bytes) -> None:
        """Write frames; nothing happens after the connection is gone.

        What is written in one round of the event loop leaves together: a system call costs more than all the rest.
        """
        if self._transport is None or self._transport.is_closing():
            return
        if not self._out:
            asyncio.get_running_loop().call_soon(self._write_out)
        self._out.append(data)

    def _write_out(self) -> None:
        now_ns = time.monotonic_ns()
        for stamps, number in self.stamps:
            stamps.extend([now_ns] * number)
        self.stamps.clear()
        if self._transport is not None and self._out:
            self._transport.write(b"".join(self._out))
        self._out.clear()

    def drop(self) -> None:
        """Break the connection after what was written."""
        if self._transport is not None:
            self._write_out()
            self._transport.abort()

    def close(self) -> None:
        """Tell the client to go, and close."""
        if self._transport is not None:
            self.write(frame(GOAWAY, 0, 0, struct.pack(">II", 2**31 - 1, NO_ERROR)))
            self._write_out()
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Take bytes as they come, and act on every frame that is complete."""
        buffer = self._buffer
        buffer += data
        if not self._has_preface:
            if len(buffer) < len(PREFACE) and PREFACE.startswith(buffer):
                return
            if not buffer.startswith(PREFACE):
                self.drop()
                return
            del buffer[: len(PREFACE)]
            self._has_preface = True
        at = 0
        while len(buffer) - at >= FRAME_HEADER.size:
            end = at + FRAME_HEADER.size + int.from_bytes(buffer[at : at + 3], "big")
            if len(buffer) < end:
                break
            number = int.from_bytes(buffer[at + 5 : at + FRAME_HEADER.size], "big") & 0x7FFFFFFF
            try:
                self._frame(buffer[at + 3], buffer[at + 4], number, bytes(buffer[at + FRAME_HEADER.size : end]))
            except (HpackError, struct.error, IndexError) as error:
                code = COMPRESSION_ERROR if isinstance(error, HpackError) else PROTOCOL_ERROR
                self.write(frame(GOAWAY, 0, 0, struct.pack(">II", 0, code)))
                self.drop()
                return
            at = end
        del buffer[:at]

    def _frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        stream = self.streams.get(number)
        if kind == DATA:
            self._confirm(len(payload))
            if stream is not None:
                stream.receive(_unpadded(payload, flags), is_last=bool(flags & END_STREAM))
        elif kind == HEADERS:
            block = _unpadded(payload, flags)[5 if flags & HAS_PRIORITY else 0 :]
            self._headers(number, flags, bytearray(block), is_complete=bool(flags & END_HEADERS))
        elif kind == CONTINUATION and self._block is not None:
            number, first_flags, whole = self._block
            self._headers(number, first_flags, whole + payload, is_complete=bool(flags & END_HEADERS))
        elif kind == WINDOW_UPDATE:
            self._widen(stream, number, struct.unpack(">I", payload)[0] & 0x7FFFFFFF)
        elif kind == RST_STREAM and stream is not None:
            stream.lost()
        elif kind == PING and not flags & ACK:
            self.write(frame(PING, ACK, 0, payload))
        elif kind == SETTINGS and not flags & ACK:
            self._settings(payload)

    def _headers(self, number: int, flags: int, block: bytearray, *, is_complete: bool) -> None:
        self._block = None if is_complete else (number, flags, block)
        if not is_complete:
            return
        headers = dict(self._decoder.decode(bytes(block)))
        stream = self.streams.get(number)
        if stream is None:
            stream = self.streams[number] = Stream(self, number, headers)
            stream.handler = self._open_stream(stream)
        if flags & END_STREAM:
            stream.receive(b"", is_last=True)

    def _settings(self, payload: bytes) -> None:
        for setting, value in struct.iter_unpack(">HI", payload):
            if setting == INITIAL_WINDOW_SIZE:
                for stream in self.streams.values():
                    stream.window_bytes += value - self.peer_window_bytes
                self.peer_window_bytes = value
            elif setting == MAX_FRAME_SIZE:
                self.peer_frame_bytes = value
        self.write(frame(SETTINGS, ACK, 0, b""))
        self._flush()

    def _widen(self, stream: Stream | None, number: int, size_bytes: int) -> None:
        if number == 0:
            self.window_bytes += size_bytes
            self._flush()
        elif stream is not None:
            stream.window_bytes += size_bytes
            stream.flush_waiting()

    def _flush(self) -> None:
        for stream in list(self.streams.values()):
            stream.flush_waiting()

    def _confirm(self, size_bytes: int) -> None:
        """Give the peer back the room that its requests took, now and then."""
        self._received_bytes += size_bytes
        if self._received_bytes > _OUR_WINDOW_BYTES // 4:
            self.write(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._received_bytes)))
            self._received_bytes = 0


def _unpadded(payload: bytes, flags: int) -> bytes:
    return payload[1 : len(payload) - payload[0]] if flags & PADDED else payload
