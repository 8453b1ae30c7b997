"""Header compression of HTTP/2 (RFC 7541): a decoder for whatever a peer sends, an encoder that needs no state.

The load test reads servers with it, the mock server its clients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import lru_cache

Header = tuple[bytes, bytes]

#: RFC 7541, appendix A: names with the values that are listed there; positions count from 1.
_STATIC: tuple[Header, ...] = (
    (b":authority", b""), (b":method", b"GET"), (b":method", b"POST"), (b":path", b"/"), (b":path", b"/index.html"),
    (b":scheme", b"http"), (b":scheme", b"https"), (b":status", b"200"), (b":status", b"204"), (b":status", b"206"),
    (b":status", b"304"), (b":status", b"400"), (b":status", b"404"), (b":status", b"500"), (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"), (b"accept-language", b""), (b"accept-ranges", b""), (b"accept", b""),
    (b"access-control-allow-origin", b""), (b"age", b""), (b"allow", b""), (b"authorization", b""),
    (b"cache-control", b""), (b"content-disposition", b""), (b"content-encoding", b""), (b"content-language", b""),
    (b"content-length", b""), (b"content-location", b""), (b"content-range", b""), (b"content-type", b""),
    (b"cookie", b""), (b"date", b""), (b"etag", b""), (b"expect", b""), (b"expires", b""), (b"from", b""),
    (b"host", b""), (b"if-match", b""), (b"if-modified-since", b""), (b"if-none-match", b""), (b"if-range", b""),
    (b"if-unmodified-since", b""), (b"last-modified", b""), (b"link", b""), (b"location", b""),
    (b"max-forwards", b""), (b"proxy-authenticate", b""), (b"proxy-authorization", b""), (b"range", b""),
    (b"referer", b""), (b"refresh", b""), (b"retry-after", b""), (b"server", b""), (b"set-cookie", b""),
    (b"strict-transport-security", b""), (b"transfer-encoding", b""), (b"user-agent", b""), (b"vary", b""),
    (b"via", b""), (b"www-authenticate", b""),
)  # fmt: skip
#: RFC 7541, appendix B: bits of the code of each byte, and of the end of a string. The code is canonical: codes of one length are
#: consecutive in the order of their symbols, so that the lengths tell all.
_HUFFMAN_BITS = bytes((
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
))  # fmt: skip
_END_OF_STRING = 256
#: RFC 7541, section 4.1.
_ENTRY_OVERHEAD = 32
_DEFAULT_TABLE_BYTES = 4096


class HpackError(ValueError):
    """The header block is not what RFC 7541 allows."""


def encode(headers: Iterable[Header]) -> bytes:
    """Return a header block of literals that are not put into the other side's table (RFC 7541, section 6.2.2).

    It depends on nothing that was sent before, so one block can be sent any number of times.
    """
    return b"".join(b"\x00" + _string(name) + _string(value) for name, value in headers)


class Decoder:
    """Reads header blocks of one connection, in their order.

    Args:
        limit_bytes: size of the dynamic table that the peer is allowed (SETTINGS_HEADER_TABLE_SIZE).
    """

    def __init__(self, limit_bytes: int = _DEFAULT_TABLE_BYTES) -> None:
        self._table: deque[Header] = deque()  # the newest first
        self._size_bytes = 0
        self._limit_bytes = self._most_bytes = limit_bytes

    def decode(self, block: bytes) -> list[Header]:
        """Return the headers.

        Raises:
            HpackError: the block is broken.
        """
        headers: list[Header] = []
        position = 0
        try:
            while position < len(block):
                first = block[position]
                if first & 0x80:  # an entry of a table
                    index, position = _integer(block, position, 7)
                    headers.append(self._entry(index))
                elif first & 0xE0 == 0x20:  # the size of our table
                    size_bytes, position = _integer(block, position, 5)
                    if size_bytes > self._most_bytes:
                        raise HpackError(f"a table of {size_bytes} bytes, allowed are {self._most_bytes}")
                    self._limit_bytes = size_bytes
                    self._shrink()
                else:
                    is_kept = bool(first & 0x40)
                    index, position = _integer(block, position, 6 if is_kept else 4)
                    name, position = (self._entry(index)[0], position) if index else _text(block, position)
                    value, position = _text(block, position)
                    headers.append((name, value))
                    if is_kept:
                        self._table.appendleft((name, value))
                        self._size_bytes += len(name) + len(value) + _ENTRY_OVERHEAD
                        self._shrink()
        except IndexError as error:
            raise HpackError(f"a header block of {len(block)} bytes is cut off") from error
        return headers

    def _entry(self, index: int) -> Header:
        if index == 0:
            raise HpackError("header index 0")
        if index <= len(_STATIC):
            return _STATIC[index - 1]
        if index - len(_STATIC) > len(self._table):
            raise HpackError(f"header index {index} of {len(_STATIC) + len(self._table)}")
        return self._table[index - len(_STATIC) - 1]

    def _shrink(self) -> None:
        while self._size_bytes > self._limit_bytes:
            name, value = self._table.pop()
            self._size_bytes -= len(name) + len(value) + _ENTRY_OVERHEAD


def _integer(block: bytes, position: int, bits: int) -> tuple[int, int]:
    """Return (value, next position) of an integer whose first bits share a byte (RFC 7541, section 5.1)."""
    most = (1 << bits) - 1
    value = block[position] & most
    position += 1
    if value < most:
        return value, position
    shift = 0
    while True:
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, position
        if shift > 28:
            raise HpackError("an integer of more than 5 bytes")


def _text(block: bytes, position: int) -> tuple[bytes, int]:
    is_huffman = bool(block[position] & 0x80)
    length, position = _integer(block, position, 7)
    end = position + length
    if end > len(block):
        raise IndexError
    raw = block[position:end]
    return (huffman_decode(raw) if is_huffman else raw), end


def _string(text: bytes) -> bytes:
    if len(text) < 127:
        return bytes((len(text),)) + text
    rest, out = len(text) - 127, bytearray((127,))
    while rest >= 128:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes(out) + bytes((rest,)) + text


@lru_cache(maxsize=1)
def _huffman() -> dict[tuple[int, int], int]:
    """Return (bits, code) -> symbol."""
    codes: dict[tuple[int, int], int] = {}
    code = bits = 0
    for symbol in sorted(range(len(_HUFFMAN_BITS)), key=lambda each: (_HUFFMAN_BITS[each], each)):
        code <<= _HUFFMAN_BITS[symbol] - bits
        bits = _HUFFMAN_BITS[symbol]
        codes[bits, code] = symbol
        code += 1
    return codes


def huffman_decode(raw: bytes) -> bytes:
    """Return the text of a Huffman-coded string.

    Raises:
        HpackError: the padding is not the beginning of the end-of-string code, or that code is in the text.
    """
    codes = _huffman()
    out = bytearray()
    code = bits = 0
    for byte in raw:
        for shift in range(7, -1, -1):
            code = code << 1 | byte >> shift & 1
            bits += 1
            symbol = codes.get((bits, code))
            if symbol is not None:
                if symbol == _END_OF_STRING:
                    raise HpackError("the end of a string within it")
                out.append(symbol)
                code = bits = 0
    if bits > 7 or code != (1 << bits) - 1:
        raise HpackError("a Huffman-coded string with wrong padding")
    return bytes(out)
