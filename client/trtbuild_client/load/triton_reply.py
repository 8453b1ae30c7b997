"""One inference response of Triton as bytes: tensors, flags, and the numbers and texts in them, read where they lie.

Field numbers are those of grpc_service.proto (triton-inference-server/common); tests compare every one with the classes that protobuf
generates from it.
"""

from __future__ import annotations

from functools import lru_cache

from trtbuild_client.counts import count
from trtbuild_client.errors import ServerError
from trtbuild_client.load.protowire import BYTES, WireError, fields, integers, read_field, read_varint

TEXT, COUNT = b"text_output", b"num_output_tokens"
#: ModelInferResponse.raw_output_contents: number and type in one byte.
RAW_TAG = 6 << 3 | BYTES
_PARAMETER_TAG, _OUTPUT_TAG = 4 << 3 | BYTES, 5 << 3 | BYTES
_FINAL = b"triton_final_response"
#: InferTensorContents, for servers that do not send raw bytes: fields that hold integers, and the one of texts.
_INTEGER_CONTENTS, _TEXT_CONTENTS = (1, 2, 3, 4, 5), 8
#: data type of an integer -> (bytes, whether it has a sign) (docs/protocol/extension_binary_data.md of Triton's server).
_INTEGERS = {
    **{b"INT%d" % (8 * size): (size, True) for size in (1, 2, 4, 8)},
    **{b"UINT%d" % (8 * size): (size, False) for size in (1, 2, 4, 8)},
}
#: Of the largest integer of 64 bits.
_DIGITS = 20


def split(message: bytes) -> tuple[str, bytes]:
    """Return (error, response) of a ModelStreamInferResponse.

    Raises:
        WireError: it is none.
    """
    error, response = "", b""
    for number, value in fields(message):
        if number == 1 and isinstance(value, bytes):
            error = value.decode("utf-8", "replace")
        elif number == 2 and isinstance(value, bytes):
            response = value
    return error, response


