"""Frames of HTTP/2 (RFC 9113): numbers and the layout. Knows neither connections nor streams."""

from __future__ import annotations

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEAD = 9
#: Types of frames (RFC 9113, section 6).
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED, HAS_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
#: Settings and errors (RFC 9113, sections 6.5.2 and 7).
INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 4, 5
NO_ERROR, PROTOCOL_ERROR, CANCEL, COMPRESSION_ERROR = 0, 1, 8, 9
DEFAULT_WINDOW_BYTES = 65_535
MAX_FRAME_BYTES = 16_384
#: What a peer may send before we confirm: large, so that requests are never held up.
OUR_WINDOW_BYTES = 2**30


def frame(kind: int, flags: int, number: int, payload: bytes | bytearray) -> bytes:
    """Return one frame.

    Args:
        number: of the stream, 0 for the connection.
    """
    return b"".join((len(payload).to_bytes(3, "big"), bytes((kind, flags)), number.to_bytes(4, "big"), payload))
