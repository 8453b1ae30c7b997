"""The wire format of protobuf (protobuf.dev/programming-guides/encoding): enough to write and read the few messages a load test needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class WireError(ValueError):
    """The bytes are no protobuf message."""


def varint(value: int) -> bytes:
    """Return an integer as it is written; a negative one as its 64-bit complement."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, value: bytes | str) -> bytes:
    """Return a field of bytes, text or a message."""
    raw = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | BYTES) + varint(len(raw)) + raw


def integer(number: int, value: int) -> bytes:
    """Return a field of an integer, flag or enumeration."""
    return varint(number << 3 | VARINT) + varint(value)


def packed(number: int, values: Iterable[int]) -> bytes:
    """Return a repeated field of integers."""
    return field(number, b"".join(map(varint, values)))


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return (value, next position).

    Raises:
        WireError: the data end within it.
    """
    value = shift = 0
    try:
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 128:
                return value, position
            shift += 7
            if shift > 63:
                raise WireError("an integer of more than 10 bytes")
    except IndexError as error:
        raise WireError("a message that is cut off") from error


def fields(data: bytes, position: int = 0, end: int | None = None) -> Iterator[tuple[int, int | bytes]]:
    """Yield (number, value) of each field: an integer, or its bytes.

    Raises:
        WireError: the data are no message.
    """
    end = len(data) if end is None else end
    while position < end:
        tag, _ = read_varint(data, position)
        value, position = read_field(data, position)
        if position > end:
            raise WireError("a message that is cut off")
        yield tag >> 3, value if tag & 7 == VARINT else data[position - value : position]


def read_field(data: bytes, position: int) -> tuple[int, int]:
    """Return (value, next position) of the field that begins here: the integer, or how many bytes the value has.

    Raises:
        WireError: the data end within it, or its type is not one of protobuf 3.
    """
    tag, position = read_varint(data, position)
    kind = tag & 7
    if kind == VARINT:
        return read_varint(data, position)
    if kind == BYTES:
        length, position = read_varint(data, position)
    elif kind in (FIXED64, FIXED32):
        length = 8 if kind == FIXED64 else 4
    else:
        raise WireError(f"a field of wire type {kind}")
    if position + length > len(data):
        raise WireError("a message that is cut off")
    return length, position + length


def signed(value: int) -> int:
    """Return the 64-bit integer with a sign that was read as one without."""
    return value - (1 << 64) if value >> 63 else value


def integers(value: int | bytes) -> list[int]:
    """Return the integers of a repeated field, packed or not."""
    if isinstance(value, int):
        return [signed(value)]
    found, position = [], 0
    while position < len(value):
        each, position = read_varint(value, position)
        found.append(signed(each))
    return found
