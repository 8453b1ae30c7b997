"""From requests of Triton's protocols to jobs of the engine, and from responses of the engine to output tensors."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtbuild_client.errors import InvalidRequest
from trtbuild_client.mock.engine import Job
from trtbuild_client.mock.ledger import Entry
from trtbuild_client.mock.models import Model
from trtbuild_client.mock.schedule import WORDS, Piece

#: The LLM API's own default of max_tokens (tensorrt_llm/sampling_params.py at 1.0).
_LLMAPI_MAX_TOKENS = 32
#: Tokens of one block of the KV cache, for the numbers of reused blocks (TensorRT-LLM's default is 32 to 64).
_BLOCK_TOKENS = 32
#: The probability that every token is said to have had.
_LOG_PROB = -0.25
#: data type -> format of `struct`.
_PACK = {"INT32": "<%di", "INT64": "<%dq", "FP32": "<%df"}


@dataclass(frozen=True, slots=True)
class Output:
    """One output tensor: its values in row-major order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    values: Sequence[Any]

    def raw(self) -> bytes:
        """Return the bytes as they are sent over gRPC."""
        if self.dtype == "BYTES":
            return b"".join(struct.pack("<I", len(value)) + value for value in self.values)
        return struct.pack(_PACK[self.dtype] % len(self.values), *self.values)


def job(
    model: Model, values: Mapping[str, Sequence[Any]], *, request_id: str, protocol: str, timeout_ns: int | None
) -> Job:
    """Return the job that the input tensors ask for.

    Args:
        values: elements of each input by the server's own names; BYTES as `bytes`.

    Raises:
        InvalidRequest: what a server of TensorRT-LLM refuses.
    """

    def scalar(name: str, default: Any) -> Any:
        given = values.get(model.spelled(name), ())
        return given[0] if len(given) else default

    if "input_ids" in model.inputs:
        ids = list(values.get("input_ids", ()))
        prompt, input_tokens = " ".join(map(str, ids)), len(ids)
        max_tokens, is_streaming = scalar("request_output_len", 0), scalar("streaming", False)
    else:
        prompt = bytes(scalar("text_input", b"")).decode("utf-8", "replace")
        input_tokens = max(len(prompt.split()), 1)
        max_tokens = scalar("max_tokens", scalar("sampling_param_max_tokens", _LLMAPI_MAX_TOKENS))
        is_streaming = scalar("stream", scalar("streaming", False))
    if max_tokens < 1:
        raise InvalidRequest("max_tokens must be a single value > 0")
    if is_streaming and not model.is_decoupled:
        raise InvalidRequest("Streaming is only supported if model is deployed using decoupled mode")
    return Job(request_id, model.name, protocol, prompt, int(max_tokens), input_tokens, bool(is_streaming), timeout_ns)


class Outputs:
    """Makes the output tensors of one request.

    Args:
        values: its inputs, see `job`.
    """

    def __init__(self, model: Model, values: Mapping[str, Sequence[Any]]) -> None:
        self._model = model
        self._batch: tuple[int, ...] = (1,) if model.max_batch_size else ()
        self._all_text = b""
        self._is_asked = {
            name: bool(values.get(model.spelled(name), (False,))[0])
            for name in (
                "return_log_probs", "return_perf_metrics", "sampling_param_return_perf_metrics",
                "return_num_input_tokens", "return_num_output_tokens", "return_finish_reason", "return_stop_reason",
                "return_cumulative_logprob",
            )
        }  # fmt: skip
        excluded = values.get(
            "exclude_input_in_output", values.get("sampling_param_exclude_input_from_output", (False,))
        )
        is_streaming = values.get("stream", values.get("streaming", (False,)))[0]
        #: Without being told otherwise, whole answers begin with the prompt, as TensorRT-LLM's do.
        self._echo = b"" if is_streaming or excluded[0] else bytes(values.get("text_input", (b"",))[0])

    def of(self, piece: Piece, *, has_end: bool, entry: Entry) -> list[Output]:
        """Return the outputs of one response."""
        is_asked, batch = self._is_asked, self._batch
        outputs = []
        if "output_ids" in self._model.outputs:
            ids = [number % len(WORDS) for number in piece.token_ids]
            outputs += [
                Output("output_ids", "INT32", (1, 1, len(ids)), ids),
                Output("sequence_length", "INT32", (1, 1), (len(ids),)),
            ]
        else:
            text = piece.text
            if self._model.is_cumulative:
                self._all_text += text
                text = self._all_text
            outputs.append(Output("text_output", "BYTES", (*batch, 1), (self._echo + text,)))
        if is_asked["return_log_probs"]:
            row = [_LOG_PROB] * piece.tokens
            outputs.append(Output("output_log_probs", "FP32", (1, 1, piece.tokens), row))
            outputs.append(Output("cum_log_probs", "FP32", (1, 1), (_LOG_PROB * sum(entry.tokens),)))
        if is_asked["return_num_output_tokens"]:
            outputs.append(Output("num_output_tokens", "INT32", (1, 1), (piece.tokens,)))
        if is_asked["return_num_input_tokens"]:
            outputs.append(Output("num_input_tokens", "INT32", (1, 1), (entry.input_tokens,)))
        if has_end:
            outputs += self._last(entry)
        return [each for each in outputs if each.name in self._model.outputs]

    def _last(self, entry: Entry) -> list[Output]:
        """Return what the last response with tokens holds besides."""
        is_asked = self._is_asked
        if "input_ids" not in self._model.inputs and not self._batch:  # the LLM API says numbers as texts
            texts = {
                "finish_reason": is_asked["return_finish_reason"] and b"length",
                "stop_reason": is_asked["return_stop_reason"] and b"None",
                "cumulative_logprob": is_asked["return_cumulative_logprob"]
                and str(_LOG_PROB * sum(entry.tokens)).encode(),
            }
            if is_asked["sampling_param_return_perf_metrics"]:
                texts |= {name: str(value).encode() for name, _, value in _perf(entry)}
            return [Output(name, "BYTES", (1,), (text,)) for name, text in texts.items() if text]
        if not is_asked["return_perf_metrics"]:
            return []
        return [Output(name, dtype, (1, 1), (value,)) for name, dtype, value in _perf(entry)]


def _perf(entry: Entry) -> list[tuple[str, str, float]]:
    blocks = -(-entry.input_tokens // _BLOCK_TOKENS)
    reused = entry.input_tokens // _BLOCK_TOKENS if entry.is_cached else 0
    return [
        ("kv_cache_alloc_new_blocks", "INT32", blocks - reused),
        ("kv_cache_reused_blocks", "INT32", reused),
        ("kv_cache_alloc_total_blocks", "INT32", blocks),
        ("arrival_time_ns", "INT64", entry.received_ns),
        ("first_scheduled_time_ns", "INT64", entry.started_ns),
        ("first_token_time_ns", "INT64", entry.first_token_ns),
        ("last_token_time_ns", "INT64", entry.intended_ns[-1]),
        ("acceptance_rate", "FP32", 0.0),
        ("total_accepted_draft_tokens", "INT32", 0),
        ("total_draft_tokens", "INT32", 0),
    ]
