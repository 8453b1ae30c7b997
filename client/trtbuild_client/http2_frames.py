"""Frames of HTTP/2 (RFC 9113): numbers and the layout. Knows neither connections nor streams, neither clients nor servers."""

from __future__ import annotations

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#: Types of frames (RFC 9113, section 6).
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, HAS_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
FRAME_HEADER = struct.Struct(">HBBBI")  # length (16 + 8 bits), type, flags, stream
#: Settings and errors (RFC 9113, sections 6.5.2 and 7).
ENABLE_PUSH, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 2, 4, 5, 6
NO_ERROR, PROTOCOL_ERROR, CANCEL, COMPRESSION_ERROR = 0, 1, 8, 9
DEFAULT_WINDOW_BYTES = 65_535
MAX_FRAME_BYTES = 16_384


def frame(kind: int, flags: int, number: int, payload: bytes | bytearray) -> bytes:
    """Return one frame.

    Args:
        kind: its type.
        flags: as its type has them.
        number: of the stream, 0 for the connection.
        payload: what follows the header.
    """
    return b"".join((FRAME_HEADER.pack(len(payload) >> 8, len(payload) & 0xFF, kind, flags, number), payload))
