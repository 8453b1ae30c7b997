"""Read a request out of the public tensors of TensorRT-LLM's `tensorrt_llm` model.

Every public input is either used or listed in `UNSUPPORTED`; a listed one makes the request fail unless it is empty or
holds a value that asks for nothing. Knows names, shapes and neutral values; does not know Triton.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trtbuild.reference.sampling import RequestError, SamplingParams, Words

Tensors = Mapping[str, np.ndarray[Any, Any]]

UNSUPPORTED: dict[str, tuple[float | str, ...]] = {
    "encoder_input_features": (),
    "encoder_output_lengths": (0,),
    "num_return_sequences": (1,),
    "draft_logits": (),
    "draft_acceptance_threshold": (0.0,),
    "decoder_input_ids": (),
    "decoder_input_lengths": (0,),
    "beam_width": (1,),
    "runtime_top_p_min": (0.0,),
    "runtime_top_p_decay": (1.0,),
    "runtime_top_p_reset_ids": (-1,),
    "len_penalty": (0.0, 1.0),
    "early_stopping": (False, True),
    "beam_search_diversity_rate": (0.0,),
    "return_context_logits": (False,),
    "return_generation_logits": (False,),
    "prompt_embedding_table": (),
    "prompt_table_extra_ids": (),
    "prompt_vocab_size": (0,),
    "cross_attention_mask": (),
    "mrope_rotary_cos_sin": (),
    "mrope_position_deltas": (0,),
    "lora_task_id": (),
    "lora_weights": (),
    "lora_config": (),
    "context_phase_params": (),
    "skip_cross_attn_blocks": (False,),
    "retention_token_range_starts": (),
    "retention_token_range_ends": (),
    "retention_token_range_priorities": (),
    "retention_token_range_durations_ms": (),
    "retention_decode_priority": (35,),
    "retention_decode_duration_ms": (-1,),
    "guided_decoding_guide_type": (),
    "guided_decoding_guide": (),
    "lookahead_window_size": (),
    "lookahead_ngram_size": (),
    "lookahead_verification_set_size": (),
}
"""Public inputs that are not implemented, with the values that change nothing. Beam-only settings change nothing at
beam width 1, but only their usual defaults are let through: a client that sets them expects an effect."""

IMPLEMENTED = frozenset(
    {
        *("input_ids", "input_lengths", "request_output_len", "end_id", "pad_id", "stop_words_list", "bad_words_list"),
        *("embedding_bias", "temperature", "runtime_top_k", "runtime_top_p", "repetition_penalty", "min_tokens"),
        *("presence_penalty", "frequency_penalty", "seed", "return_log_probs", "return_perf_metrics", "stop"),
        *("min_length", "random_seed", "return_kv_cache_reuse_stats"),  # what releases before 0.20 and 0.19 call them
        *("return_num_input_tokens", "return_num_output_tokens", "exclude_input_in_output", "streaming"),
        "draft_input_ids",
    }
)
"""Public inputs that are used. `pad_id` only fills answers of unequal length, which one beam does not have."""


@dataclass(frozen=True, slots=True)
class CoreRequest:
    """One row of a request.

    Attributes:
        prompt: token ids.
        max_tokens: length of the answer at most.
        params: sampling settings.
        is_streaming: answer token by token instead of at once.
        echoes_prompt: put the prompt in front of the answer (never while streaming).
        batch_index: row of the request; None when it has only one.
        draft: draft tokens to check; none asks for an ordinary answer.
        wants_log_probs, wants_perf_metrics, wants_num_input_tokens, wants_num_output_tokens: extra outputs.
    """

    prompt: list[int]
    max_tokens: int
    params: SamplingParams
    is_streaming: bool
    echoes_prompt: bool
    batch_index: int | None
    draft: tuple[int, ...]
    wants_log_probs: bool
    wants_perf_metrics: bool
    wants_num_input_tokens: bool
    wants_num_output_tokens: bool


def read_requests(tensors: Tensors, *, exclude_input: bool, is_decoupled: bool) -> list[CoreRequest]:
    """Return one request per row of the batch.

    Args:
        tensors: input tensors by name, with the batch dimension first.
        exclude_input: the model's default for `exclude_input_in_output`.
        is_decoupled: whether a request may be answered by more than one response.

    Raises:
        RequestError: an input is missing, malformed or not implemented.
    """
    _refuse_unsupported(tensors)
    for name, missing in (
        ("input_ids", "input_ids or encoder_input_features is not present in the request."),
        ("input_lengths", "input_lengths is not present in the request"),
        ("request_output_len", "request_output_len is not present in the request"),
    ):
        if name not in tensors:
            raise RequestError(missing)
    if tensors["request_output_len"].size == 0:
        raise RequestError("request_output_len is empty", hint="send one number per row")
    rows = len(tensors["input_ids"])
    if rows > 1 and not is_decoupled:
        raise RequestError("Batch size > 1 requires the tensorrt_llm backend to be using decoupled transaction policy")
    return [
        _read_row(_Row(tensors, row), row if rows > 1 else None, exclude_input=exclude_input, is_decoupled=is_decoupled)
        for row in range(rows)
    ]


def is_stop_request(tensors: Tensors) -> bool:
    """Return whether the request only asks to end another one of the same id."""
    return bool(_Row(tensors, 0).flag("stop"))


def _refuse_unsupported(tensors: Tensors) -> None:
    for name, neutral in UNSUPPORTED.items():
        array = tensors.get(name)
        if array is None or array.size == 0:
            continue
        for value in array.reshape(-1)[:4].tolist():
            if value not in neutral:
                allowed = " or ".join(map(str, neutral))
                raise RequestError(
                    f"{name} = {value!r} is not supported by the reference target",
                    hint=f"leave {name} out" + (f", or send {allowed}" if neutral else ""),
                )


class _Row:
    """One row of the batch: scalars with a default, lists of words."""

    def __init__(self, tensors: Tensors, row: int) -> None:
        self._tensors, self._row = tensors, row

    def scalar(self, name: str) -> Any:
        """Return the only value of a tensor as a Python number, None when it is absent or empty."""
        array = self._tensors.get(name)
        if array is None or array.size == 0:
            return None
        values = array[self._row].reshape(-1)
        if len(values) != 1:
            raise RequestError(f"{name} has {len(values)} values per row", hint="allowed: one")
        return values[0].item()

    def flag(self, name: str) -> bool | None:
        """Return a boolean, None when it is absent."""
        value = self.scalar(name)
        return None if value is None else bool(value)

    def array(self, name: str) -> np.ndarray[Any, Any] | None:
        """Return this row of a tensor, None when it is absent or empty."""
        array = self._tensors.get(name)
        return None if array is None or array.size == 0 else array[self._row]

    def words(self, name: str) -> Words:
        """Return a list of words; see `read_words`."""
        array = self.array(name)
        return () if array is None else read_words(array, name)


def _read_row(row: _Row, batch_index: int | None, *, exclude_input: bool, is_decoupled: bool) -> CoreRequest:
    ids = row.array("input_ids")
    length = row.scalar("input_lengths")
    size = 0 if ids is None else ids.size
    if length is None or not 1 <= length <= size:
        raise RequestError(
            f"input_lengths = {length} does not fit input_ids with {size} tokens", hint=f"allowed: 1 to {size}"
        )
    is_streaming = bool(row.flag("streaming"))
    if is_streaming and not is_decoupled:
        raise RequestError("Streaming is only supported if model is deployed using decoupled mode.")
    excludes, draft = row.flag("exclude_input_in_output"), row.array("draft_input_ids")
    return CoreRequest(
        prompt=ids.reshape(-1)[:length].tolist() if ids is not None else [],
        max_tokens=row.scalar("request_output_len"),
        params=_read_params(row),
        is_streaming=is_streaming,
        echoes_prompt=not is_streaming and not (exclude_input if excludes is None else excludes),
        batch_index=batch_index,
        draft=() if draft is None else tuple(draft.reshape(-1).tolist()),
        wants_log_probs=bool(row.flag("return_log_probs")),
        wants_perf_metrics=bool(row.flag("return_perf_metrics") or row.flag("return_kv_cache_reuse_stats")),
        wants_num_input_tokens=bool(row.flag("return_num_input_tokens")),
        wants_num_output_tokens=bool(row.flag("return_num_output_tokens")),
    )


_PARAMS = {
    "temperature": "temperature",
    "runtime_top_k": "top_k",
    "runtime_top_p": "top_p",
    "seed": "seed",
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "min_tokens": "min_tokens",
    "random_seed": "seed",
    "min_length": "min_tokens",
}
"""Scalar inputs and the fields of SamplingParams they set; an absent one leaves the field's default."""


