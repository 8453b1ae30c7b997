"""HTTP/2 as a client sees it: the bytes of a server, whole and cut at every place."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from trtbuild_client.hpack import encode
from trtbuild_client.http2_frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)
from trtbuild_client.load.http2 import Http2
from trtbuild_client.load.outcomes import Outcome

_HEAD = encode([(b":status", b"200"), (b"content-type", b"application/grpc")])
_OK = encode([(b"grpc-status", b"0")])


class Seen:
    """Keeps what a stream said."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.status: tuple[int, str] | None = None
        self.failure: tuple[Outcome, str, int] | None = None

    def message(self, data: bytes, start: int, end: int, now_ns: int) -> None:
        self.messages.append(data[start:end])

    def trailers(self, status: int, text: str, now_ns: int) -> None:
        self.status = status, text

    def broken(self, outcome: Outcome, now_ns: int, text: str, code: int) -> None:
        self.failure = outcome, text, code


def message(payload: bytes) -> bytes:
    return struct.pack(">BI", 0, len(payload)) + payload


def begun(payload: bytes = b"request") -> tuple[Http2, Seen, int]:
    """Return a connection with one call, the settings of the server taken."""
    http, seen = Http2("host:1"), Seen()
    http.receive(frame(SETTINGS, 0, 0, b""), 0)
    stream = http.start("/service/Method", payload, seen, 5.0)
    return http, seen, stream.number


def frames_of(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """Return (kind, flags, stream, payload) of what a client wrote, without the preface."""
    data = data.removeprefix(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    found = []
    while data:
        length = int.from_bytes(data[:3], "big")
        found.append((data[3], data[4], int.from_bytes(data[5:9], "big"), data[9 : 9 + length]))
        data = data[9 + length :]
    return found


def written(http: Http2) -> list[tuple[int, int, int, bytes]]:
    data = b"".join(http.out)
    http.out.clear()
    return frames_of(data)


ANSWER = (
    frame(HEADERS, END_HEADERS, 1, _HEAD)
    + frame(DATA, 0, 1, message(b"one"))
    + frame(DATA, 0, 1, message(b"two") + message(b"") + message(b"three")[:6])
    + frame(PING, 0, 0, b"12345678")
    + frame(DATA, 0, 1, message(b"three")[6:])
    + frame(DATA, PADDED, 1, b"\x04" + message(b"padded") + b"\0" * 4)
    + frame(0x77, 0, 1, b"a frame of an unknown kind")
    + frame(HEADERS, END_STREAM, 1, _OK[:3])
    + frame(CONTINUATION, END_HEADERS, 1, _OK[3:])
)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 8, 9, 10, 13, 64, 10_000])
def test_an_answer_is_read_whatever_its_pieces_are(size: int) -> None:
    http, seen, _ = begun()
    http.out.clear()
    for start in range(0, len(ANSWER), size):
        http.receive(ANSWER[start : start + size], 0)
    assert seen.messages == [b"one", b"two", b"", b"three", b"padded"]
    assert seen.status == (0, "") and seen.failure is None
    assert (PING, ACK, 0, b"12345678") in written(http)
    assert not http.streams


def test_a_call_is_headers_and_a_message_that_closes_our_side() -> None:
    http, _, number = begun(b"hello")
    sent = {kind: (flags, stream, payload) for kind, flags, stream, payload in written(http) if stream == number}
    assert sent[HEADERS][0] == END_HEADERS
    assert sent[DATA] == (END_STREAM, number, message(b"hello"))
    assert b"grpc-timeout" in sent[HEADERS][2] and b"5000m" in sent[HEADERS][2]


def test_a_message_larger_than_the_window_waits_for_it() -> None:
    http, _, number = begun(b"x" * 100_000)
    sent = [payload for kind, _, stream, payload in written(http) if kind == DATA]
    assert sum(map(len, sent)) == 65535 and max(map(len, sent)) <= 16384
    http.receive(frame(WINDOW_UPDATE, 0, number, struct.pack(">I", 100_000)), 0)
    assert not [each for each in written(http) if each[0] == DATA]  # the window of the connection is closed, too
    http.receive(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 100_000)), 0)
    rest = [(flags, payload) for kind, flags, _, payload in written(http) if kind == DATA]
    assert sum(len(payload) for _, payload in rest) == 100_005 - 65535
    assert [flags for flags, _ in rest] == [0] * (len(rest) - 1) + [END_STREAM]


def test_a_smaller_initial_window_counts_for_streams_that_are_open() -> None:
    http, _, _ = begun(b"x" * 10)
    http.out.clear()
    http.receive(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 100)), 0)
    http.start("/service/Method", b"y" * 500, Seen(), None)
    assert sum(len(payload) for kind, _, _, payload in written(http) if kind == DATA) == 100


def test_the_window_is_opened_again_after_much_has_come() -> None:
    http, seen, number = begun()
    http.receive(frame(HEADERS, END_HEADERS, 1, _HEAD), 0)
    http.out.clear()
    http.streams[number].received = http._received = 2**29
    http.receive(frame(DATA, 0, 1, message(b"more")), 0)
    assert [(kind, stream) for kind, _, stream, _ in written(http)] == [(WINDOW_UPDATE, number), (WINDOW_UPDATE, 0)]
    assert seen.messages == [b"more"]


