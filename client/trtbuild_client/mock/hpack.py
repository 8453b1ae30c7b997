"""Header compression of HTTP/2 (RFC 7541), as much as a server needs: everything is decoded, replies are written plainly."""

from __future__ import annotations

from collections import deque

Headers = list[tuple[bytes, bytes]]

#: RFC 7541, appendix A: index 1 to 61.
_STATIC_TEXT = (
    ":authority :method=GET :method=POST :path=/ :path=/index.html :scheme=http :scheme=https :status=200 "
    ":status=204 :status=206 :status=304 :status=400 :status=404 :status=500 accept-charset "
    "accept-encoding=gzip,~deflate accept-language accept-ranges accept access-control-allow-origin age allow "
    "authorization cache-control content-disposition content-encoding content-language content-length "
    "content-location content-range content-type cookie date etag expect expires from host if-match "
    "if-modified-since if-none-match if-range if-unmodified-since last-modified link location max-forwards "
    "proxy-authenticate proxy-authorization range referer refresh retry-after server set-cookie "
    "strict-transport-security transfer-encoding user-agent vary via www-authenticate"
)
_STATIC: tuple[tuple[bytes, bytes], ...] = tuple(
    (name.encode(), value.replace("~", " ").encode())
    for name, _, value in (row.partition("=") for row in _STATIC_TEXT.split())
)

#: RFC 7541, appendix B: bits of the code of each byte value 0 to 255, run by run as (bits, how many). The code is
#: canonical: shorter codes first, byte values in order among equals; that is all there is to know about it.
_RUNS = (
    "13:1 23:1 28:7 24:1 30:1 28:2 30:1 28:8 30:1 28:9 6:1 10:2 12:1 13:1 6:1 8:1 11:1 10:2 8:1 11:1 8:1 6:3 5:3 6:7 7:1 "
    "8:1 15:1 6:1 12:1 10:1 13:1 6:1 7:22 8:1 7:1 8:1 13:1 19:1 13:1 14:1 6:1 15:1 5:1 6:1 5:1 6:1 5:1 6:3 5:1 7:2 6:3 "
    "5:1 6:1 7:1 6:1 5:2 6:1 7:5 15:1 11:1 14:1 13:1 28:1 20:1 22:1 20:2 22:3 23:1 22:1 23:5 24:1 23:1 24:2 22:1 23:1 "
    "24:1 23:4 21:1 22:1 23:1 22:1 23:2 24:1 22:1 21:1 20:1 22:2 23:2 21:1 23:1 22:2 24:1 21:1 22:1 23:2 21:2 22:1 21:1 "
    "23:1 22:1 23:2 20:1 22:3 23:1 22:2 23:1 26:2 20:1 19:1 22:1 23:1 22:1 25:1 26:3 27:2 26:1 24:1 25:1 19:1 21:1 26:1 "
    "27:2 26:1 27:1 24:1 21:2 26:2 28:1 27:3 20:1 24:1 20:1 21:1 22:1 21:2 23:1 22:2 25:2 24:2 26:1 23:1 26:1 27:1 26:2 "
    "27:5 28:1 27:5 26:1"
)
#: Each entry of the dynamic table counts for this much more than its bytes (RFC 7541, section 4.1).
_ENTRY_BYTES = 32


class HpackError(ValueError):
    """The bytes are no header block."""


def _codes() -> dict[tuple[int, int], int]:
    """Return (bits, code) -> byte value."""
    lengths = [
        int(bits) for run in _RUNS.split() for bits, _, number in [run.partition(":")] for _ in range(int(number))
    ]
    codes: dict[tuple[int, int], int] = {}
    code = previous = 0
    for bits, value in sorted((bits, value) for value, bits in enumerate(lengths)):
        code <<= bits - previous
        codes[bits, code] = value
        code, previous = code + 1, bits
    return codes


_CODES = _codes()


def _huffman(data: bytes) -> bytes:
    out = bytearray()
    code = bits = 0
    for byte in data:
        for shift in range(7, -1, -1):
            code, bits = code << 1 | byte >> shift & 1, bits + 1
            value = _CODES.get((bits, code))
            if value is not None:
                out.append(value)
                code = bits = 0
    if bits > 7 or code != (1 << bits) - 1:  # what is left must be the beginning of the end symbol, all ones
        raise HpackError("broken Huffman code")
    return bytes(out)


class Decoder:
    """Decodes the header blocks of one connection, in order.

    Args:
        limit_bytes: size of the dynamic table that we allow the peer, SETTINGS_HEADER_TABLE_SIZE.
    """

    def __init__(self, limit_bytes: int = 4096) -> None:
        self._table: deque[tuple[bytes, bytes]] = deque()
        self._size_bytes = 0
        self._limit_bytes = self._most_bytes = limit_bytes

    def decode(self, block: bytes) -> Headers:
        """Return the headers of a block.

        Raises:
            HpackError: it is broken.
        """
        headers: Headers = []
        at = 0
        try:
            while at < len(block):
                first = block[at]
                if first & 0x80:
                    index, at = self._integer(block, at, 7)
                    headers.append(self._entry(index))
                elif first & 0xE0 == 0x20:
                    size_bytes, at = self._integer(block, at, 5)
                    if size_bytes > self._most_bytes:
                        raise HpackError("table size beyond the limit")
                    self._limit_bytes = size_bytes
                    self._evict()
                else:
                    is_kept = first & 0xC0 == 0x40
                    index, at = self._integer(block, at, 6 if is_kept else 4)
                    if index:
                        name = self._entry(index)[0]
                    else:
                        name, at = self._string(block, at)
                    value, at = self._string(block, at)
                    headers.append((name, value))
                    if is_kept:
                        self._table.appendleft((name, value))
                        self._size_bytes += len(name) + len(value) + _ENTRY_BYTES
                        self._evict()
        except IndexError as error:
            raise HpackError("header block is cut off") from error
        return headers

    def _entry(self, index: int) -> tuple[bytes, bytes]:
        if not 0 < index <= len(_STATIC) + len(self._table):
            raise HpackError(f"no header of index {index}")
        return _STATIC[index - 1] if index <= len(_STATIC) else self._table[index - len(_STATIC) - 1]

    def _evict(self) -> None:
        while self._size_bytes > self._limit_bytes:
            name, value = self._table.pop()
            self._size_bytes -= len(name) + len(value) + _ENTRY_BYTES

    @staticmethod
    def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
        most = (1 << bits) - 1
        value, at, shift = block[at] & most, at + 1, 0
        if value < most:
            return value, at
        while True:
            byte, at = block[at], at + 1
            value += (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value, at
            if shift > 28:
                raise HpackError("integer too long")

    def _string(self, block: bytes, at: int) -> tuple[bytes, int]:
        is_huffman = block[at] & 0x80
        length, at = self._integer(block, at, 7)
        if at + length > len(block):
            raise HpackError("header block is cut off")
        data = block[at : at + length]
        return (_huffman(data) if is_huffman else data), at + length


def encode(headers: Headers) -> bytes:
    """Return a header block that uses no table: literals without indexing (RFC 7541, section 6.2.2)."""
    out = bytearray()
    for name, value in headers:
        out.append(0)
        for text in (name, value):
            length = len(text)
            if length < 0x7F:
                out.append(length)
            else:
                out.append(0x7F)
                length -= 0x7F
                while length > 0x7F:
                    out.append(length & 0x7F | 0x80)
                    length >>= 7
                out.append(length)
            out += text
    return bytes(out)