def _read_params(row: _Row) -> SamplingParams:
    given = {field: value for name, field in _PARAMS.items() if (value := row.scalar(name)) is not None}
    end_id = row.scalar("end_id")
    bias = row.array("embedding_bias")
    return SamplingParams(
        **given,
        end_id=None if end_id in (None, -1) else end_id,
        stop_words=row.words("stop_words_list"),
        bad_words=row.words("bad_words_list"),
        # A copy: the tensor's memory belongs to the server once the request has been accepted.
        embedding_bias=None if bias is None else np.array(bias, dtype=np.float32).reshape(-1),
    )


def read_words(array: np.ndarray[Any, Any], name: str) -> Words:
    """Return the token sequences of a word-list tensor.

    Args:
        array: [2, n], i32. Row 0: the ids of all words one after the other; row 1: the end of each word, then -1.
        name: of the tensor, for the error.

    Raises:
        RequestError: the layout is broken (wording of TensorRT-LLM's backend).
    """
    if array.shape[0] != 2:
        raise RequestError(f"{name}: Sparse list must not have odd length, got shape {list(array.shape)}")
    ids, ends = array[0].tolist(), array[1].tolist()
    count = ends.index(-1) if -1 in ends else len(ends)
    if any(end != -1 for end in ends[count:]):
        raise RequestError(f"{name}: Sparse list has additional -1s: offsets {ends}")
    words: list[tuple[int, ...]] = []
    start = 0
    for end in ends[:count]:
        if end <= start:
            raise RequestError(f"{name}: Sparse list has non-increasing offsets: {ends}")
        if end > len(ids):
            raise RequestError(f"{name}: Sparse list has out-of-bound offsets: {ends} for {len(ids)} ids")
        words.append(tuple(ids[start:end]))
        start = end
    return tuple(words)