@pytest.mark.parametrize(
    ("answer", "outcome", "text"),
    [
        (frame(RST_STREAM, 0, 1, struct.pack(">I", 2)), Outcome.STREAM_RESET, "HTTP/2 error 2"),
        (frame(GOAWAY, 0, 0, struct.pack(">II", 0, 0) + b"bye"), Outcome.SERVER_GOING_AWAY, "bye"),
        (frame(DATA, END_STREAM, 1, message(b"x")), Outcome.PROTOCOL_ERROR, "without a gRPC status"),
        (frame(DATA, PADDED, 1, b"\x20abc"), Outcome.PROTOCOL_ERROR, "padding"),
        (frame(DATA, 0, 1, struct.pack(">BI", 1, 3) + b"abc"), Outcome.PROTOCOL_ERROR, "compressed"),
        (frame(DATA, 0, 1, struct.pack(">BI", 0, 2**31) + b"abc"), Outcome.PROTOCOL_ERROR, "a message of 2147483648 bytes"),
        (b"\xff\xff\xff" + frame(DATA, 0, 1, b"")[3:], Outcome.PROTOCOL_ERROR, "a frame of 16777215 bytes"),
        (frame(CONTINUATION, END_HEADERS, 1, _OK), Outcome.PROTOCOL_ERROR, "continuation"),
        (frame(HEADERS, 0, 1, _OK) + frame(PING, 0, 0, b"12345678"), Outcome.PROTOCOL_ERROR, "header block"),
        (frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\xff"), Outcome.PROTOCOL_ERROR, "cut off"),
        (
            frame(HEADERS, END_HEADERS | END_STREAM, 1, encode([(b":status", b"503")])),
            Outcome.HTTP_STATUS,
            "HTTP status 503",
        ),
        (frame(HEADERS, END_HEADERS | END_STREAM, 1, encode([(b":status", b"2x0")])), Outcome.HTTP_STATUS, "HTTP status 0, no gRPC status"),
        (
            frame(HEADERS, END_HEADERS | END_STREAM, 1, encode([(b":status", b"200"), (b"grpc-status", b"9" * 5000)])),
            Outcome.PROTOCOL_ERROR,
            "no gRPC status",
        ),
        (
            frame(HEADERS, END_HEADERS, 1, _HEAD) + frame(DATA, 0, 1, message(b"cut")[:6])
            + frame(HEADERS, END_HEADERS | END_STREAM, 1, _OK),
            Outcome.PROTOCOL_ERROR,
            "within a message",
        ),
    ],
)  # fmt: skip
def test_what_ends_a_stream_badly_has_a_name(answer: bytes, outcome: Outcome, text: str) -> None:
    http, seen, _ = begun()
    http.receive(answer, 0)
    assert seen.failure is not None and seen.failure[0] is outcome and text in seen.failure[1]
    assert seen.status is None


@pytest.mark.parametrize(
    "answer",
    [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n", frame(PING, 0, 0, b"12345678"), b"\0" * 64],
)
@pytest.mark.parametrize("size", [1, 5, 64])
def test_who_does_not_begin_with_settings_speaks_no_http2(answer: bytes, size: int) -> None:
    http, seen = Http2("host:1"), Seen()
    http.start("/service/Method", b"request", seen, 5.0)
    for start in range(0, len(answer), size):
        if http.error is None:
            http.receive(answer[start : start + size], 0)
    assert seen.failure is not None and "does not speak gRPC" in seen.failure[1]


def test_a_status_and_its_text_are_taken_from_the_trailers() -> None:
    http, seen, _ = begun()
    trailers = encode([(b":status", b"200"), (b"grpc-status", b"14"), (b"grpc-message", b"queue%20full %C3%A4")])
    http.receive(frame(HEADERS, END_HEADERS | END_STREAM, 1, trailers), 0)
    assert seen.status == (14, "queue full ä")


def test_a_goaway_leaves_alone_what_the_server_has_taken() -> None:
    http, seen, _ = begun()
    later = Seen()
    http.start("/service/Method", b"", later, None)
    http.receive(frame(GOAWAY, 0, 0, struct.pack(">II", 1, 0)), 0)
    assert seen.failure is None and later.failure is not None and http.is_going_away


def test_a_lost_connection_ends_every_stream() -> None:
    http, seen, _ = begun()
    http.close(0, "gone")
    assert seen.failure == (Outcome.CONNECTION_LOST, "gone", 0)


def test_a_reset_stream_says_nothing_more() -> None:
    http, seen, number = begun()
    http.out.clear()
    http.reset(http.streams[number])
    assert [kind for kind, *_ in written(http)] == [RST_STREAM]
    http.receive(frame(DATA, 0, number, message(b"late")) + frame(HEADERS, END_HEADERS | END_STREAM, number, _OK), 0)
    assert seen.messages == [] and seen.status is None


def test_random_bytes_never_raise(random_bytes: Any) -> None:
    for data in random_bytes(200):
        http, _, _ = begun()
        http.receive(data, 0)