class Reply:
    """A ModelInferResponse.

    Attributes:
        is_final: the server marked it as the last one.
        outputs: name -> (position, data type, contents when they are not raw).
        prefix: all before the raw tensors, "" when something else follows them.

    Raises:
        WireError: it is none.
    """

    def __init__(self, response: bytes) -> None:
        self.is_final = False
        self.outputs: dict[bytes, tuple[int, bytes, bytes]] = {}
        self.raw: list[bytes] = []
        position, size = 0, len(response)
        raw_from = size
        is_plain = True  # nothing follows the raw tensors but raw tensors
        while position < size:
            tag = response[position]
            start = position
            if tag & 7 != BYTES or tag > 127:  # nothing we know: skipped, or refused, by the slow way
                length, position = read_field(response, position)
                is_plain = is_plain and raw_from == size
                continue
            length, position = read_varint(response, position + 1)
            end = position + length
            if end > size:
                raise WireError("a message that is cut off")
            if tag == RAW_TAG:
                if raw_from == size:
                    raw_from = start
                self.raw.append(response[position:end])
            else:
                is_plain = is_plain and raw_from == size
                if tag == _OUTPUT_TAG:
                    name, dtype, contents = _output(response[position:end])
                    self.outputs[name] = len(self.outputs), dtype, contents
                elif tag == _PARAMETER_TAG and _is_true(response[position:end], _FINAL):
                    self.is_final = True
            position = end
        self.prefix = response[:raw_from] if is_plain and self.raw else b""

    def position(self, name: bytes) -> int:
        """Return which of the raw tensors an output is, -1 for none."""
        return self.outputs[name][0] if name in self.outputs else -1

    @property
    def is_repeatable(self) -> bool:
        """Whether a response that begins with the same prefix has text and count at the same places: one text, an integer."""
        if not self.prefix:
            return False
        text = self._contents(TEXT)
        has_one = len(text) in (0, 4 + int.from_bytes(text[:4], "little"))
        return has_one and (COUNT not in self.outputs or self.outputs[COUNT][1] in _INTEGERS)

    def size(self, name: bytes) -> int:
        """Return the bytes of an output of integers, 0 without one."""
        return _INTEGERS[self.outputs[name][1]][0] if name in self.outputs else 0

    def text(self, name: bytes) -> bytes:
        """Return the first element of an output of texts, "" without one.

        Raises:
            WireError, ServerError: it cannot be read, or is no text.
        """
        if name not in self.outputs:
            return b""
        _, dtype, contents = self.outputs[name]
        if dtype != b"BYTES":
            raise odd(name, f"has data type {_shown(dtype)}, not BYTES")
        if self.raw:
            raw = self._contents(name)
            end = 4 + int.from_bytes(raw[:4], "little")
            if raw and end > len(raw):
                raise odd(name, f"has {len(raw)} bytes, its first text would need {end}")
            return raw[4:end]
        return next(
            (value for number, value in fields(contents) if number == _TEXT_CONTENTS and isinstance(value, bytes)), b""
        )

    def number(self, name: bytes) -> int | None:
        """Return the only value of an output of integers, None without one; texts of digits count too (llmapi's statistics).

        Raises:
            WireError, ServerError: it cannot be read, or is not one integer.
        """
        if name not in self.outputs:
            return None
        _, dtype, contents = self.outputs[name]
        if dtype == b"BYTES":
            text = self.text(name)
            if not text.isdigit():  # "None": not measured
                return None
            if len(text) > _DIGITS:
                raise odd(name, f"has {len(text)} digits, at most {_DIGITS} are an integer")
            return int(text)
        if dtype not in _INTEGERS:
            raise odd(name, f"has data type {_shown(dtype)}, no integer")
        if self.raw:
            raw = self._contents(name)
            size, has_sign = _INTEGERS[dtype]
            if raw and len(raw) != size:
                raise odd(name, f"has {len(raw)} bytes, one {_shown(dtype)} has {size}")
            return int.from_bytes(raw, "little", signed=has_sign) if raw else None
        for number, value in fields(contents):
            if number in _INTEGER_CONTENTS:
                found = integers(value)
                if len(found) > 1:
                    raise odd(name, f"has {len(found)} values, one is expected")
                return found[0] if found else None
        return None

    def count(self, name: bytes) -> int | None:
        """Return the only value of an output that counts, None without one.

        Raises:
            WireError, ServerError: it cannot be read, or counts nothing.
        """
        value = self.number(name)
        return None if value is None else count(name.decode(), value)

    def _contents(self, name: bytes) -> bytes:
        """Return the raw tensor of an output, b"" without such an output."""
        position = self.position(name)
        if position >= len(self.raw):
            raise odd(name, f"is output {position + 1}, but there are {len(self.raw)} raw tensors")
        return self.raw[position] if position >= 0 else b""


def odd(name: bytes, what: str) -> ServerError:
    return ServerError(f"{name.decode()} {what}", hint="Does the model follow TensorRT-LLM's outputs?")


def _shown(dtype: bytes) -> str:
    return dtype[:20].decode("utf-8", "replace") or "none"


@lru_cache(maxsize=4096)
def _output(description: bytes) -> tuple[bytes, bytes, bytes]:
    """Return (name, data type, contents) of an InferOutputTensor; the same descriptions come with every response."""
    parts = dict(fields(description))
    name, dtype, contents = parts.get(1, b""), parts.get(2, b""), parts.get(5, b"")
    if not (isinstance(name, bytes) and isinstance(dtype, bytes) and isinstance(contents, bytes)):
        raise WireError("an output that is no message")
    return name, dtype, contents


@lru_cache(maxsize=4096)
def _is_true(entry: bytes, name: bytes) -> bool:
    """Say whether an entry of the map of parameters is a flag of that name that is set."""
    parts = dict(fields(entry))
    value = parts.get(2)
    return parts.get(1) == name and isinstance(value, bytes) and dict(fields(value)).get(1) == 1
