"""A running request to Triton: its responses are read where they lie.

Outputs are those of tensorrtllm_backend (all_models/inflight_batcher_llm/ensemble/config.pbtxt) and of the LLM API's model.
"""

from __future__ import annotations

from collections.abc import Callable

from trtbuild_client.counts import MOST
from trtbuild_client.errors import ServerError
from trtbuild_client.load.exchange import Exchange, Job
from trtbuild_client.load.outcomes import Mark, Outcome
from trtbuild_client.load.protowire import BYTES, WireError, read_varint
from trtbuild_client.load.triton_reply import COUNT, RAW_TAG, TEXT, Reply, odd, split

STREAM_PATH = "/inference.GRPCInferenceService/ModelStreamInfer"
UNARY_PATH = "/inference.GRPCInferenceService/ModelInfer"
#: ModelStreamInferResponse.infer_response: number and type in one byte.
_RESPONSE_TAG = 2 << 3 | BYTES
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


class TritonExchange(Exchange):
    """A request to Triton.

    Args:
        is_stream: responses come as ModelStreamInferResponse, not as ModelInferResponse.
        is_cumulative: each response holds all text so far.
    """

    __slots__ = (
        "_count_at",
        "_count_size",
        "_has_output",
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
        self._count_size = 0
        self._has_output = False
        self._seen_bytes = 0

    def message(self, data: bytes, start: int, end: int, now_ns: int) -> None:
        """Take one response: see `http2.Handler`.

        All that comes before the tensors (names, shapes, id, flags) is usually the same bytes in every response of a request. Where it is,
        only the tensors are looked at.
        """
        prefix = self._prefix
        try:
            if prefix and data[start] == _RESPONSE_TAG:
                position = start + 1
                while data[position] > 127:
                    position += 1
                position += 1
                if data.startswith(prefix, position):
                    position += len(prefix)
                    text, tokens, index = b"", None, 0
                    text_at, count_at = self._text_at, self._count_at
                    while position < end and data[position] == RAW_TAG:
                        length = data[position + 1]
                        position += 2
                        if length > 127:
                            length, position = read_varint(data, position - 1)
                        if index == text_at:
                            text = data[position + 4 : position + length]
                        elif index == count_at:
                            tokens = int.from_bytes(data[position : position + length], "little")
                            if tokens > MOST or length != self._count_size:
                                break
                        position += length
                        index += 1
                    if position == end:
                        self._last = data[start:end]
                        if self._is_cumulative:
                            text = self._new_text(text)
                        self.arrived(now_ns, tokens, text)
                        return
        except (IndexError, WireError):  # the slow way says what is wrong
            pass
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
        if self._is_stream:
            self.marks |= Mark.MISSING_FINAL
        self._conclude(now_ns, has_end=False)

    def broken(self, outcome: Outcome, now_ns: int, text: str, code: int) -> None:
        """Take the end of a stream without status: see `http2.Handler`."""
        self.end(outcome, now_ns, text, code)

    def _read(self, message: bytes, now_ns: int) -> None:
        try:
            error, response = split(message) if self._is_stream else ("", message)
            if error:
                self.end(Outcome.SERVER_ERROR, now_ns, error)
            else:
                self._take(message, Reply(response), now_ns)
        except (WireError, ServerError) as failure:
            self._fail(failure, now_ns)

    def _take(self, message: bytes, reply: Reply, now_ns: int) -> None:
        if self._is_final_seen:
            self.on_late(self, Mark.DUPLICATE_FINAL if reply.is_final else Mark.LATE_DATA)
            return
        if reply.outputs:
            self._last = message
            self._has_output |= TEXT in reply.outputs or COUNT in reply.outputs
            text, tokens = reply.text(TEXT), reply.count(COUNT)
            self.arrived(now_ns, tokens, self._new_text(text) if self._is_cumulative else text)
        if reply.is_final or not self._is_stream:
            self._is_final_seen = True
            self._prefix = b""
            self._conclude(now_ns, has_end=reply.is_final)
        elif reply.is_repeatable:
            self._prefix = reply.prefix
            self._text_at, self._count_at = reply.position(TEXT), reply.position(COUNT)
            self._count_size = reply.size(COUNT)

    def _conclude(self, now_ns: int, *, has_end: bool) -> None:
        """End well, if there was an answer at all: an output of text or count, or a final response without any."""
        if not (has_end or self._has_output):
            self.end(Outcome.BAD_EVENT, now_ns, "an answer without text_output, num_output_tokens or final response")
            return
        try:
            self._take_extras()
        except (WireError, ServerError) as failure:
            self._fail(failure, now_ns)
        else:
            self.finish(now_ns)

    def _fail(self, failure: WireError | ServerError, now_ns: int) -> None:
        if isinstance(failure, ServerError):
            self.end(Outcome.BAD_EVENT, now_ns, failure.message)
        else:
            self.end(Outcome.PROTOCOL_ERROR, now_ns, f"a response that cannot be read: {failure}")

    def _new_text(self, text: bytes) -> bytes:
        new, self._seen_bytes = text[self._seen_bytes :], max(len(text), self._seen_bytes)
        return new

    def _take_extras(self) -> None:
        """Read the server's own numbers from the last response that held any output."""
        if not self._last:
            return
        reply = Reply(split(self._last)[1] if self._is_stream else self._last)
        for name, column in _COLUMNS.items():
            value = reply.count(name)
            if value is not None:
                self.extras[column] = value
        for column, (later, earlier) in _TIMES.items():
            times = reply.number(later), reply.number(earlier)
            if times[0] is None or times[1] is None:
                continue
            span_ns = times[0] - times[1]
            if abs(span_ns) >> 63:
                raise odd(later, f"{span_ns} ns after {earlier.decode()}: no time of 64 bits")
            self.extras[column] = span_ns
