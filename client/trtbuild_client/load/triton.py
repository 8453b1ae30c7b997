"""Triton's inference messages as bytes: requests made from a template, responses read where they lie.

Field numbers are those of grpc_service.proto and model_config.proto (triton-inference-server/common); tests compare every one with the
classes that protobuf generates from them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from trtbuild_client.load.exchange import Exchange, Job
from trtbuild_client.load.outcomes import Mark, Outcome
from trtbuild_client.load.protowire import (
    BYTES,
    WireError,
    fields,
    integers,
    read_field,
    read_varint,
)

STREAM_PATH = "/inference.GRPCInferenceService/ModelStreamInfer"
UNARY_PATH = "/inference.GRPCInferenceService/ModelInfer"
#: ModelStreamInferResponse.infer_response, ModelInferResponse.raw_output_contents: number and type in one byte.
_RESPONSE_TAG = 2 << 3 | BYTES
_PARAMETER_TAG, _OUTPUT_TAG, _RAW_TAG = 4 << 3 | BYTES, 5 << 3 | BYTES, 6 << 3 | BYTES
_TEXT, _COUNT = b"text_output", b"num_output_tokens"
_FINAL = b"triton_final_response"
#: output of TensorRT-LLM's models -> column of the table. Times and counts are those of `return_perf_metrics`.
_COLUMNS = {
    b"num_input_tokens": "input_tokens",
    b"kv_cache_reused_blocks": "reused_blocks",
    b"kv_cache_alloc_total_blocks": "total_blocks",
    b"total_draft_tokens": "draft_tokens",
    b"total_accepted_draft_tokens": "accepted_draft_tokens",
}
_TIMES = {
    "server_queue_ns": (b"first_scheduled_time_ns", b"arrival_time_ns"),
    "server_ttft_ns": (b"first_token_time_ns", b"arrival_time_ns"),
    "server_decode_ns": (b"last_token_time_ns", b"first_token_time_ns"),
}
#: InferTensorContents, for servers that do not send raw bytes: fields that hold integers, and the one of texts.
_INTEGER_CONTENTS, _TEXT_CONTENTS = (1, 2, 3, 4, 5), 8


class TritonExchange(Exchange):
    """A request to Triton.

    Args:
        is_stream: responses come as ModelStreamInferResponse, not as ModelInferResponse.
        is_cumulative: each response holds all text so far.
    """

    __slots__ = (
        "_count_at",
        "_is_cumulative",
        "_is_final_seen",
        "_is_stream",
        "_last",
        "_prefix",
        "_seen_bytes",
        "_text_at",
        "on_late",
    )

    def __init__(
        self,
        job: Job,
        due_ns: int,
        on_end: Callable[[Exchange], None],
        on_late: Callable[[Exchange, Mark], None],
        *,
        is_stream: bool = True,
        is_cumulative: bool = False,
    ) -> None:
        super().__init__(job, due_ns, on_end)
        self.on_late = on_late
        self._is_stream = is_stream
        self._is_cumulative = is_cumulative
        self._is_final_seen = False
        self._prefix = b""
        self._last = b""
        self._text_at = self._count_at = -1
        self._seen_bytes = 0

    def message(self, data: bytes, start: int, end: int, now_ns: int) -> None:
        """Take one response: see `http2.Handler`.

        All that comes before the tensors (names, shapes, id, flags) is usually the same bytes in every response of a request. Where it is,
        only the tensors are looked at.
        """
        prefix = self._prefix
        if prefix and data[start] == _RESPONSE_TAG:
            position = start + 1
            while data[position] > 127:
                position += 1
            position += 1
            if data.startswith(prefix, position):
                position += len(prefix)
                text, count, index = b"", None, 0
                text_at, count_at = self._text_at, self._count_at
                while position < end and data[position] == _RAW_TAG:
                    length = data[position + 1]
                    position += 2
                    if length > 127:
                        length, position = read_varint(data, position - 1)
                    if index == text_at:
                        text = data[position + 4 : position + length]
                    elif index == count_at:
                        count = int.from_bytes(data[position : position + length], "little")
                    position += length
                    index += 1
                if position == end:
                    self._last = data[start:end]
                    if self._is_cumulative:
                        text = self._new_text(text)
                    self.arrived(now_ns, count, text)
                    return
        self._read(data[start:end], now_ns)

    def trailers(self, status: int, text: str, now_ns: int) -> None:
        """Take the end of the call: see `http2.Handler`."""
        if self.outcome is not None:
            return
        if status:
            self.end(
                Outcome.GRPC_STATUS,
                now_ns,
                f"gRPC status {status}: {text}" if text else f"gRPC status {status}",
                status,
            )
            return
        if self._is_stream and not self._is_final_seen:
            self.marks |= Mark.MISSING_FINAL
        self._take_extras()
        self.finish(now_ns)

    def broken(self, outcome: Outcome, now_ns: int, text: str, code: int) -> None:
        """Take the end of a stream without status: see `http2.Handler`."""
        self.end(outcome, now_ns, text, code)

    def _read(self, message: bytes, now_ns: int) -> None:
        try:
            error, response = split(message) if self._is_stream else ("", message)
            if error:
                self.end(Outcome.SERVER_ERROR, now_ns, error)
                return
            reply = Reply(response)
        except WireError as error:
            self.end(Outcome.PROTOCOL_ERROR, now_ns, f"a response that cannot be read: {error}")
            return
        if self._is_final_seen:
            self.on_late(self, Mark.DUPLICATE_FINAL if reply.is_final else Mark.LATE_DATA)
            return
        if reply.outputs:
            self._last = message
            text = reply.text(_TEXT)
            self.arrived(now_ns, reply.number(_COUNT), self._new_text(text) if self._is_cumulative else text)
        if reply.is_final or not self._is_stream:
            self._is_final_seen = True
            self._prefix = b""
            self._take_extras()
            self.finish(now_ns)
        elif reply.prefix and reply.outputs.get(_COUNT, (0, b""))[1] != b"BYTES":
            self._prefix = reply.prefix
            self._text_at, self._count_at = reply.position(_TEXT), reply.position(_COUNT)

    def _new_text(self, text: bytes) -> bytes:
        new, self._seen_bytes = text[self._seen_bytes :], max(len(text), self._seen_bytes)
        return new

    def _take_extras(self) -> None:
        """Read the server's own numbers from the last response that held any output."""
        if not self._last:
            return
        reply = Reply(split(self._last)[1] if self._is_stream else self._last)
        for name, column in _COLUMNS.items():
            value = reply.number(name)
            if value is not None:
                self.extras[column] = value
        for column, (later, earlier) in _TIMES.items():
            times = reply.number(later), reply.number(earlier)
            if times[0] is not None and times[1] is not None:
                self.extras[column] = times[0] - times[1]


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
            if tag == _RAW_TAG:
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

    def text(self, name: bytes) -> bytes:
        """Return the first element of an output of texts, "" without one."""
        if name not in self.outputs:
            return b""
        position, _, contents = self.outputs[name]
        if self.raw:
            raw = self.raw[position] if position < len(self.raw) else b""
            return raw[4 : 4 + int.from_bytes(raw[:4], "little")]
        return next(
            (value for number, value in fields(contents) if number == _TEXT_CONTENTS and isinstance(value, bytes)), b""
        )

    def number(self, name: bytes) -> int | None:
        """Return the only value of an output of integers, None without one; texts of digits count too (llmapi's statistics)."""
        if name not in self.outputs:
            return None
        position, dtype, contents = self.outputs[name]
        if dtype == b"BYTES":
            text = self.text(name)
            return int(text) if text.isdigit() else None
        if self.raw:
            raw = self.raw[position] if position < len(self.raw) else b""
            return int.from_bytes(raw, "little", signed=dtype.startswith(b"INT")) if raw else None
        for number, value in fields(contents):
            if number in _INTEGER_CONTENTS:
                found = integers(value)
                return found[0] if found else None
        return None


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
