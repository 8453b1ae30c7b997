"""HTTP/2 (RFC 9113) and gRPC's messages in it, for a client: frames, flow control, pings, resets, trailers. Bytes in, bytes out; no socket.

What is read in the hot path is laid out for few Python operations per message: frames are read where they lie, and a DATA frame that
holds whole messages is handed on without a copy. Windows are opened as far as the protocol allows, so that no window update is needed
for each message.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable

from trtbuild_client.hpack import Decoder, Header, HpackError, encode
from trtbuild_client.http2_frames import (
    ACK,
    CANCEL,
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW_BYTES,
    ENABLE_PUSH,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_BYTES,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    PADDED,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)
from trtbuild_client.load.http2_stream import Handler, Stream, percent_decoded
from trtbuild_client.load.outcomes import Outcome

_MESSAGE = struct.Struct(">BI")  # gRPC: compressed, length
_SETTING = struct.Struct(">HI")
_U32 = struct.Struct(">I")
_WINDOW = 2**31 - 1
#: When so much has come, the window is opened again.
_REFILL_BYTES = 2**29
#: A longer message is not waited for: it would fill the memory.
_MAX_MESSAGE_BYTES = 2**26
_HIGH_BIT = 0x7FFFFFFF


class Http2:
    """The state of one connection.

    Args:
        authority: host:port as the server is to see it.
        metadata: further headers of every call, names in lower case.

    Attributes:
        out: bytes to be written to the socket.
        streams: those that have not ended.
        is_going_away: the server takes no new streams.
        error: why the connection cannot be used any more.
    """

    def __init__(self, authority: str, metadata: Iterable[tuple[str, str]] = ()) -> None:
        self.out: deque[bytes] = deque()
        self.streams: dict[int, Stream] = {}
        self.is_going_away = False
        self.error: str | None = None
        self.max_streams = 100
        self._authority = authority.encode()
        self._metadata = [(name.encode(), value.encode()) for name, value in metadata]
        self._blocks: dict[str, bytes] = {}
        self._decoder = Decoder()
        self._next = 1
        self._rest = b""
        self._is_greeted = False
        self._received = 0
        self._send_window = DEFAULT_WINDOW_BYTES
        self._peer_window = DEFAULT_WINDOW_BYTES
        self._peer_frame = MAX_FRAME_BYTES
        self._blocked: deque[Stream] = deque()
        self._open_block: tuple[int, int, bytes] | None = None  # stream, flags, fragments of a block that goes on
        settings = b"".join(
            _SETTING.pack(*pair)
            for pair in ((ENABLE_PUSH, 0), (INITIAL_WINDOW_SIZE, _WINDOW), (MAX_HEADER_LIST_SIZE, 65536))
        )
        self.out.append(PREFACE + frame(SETTINGS, 0, 0, settings))
        self.out.append(frame(WINDOW_UPDATE, 0, 0, _U32.pack(_WINDOW - DEFAULT_WINDOW_BYTES)))

    def start(self, path: str, message: bytes, handler: Handler, timeout_s: float | None) -> Stream:
        """Begin a call with one message and close our side; what is to be written is in `out`."""
        stream = Stream(self._next, handler, self._peer_window)
        self._next += 2
        self.streams[stream.number] = stream
        key = f"{path} {timeout_s}"
        block = self._blocks.get(key)
        if block is None:
            block = self._blocks[key] = encode(self._headers(path, timeout_s))
        head = frame(HEADERS, END_HEADERS, stream.number, block)
        body = _MESSAGE.pack(0, len(message)) + message
        if len(body) <= self._peer_frame and len(body) <= stream.window and len(body) <= self._send_window:
            stream.window -= len(body)
            self._send_window -= len(body)
            self.out.append(head + frame(DATA, END_STREAM, stream.number, body))
        else:
            self.out.append(head)
            stream.unsent = body
            self._blocked.append(stream)
            self._flush_blocked()
        return stream

    def reset(self, stream: Stream, code: int = CANCEL) -> None:
        """Give a stream up."""
        if self.streams.pop(stream.number, None) is not None:
            self.out.append(frame(RST_STREAM, 0, stream.number, _U32.pack(code)))

    def receive(self, data: bytes, now_ns: int) -> None:
        """Take what came from the socket; handlers are called."""
        if self._rest:
            data = self._rest + data
        if not self._is_greeted and not self._take_greeting(data, now_ns):
            return
        position, size = 0, len(data)
        unpack = FRAME_HEADER.unpack_from
        streams = self.streams
        while size - position >= 9:
            high, low, kind, flags, number = unpack(data, position)
            start = position + 9
            end = start + (high << 8 | low)
            if end > size:
                if end - start > MAX_FRAME_BYTES:
                    self._fail(f"a frame of {end - start} bytes, allowed are {MAX_FRAME_BYTES}", now_ns)
                    return
                break
            position = end
            if kind == DATA and self._open_block is None:
                length = end - start
                self._received += length
                stream = streams.get(number)
                if stream is not None:
                    if flags & PADDED:
                        end -= data[start]
                        start += 1
                        if end < start:
                            self._fail("padding longer than its frame", now_ns)
                            return
                    stream.received += length
                    # the usual case, inlined: one whole message, nothing left over
                    if not stream.rest and end - start >= 5:
                        compressed, message_bytes = _MESSAGE.unpack_from(data, start)
                        if not compressed and start + 5 + message_bytes == end:
                            stream.handler.message(data, start + 5, end, now_ns)
                            start = end
                    if start < end:
                        self._messages(stream, data, start, end, now_ns)
                    if flags & END_STREAM and streams.pop(number, None) is not None:
                        stream.handler.broken(
                            Outcome.PROTOCOL_ERROR, now_ns, "the stream ended without a gRPC status", 0
                        )
                    if stream.received >= _REFILL_BYTES:
                        self.out.append(frame(WINDOW_UPDATE, 0, number, _U32.pack(stream.received)))
                        stream.received = 0
                if self._received >= _REFILL_BYTES:
                    self.out.append(frame(WINDOW_UPDATE, 0, 0, _U32.pack(self._received)))
                    self._received = 0
            else:
                self._control(kind, flags, number & _HIGH_BIT, data[start:end], now_ns)
            if self.error is not None:
                return
        self._rest = data[position:] if position < size else b""

    def close(self, now_ns: int, text: str, outcome: Outcome = Outcome.CONNECTION_LOST) -> None:
        """End all streams: the connection is gone."""
        self.error = self.error or text
        streams, self.streams = list(self.streams.values()), {}
        for stream in streams:
            stream.handler.broken(outcome, now_ns, text, 0)

    def _headers(self, path: str, timeout_s: float | None) -> list[Header]:
        headers = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path.encode()),
            (b":authority", self._authority),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"user-agent", b"trtbuild"),
            (b"grpc-accept-encoding", b"identity"),
            *self._metadata,
        ]
        if timeout_s is not None:
            headers.append((b"grpc-timeout", _grpc_timeout(timeout_s)))
        return headers

    def _take_greeting(self, data: bytes, now_ns: int) -> bool:
        """Say whether the server has begun as RFC 9113, section 3.4, has it: with a SETTINGS frame."""
        if len(data) < FRAME_HEADER.size:
            self._rest = data
            return False
        self._is_greeted = data[3] == SETTINGS and data[5:9] == b"\0\0\0\0"
        if not self._is_greeted:
            self._fail(f"the server does not speak gRPC (HTTP/2), its first bytes are {data[:24]!r}", now_ns)
        return self._is_greeted

    def _messages(self, stream: Stream, data: bytes, start: int, end: int, now_ns: int) -> None:
        """Hand on the messages of a DATA frame; the beginning of another one is kept."""
        if stream.rest:
            data = stream.rest + data[start:end]
            start, end = 0, len(data)
        while end - start >= 5 and stream.number in self.streams:
            compressed, length = _MESSAGE.unpack_from(data, start)
            if compressed:
                self._give_up(stream, "a compressed message, which was not asked for", now_ns)
                return
            if start + 5 + length > end:
                if length > _MAX_MESSAGE_BYTES:
                    self._give_up(stream, f"a message of {length} bytes, allowed are {_MAX_MESSAGE_BYTES}", now_ns)
                    return
                break
            stream.handler.message(data, start + 5, start + 5 + length, now_ns)
            start += 5 + length
        stream.rest = data[start:end] if start < end else b""

    def _give_up(self, stream: Stream, text: str, now_ns: int) -> None:
        self.reset(stream)
        stream.handler.broken(Outcome.PROTOCOL_ERROR, now_ns, text, 0)

    def _fail(self, text: str, now_ns: int) -> None:
        self.out.append(frame(GOAWAY, 0, 0, _U32.pack(0) + _U32.pack(1)))
        self.close(now_ns, text, Outcome.PROTOCOL_ERROR)

    def _control(self, kind: int, flags: int, number: int, payload: bytes, now_ns: int) -> None:
        if self._open_block is not None and (kind != CONTINUATION or self._open_block[0] != number):
            self._fail("a frame within a header block", now_ns)
            return
        try:
            action = _ACTIONS.get(kind)
            if action is not None:  # unknown kinds are ignored, RFC 9113 section 5.5
                action(self, flags, number, payload, now_ns)
        except (HpackError, struct.error, IndexError) as error:
            self._fail(f"frame of type {kind}: {error}", now_ns)

    def _on_headers(self, flags: int, number: int, payload: bytes, now_ns: int) -> None:
        if flags & PADDED:
            payload = payload[1 : len(payload) - payload[0]]
        if flags & HAS_PRIORITY:
            payload = payload[5:]
        self._on_block(flags, number, payload, now_ns)

    def _on_continuation(self, flags: int, number: int, payload: bytes, now_ns: int) -> None:
        if self._open_block is None:
            self._fail("a continuation of nothing", now_ns)
            return
        _, first_flags, begun = self._open_block
        self._open_block = None
        self._on_block(flags & END_HEADERS | first_flags & END_STREAM, number, begun + payload, now_ns)

    def _on_block(self, flags: int, number: int, block: bytes, now_ns: int) -> None:
        if not flags & END_HEADERS:
            self._open_block = number, flags, block
            return
        headers = dict(self._decoder.decode(block))  # also of a stream that is gone: the table is shared
        stream = self.streams.get(number)
        if stream is None:
            return
        if b":status" in headers:
            stream.http_status = _digits(headers[b":status"]) or 0
        if flags & END_STREAM:
            del self.streams[number]
            self._end(stream, headers, now_ns)

    def _end(self, stream: Stream, headers: dict[bytes, bytes], now_ns: int) -> None:
        status = _digits(headers.get(b"grpc-status", b""))
        if status is None:
            http = stream.http_status
            outcome = Outcome.PROTOCOL_ERROR if http == 200 else Outcome.HTTP_STATUS
            stream.handler.broken(outcome, now_ns, f"HTTP status {http}, no gRPC status", http)
            return
        text = percent_decoded(headers.get(b"grpc-message", b""))
        if not status and stream.rest:
            stream.handler.broken(Outcome.PROTOCOL_ERROR, now_ns, "the stream ended within a message", 0)
            return
        stream.handler.trailers(status, text, now_ns)

    def _on_reset(self, flags: int, number: int, payload: bytes, now_ns: int) -> None:
        code = int(_U32.unpack(payload)[0])
        stream = self.streams.pop(number, None)
        if stream is not None:
            stream.handler.broken(
                Outcome.STREAM_RESET, now_ns, f"the server reset the stream (HTTP/2 error {code})", code
            )

    def _on_settings(self, flags: int, number: int, payload: bytes, now_ns: int) -> None:
        if flags & ACK:
            return
        for name, value in _SETTING.iter_unpack(payload):
            if name == INITIAL_WINDOW_SIZE:
                for stream in self.streams.values():
                    stream.window += value - self._peer_window
                self._peer_window = value
            elif name == MAX_FRAME_SIZE:
                self._peer_frame = value
            elif name == 3:
                self.max_streams = value
        self.out.append(frame(SETTINGS, ACK, 0, b""))
        self._flush_blocked()

    def _on_ping(self, flags: int, number: int, payload: bytes, now_ns: int) -> None:
        if not flags & ACK:
            self.out.append(frame(PING, ACK, 0, payload))

    def _on_goaway(self, flags: int, number: int, payload: bytes, now_ns: int) -> None:
        last, code = struct.unpack_from(">II", payload)
        self.is_going_away = True
        text = payload[8:].decode("utf-8", "replace")
        for stream in [each for each in self.streams.values() if each.number > last & _HIGH_BIT]:
            del self.streams[stream.number]
            stream.handler.broken(
                Outcome.SERVER_GOING_AWAY,
                now_ns,
                f"the server is going away (HTTP/2 error {code}) {text}".strip(),
                code,
            )

    def _on_window(self, flags: int, number: int, payload: bytes, now_ns: int) -> None:
        increment = _U32.unpack(payload)[0] & _HIGH_BIT
        if number == 0:
            self._send_window += increment
        elif number in self.streams:
            self.streams[number].window += increment
        self._flush_blocked()

    def _flush_blocked(self) -> None:
        """Send as much of what waits as the windows allow."""
        for _ in range(len(self._blocked)):
            stream = self._blocked.popleft()
            if stream.number not in self.streams:
                continue
            while stream.unsent:
                size = min(len(stream.unsent), self._peer_frame, stream.window, self._send_window)
                if size <= 0:
                    self._blocked.append(stream)
                    break
                piece, stream.unsent = stream.unsent[:size], stream.unsent[size:]
                stream.window -= size
                self._send_window -= size
                self.out.append(frame(DATA, 0 if stream.unsent else END_STREAM, stream.number, piece))


_ACTIONS = {
    HEADERS: Http2._on_headers,
    RST_STREAM: Http2._on_reset,
    SETTINGS: Http2._on_settings,
    PING: Http2._on_ping,
    GOAWAY: Http2._on_goaway,
    WINDOW_UPDATE: Http2._on_window,
    CONTINUATION: Http2._on_continuation,
}


def _digits(text: bytes) -> int | None:
    """Return the status that a header says, None where it is no number of nine digits at most."""
    return int(text) if text.isdigit() and len(text) <= 9 else None


def _grpc_timeout(timeout_s: float) -> bytes:
    """Return a timeout as gRPC writes it: at most 8 digits, and a unit (gRPC over HTTP2, "Timeout")."""
    milliseconds = max(1, round(timeout_s * 1000))
    return b"%dm" % milliseconds if milliseconds <= 99_999_999 else b"%dS" % round(timeout_s)
