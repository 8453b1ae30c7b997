"""The public tensors of the models in NVIDIA's Triton repositories, by release of TensorRT-LLM: what clients send and get.

Sources: Triton specification 1.1 to 1.5 (inflight_batcher_llm), 2.1 (llmapi) and 3.3 (when a tensor came or changed its name). A row that
3.3 dates is `known`; one that section 11 doubts is `inferred`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from trtbuild.trtllm.versions import Evidence, Release, Span

SOURCE = "Triton specification 3.3"
Side = Literal["input", "output"]
#: Types that a deployment chooses -> what it may choose, the usual one first (Triton specification 1.7).
CHOSEN_TYPES: dict[str, tuple[str, ...]] = {
    "LOGITS": ("FP32", "FP16"),
    "FEATURES": ("FP16", "BF16"),
    "PROMPT": ("FP16", "BF16"),
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output.

    Attributes:
        name: as clients write it.
        dtype: e.g. "INT32", or a key of `CHOSEN_TYPES`.
        dims: without the batch dimension; -1 is any size.
        optional: whether a request may leave it out; always false for outputs.
        ragged: whether requests of a batch may differ in its size.
        scalar: `reshape { shape: [] }`: the backend sees no dimensions.
        since: first release that has it; None for one before the oldest that trtbuild knows.
        until: first release that no longer has it.
        evidence: whether the span was read or concluded.
        renamed_to: the name that took its place at `until`.
    """

    name: str
    dtype: str
    dims: tuple[int, ...]
    optional: bool = False
    ragged: bool = False
    scalar: bool = False
    since: str | None = None
    until: str | None = None
    evidence: Evidence = "known"
    renamed_to: str = ""

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The types it may have, the usual one first."""
        return CHOSEN_TYPES.get(self.dtype, (self.dtype,))

    def is_in(self, release: Release) -> bool:
        """Say whether a release has it."""
        return release.within(Span(self.since, self.until, self.evidence, SOURCE))


@dataclass(frozen=True, slots=True)
class Signature:
    """The tensors of one model over all releases."""

    model: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    def of(self, release: Release, side: Side) -> dict[str, Tensor]:
        """Return name -> tensor of one release."""
        return {tensor.name: tensor for tensor in self.side(side) if tensor.is_in(release)}

    def side(self, side: Side) -> tuple[Tensor, ...]:
        """Return the inputs or the outputs of all releases."""
        return self.inputs if side == "input" else self.outputs


def _table(text: str) -> tuple[Tensor, ...]:
    """Read rows `name dtype dims flags [since=V] [until=V] [to=NAME]`.

    Flags are letters: o optional, g ragged, r scalar, - none. A version with "?" is inferred.
    """
    return tuple(_row(line) for line in text.strip().split("\n"))


def _row(line: str) -> Tensor:
    name, dtype, dims, flags, *more = line.split()
    marks = dict(each.split("=", 1) for each in more)
    inferred = any(mark.endswith("?") for mark in marks.values())
    return Tensor(
        name,
        dtype,
        tuple(int(size) for size in dims.split(",")),
        optional="o" in flags,
        ragged="g" in flags,
        scalar="r" in flags,
        since=marks["since"].rstrip("?") if "since" in marks else None,
        until=marks["until"].rstrip("?") if "until" in marks else None,
        evidence="inferred" if inferred else "known",
        renamed_to=marks.get("to", ""),
    )


def _with(tensors: tuple[Tensor, ...], *, scalar: str = "", ragged: str = "") -> tuple[Tensor, ...]:
    """Return the tensors with flags set on those named: the two text models differ in nothing else."""
    return tuple(
        replace(
            tensor,
            scalar=tensor.scalar or tensor.name in scalar.split(),
            ragged=tensor.ragged or tensor.name in ragged.split(),
        )
        for tensor in tensors
    )


_CORE_INPUTS = _table("""
input_ids INT32 -1 og
encoder_input_features FEATURES -1,-1 og since=0.15.0
encoder_output_lengths INT32 1 or since=0.15.0
input_lengths INT32 1 r
request_output_len INT32 1 r
num_return_sequences INT32 1 or since=0.14.0
draft_input_ids INT32 -1 og
draft_logits LOGITS -1,-1 og
draft_acceptance_threshold FP32 1 or since=0.10.0
decoder_input_ids INT32 -1 og since=0.11.0
decoder_input_lengths INT32 1 or since=0.11.0
end_id INT32 1 or
pad_id INT32 1 or
stop_words_list INT32 2,-1 og
bad_words_list INT32 2,-1 og
embedding_bias FP32 -1 og
beam_width INT32 1 or
runtime_top_k INT32 1 or
runtime_top_p_reset_ids INT32 1 or since=0.10.0
min_length INT32 1 or until=0.20.0 to=min_tokens
min_tokens INT32 1 or since=0.20.0
temperature FP32 1 or
runtime_top_p FP32 1 or
runtime_top_p_min FP32 1 or since=0.10.0
runtime_top_p_decay FP32 1 or since=0.10.0
len_penalty FP32 1 or
repetition_penalty FP32 1 or
beam_search_diversity_rate FP32 1 or since=0.10.0
presence_penalty FP32 1 or
frequency_penalty FP32 1 or since=0.8.0
early_stopping BOOL 1 or since=0.10.0
random_seed UINT64 1 or until=0.20.0 to=seed
seed UINT64 1 or since=0.20.0
return_log_probs BOOL 1 or
return_context_logits BOOL 1 or since=0.8.0
return_generation_logits BOOL 1 or since=0.8.0
return_kv_cache_reuse_stats BOOL 1 or since=0.16.0 until=0.19.0 to=return_perf_metrics
return_perf_metrics BOOL 1 or since=0.19.0
return_num_input_tokens BOOL 1 or since=0.21.0?
return_num_output_tokens BOOL 1 or since=0.21.0?
exclude_input_in_output BOOL 1 or since=0.14.0
stop BOOL 1 or
streaming BOOL 1 or
prompt_embedding_table FP16 -1,-1 og until=1.0.0?
prompt_embedding_table PROMPT -1,-1 og since=1.0.0?
prompt_table_extra_ids UINT64 -1 og since=0.13.0
prompt_vocab_size INT32 1 or
cross_attention_mask BOOL -1,-1 og since=0.15.0
mrope_rotary_cos_sin FP32 -1 o since=0.19.0
mrope_position_deltas INT64 1 o since=0.19.0
lora_task_id UINT64 1 or since=0.9.0
lora_weights FP16 -1,-1 og since=0.8.0
lora_config INT32 -1,3 og since=0.8.0
context_phase_params UINT8 -1 og since=0.14.0
skip_cross_attn_blocks BOOL 1 og since=0.16.0
retention_token_range_starts INT32 -1 og since=0.17.0
retention_token_range_ends INT32 -1 og since=0.17.0
retention_token_range_priorities INT32 -1 og since=0.17.0
retention_token_range_durations_ms INT32 -1 og since=0.17.0
retention_decode_priority INT32 1 og since=0.17.0
retention_decode_duration_ms INT32 1 og since=0.17.0
guided_decoding_guide_type STRING 1 og since=0.19.0
guided_decoding_guide STRING 1 og since=0.19.0
lookahead_window_size INT32 1 og since=0.19.0
lookahead_ngram_size INT32 1 og since=0.19.0
lookahead_verification_set_size INT32 1 og since=0.19.0
""")
_STATISTICS = """
cum_log_probs FP32 -1 -
output_log_probs FP32 -1,-1 -
context_logits LOGITS -1,-1 - since=0.8.0
generation_logits LOGITS -1,-1,-1 - since=0.8.0
batch_index INT32 1 - since=0.12.0
sequence_index INT32 1 - since=0.14.0
kv_cache_alloc_new_blocks INT32 1 - since=0.16.0
kv_cache_reused_blocks INT32 1 - since=0.16.0
kv_cache_alloc_total_blocks INT32 1 - since=0.16.0
arrival_time_ns INT64 1 - since=0.19.0
first_scheduled_time_ns INT64 1 - since=0.19.0
first_token_time_ns INT64 1 - since=0.19.0
last_token_time_ns INT64 1 - since=0.19.0
acceptance_rate FP32 1 - since=0.19.0
total_accepted_draft_tokens INT32 1 - since=0.19.0
total_draft_tokens INT32 1 - since=0.19.0
num_input_tokens INT32 1 - since=0.21.0?
num_output_tokens INT32 1 - since=0.21.0?
"""
_CORE_OUTPUTS = _table(
    "output_ids INT32 -1,-1 -\nsequence_length INT32 -1 -\ncontext_phase_params UINT8 -1 - since=0.14.0" + _STATISTICS
)
_TEXT_OUTPUTS = _table("text_output STRING -1 -" + _STATISTICS)
_TEXT_INPUTS = _table("""
text_input STRING 1 -
decoder_text_input STRING 1 o since=0.11.0
max_tokens INT32 1 -
num_return_sequences INT32 1 o since=0.14.0
bad_words STRING -1 o
stop_words STRING -1 o
exclude_input_in_output BOOL 1 o since=0.16.0
end_id INT32 1 o
pad_id INT32 1 o
top_k INT32 1 o
top_p FP32 1 o
temperature FP32 1 o
length_penalty FP32 1 o
repetition_penalty FP32 1 o
min_length INT32 1 o until=0.20.0 to=min_tokens
min_tokens INT32 1 o since=0.20.0
presence_penalty FP32 1 o
frequency_penalty FP32 1 o since=0.8.0
random_seed UINT64 1 o until=0.20.0 to=seed
seed UINT64 1 o since=0.20.0
return_log_probs BOOL 1 o
return_context_logits BOOL 1 o since=0.8.0
return_generation_logits BOOL 1 o since=0.8.0
return_kv_cache_reuse_stats BOOL 1 o since=0.16.0 until=0.19.0 to=return_perf_metrics
return_perf_metrics BOOL 1 o since=0.19.0
return_num_input_tokens BOOL 1 o since=0.21.0?
return_num_output_tokens BOOL 1 o since=0.21.0?
beam_width INT32 1 o
stream BOOL 1 o
prompt_embedding_table FP16 -1,-1 o
prompt_table_extra_id UINT64 1 o since=0.13.0
prompt_vocab_size INT32 1 o
embedding_bias_words STRING -1 o
embedding_bias_weights FP32 -1 o
lora_task_id UINT64 1 o since=0.15.0
lora_weights FP16 -1,-1 og since=0.15.0
lora_config INT32 -1,3 og since=0.15.0
guided_decoding_guide_type STRING 1 o since=0.19.0
guided_decoding_guide STRING 1 o since=0.19.0
""")
_BLS_ONLY = _table("""
image_input FP16 -1,3,-1,-1 o
image_bytes_input UINT8 -1,-1,-1,-1 o since=0.15.0
image_url_input STRING 1 o since=0.15.0
video_bytes_input UINT8 -1,-1,-1,-1 o since=0.16.0
num_draft_tokens INT32 1 o since=0.9.0
use_draft_logits BOOL 1 or since=0.9.0
""")
_BLS_SCALARS = """num_return_sequences return_log_probs return_context_logits return_generation_logits return_kv_cache_reuse_stats
return_perf_metrics return_num_input_tokens return_num_output_tokens lora_task_id"""
_PREPROCESSING_INPUTS = _table("""
QUERY STRING 1 -
DECODER_QUERY STRING 1 o since=0.11.0
IMAGE_BYTES UINT8 -1,-1,-1,-1 o since=0.15.0
IMAGE_URL STRING 1 o since=0.15.0
IMAGES STRING -1 o since=0.21.0?
VIDEO_BYTES UINT8 -1,-1,-1,-1 o since=0.16.0
REQUEST_OUTPUT_LEN INT32 1 -
BAD_WORDS_DICT STRING -1 o
STOP_WORDS_DICT STRING -1 o
EMBEDDING_BIAS_WORDS STRING -1 o
EMBEDDING_BIAS_WEIGHTS FP32 -1 o
END_ID INT32 1 o since=0.8.0
PAD_ID INT32 1 o since=0.8.0
PROMPT_TABLE_EXTRA_ID UINT64 1 o since=0.13.0
""")
_PREPROCESSING_OUTPUTS = _table("""
INPUT_ID INT32 -1 -
REQUEST_INPUT_LEN INT32 1 -
DECODER_INPUT_ID INT32 -1 - since=0.11.0
REQUEST_DECODER_INPUT_LEN INT32 1 - since=0.11.0
BAD_WORDS_IDS INT32 2,-1 -
STOP_WORDS_IDS INT32 2,-1 -
EMBEDDING_BIAS FP32 -1 -
REQUEST_OUTPUT_LEN INT32 -1 -
OUT_END_ID INT32 1 - since=0.8.0
OUT_PAD_ID INT32 1 - since=0.8.0
OUT_PROMPT_TABLE_EXTRA_IDS UINT64 -1 - since=0.13.0
PIXEL_VALUES FP16 -1,-1,-1,-1 - since=0.15.0
ASPECT_RATIO_IDS INT64 -1 - since=0.15.0?
ASPECT_RATIO_MASK INT64 -1,-1 - since=0.15.0?
CROSS_ATTENTION_MASK INT64 -1,-1,-1 - since=0.15.0?
IMAGE_SIZES INT64 2 - since=0.15.0? until=0.21.0?
IMAGE_SIZES INT64 -1,2 - since=0.21.0?
IS_VIDEO_INPUT BOOL 1 - since=0.16.0?
ATTENTION_MASK INT64 -1 - since=0.19.0?
IMAGE_GRID_THW INT64 3 - since=0.19.0?
VISION_INPUT_ID INT32 -1 - since=0.19.0?
""")
_LLMAPI_INPUTS = _table("""
text_input STRING -1 -
streaming BOOL 1 o
sampling_param_best_of INT32 1 o
sampling_param_top_k INT32 1 o
sampling_param_top_p FP32 1 o
sampling_param_temperature FP32 1 o
sampling_param_max_tokens INT32 1 o
sampling_param_frequency_penalty FP32 1 o
sampling_param_presence_penalty FP32 1 o
sampling_param_stop STRING -1 o
sampling_param_seed UINT64 1 o
sampling_param_exclude_input_from_output BOOL 1 o
sampling_param_return_perf_metrics BOOL 1 o since=1.0.0?
return_finish_reason BOOL 1 o
return_stop_reason BOOL 1 o
return_cumulative_logprob BOOL 1 o
stop BOOL 1 o since=1.0.0?
lora_id UINT64 1 o since=1.4.0rc0?
lora_name STRING 1 o since=1.4.0rc0?
lora_path STRING 1 o since=1.4.0rc0?
lora_ckpt_source STRING 1 o since=1.4.0rc0?
image_url STRING -1 o since=1.4.0rc0?
sampling_param_logits_post_processor_name STRING 1 o since=1.4.0rc0?
""")
_LLMAPI_OUTPUTS = _table("""
text_output STRING -1 -
finish_reason STRING -1 -
stop_reason STRING -1 -
cumulative_logprob FP32 -1 -
kv_cache_reused_block INT32 1 - since=1.0.0?
kv_cache_hit_rate FP32 1 - since=1.0.0?
kv_cache_alloc_new_blocks INT32 1 - since=1.0.0?
kv_cache_alloc_total_blocks INT32 1 - since=1.0.0?
kv_cache_missed_block INT32 1 - since=1.0.0?
arrival_time_ns INT64 1 - since=1.0.0?
first_scheduled_time_ns INT64 1 - since=1.0.0?
first_token_time_ns INT64 1 - since=1.0.0?
last_token_time_ns INT64 1 - since=1.0.0?
acceptance_rate FP32 1 - since=1.0.0?
total_accepted_draft_tokens INT32 1 - since=1.0.0?
total_draft_tokens INT32 1 - since=1.0.0?
""")

#: Model of inflight_batcher_llm -> its tensors.
ENGINE_MODELS: dict[str, Signature] = {
    signature.model: signature
    for signature in (
        Signature("preprocessing", _PREPROCESSING_INPUTS, _PREPROCESSING_OUTPUTS),
        Signature("tensorrt_llm", _CORE_INPUTS, _CORE_OUTPUTS),
        Signature(
            "postprocessing",
            _table("TOKENS_BATCH INT32 -1,-1 -\nSEQUENCE_LENGTH INT32 -1 -"),
            _table("OUTPUT STRING -1 -"),
        ),
        Signature("ensemble", _with(_TEXT_INPUTS, ragged="guided_decoding_guide_type guided_decoding_guide"), _TEXT_OUTPUTS),
        Signature("tensorrt_llm_bls", _with((*_TEXT_INPUTS, *_BLS_ONLY), scalar=_BLS_SCALARS), _TEXT_OUTPUTS),
    )
}  # fmt: skip
#: The one model of llmapi.
LLMAPI = Signature("tensorrt_llm", _LLMAPI_INPUTS, _LLMAPI_OUTPUTS)
