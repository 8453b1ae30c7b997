"""The public tensors of TensorRT-LLM 1.2's inflight_batcher_llm, written down by hand as an oracle for the templates.

Source: https://github.com/NVIDIA/TensorRT-LLM/tree/v1.2.0/triton_backend/all_models/inflight_batcher_llm (config.pbtxt of
each model). A tensor is "name type dims flags": flags are o optional, g ragged, r reshape to no dimensions.
"""

from __future__ import annotations

Tensor = tuple[str, tuple[int, ...], frozenset[str]]


def _table(text: str) -> dict[str, Tensor]:
    rows = (line.split() for line in text.strip().split("\n"))
    return {
        name: (dtype, tuple(int(size) for size in dims.split(",")), frozenset(flags[0] if flags else ""))
        for name, dtype, dims, *flags in rows
    }


CORE_INPUTS = _table("""
input_ids INT32 -1 og
encoder_input_features FP16 -1,-1 og
encoder_output_lengths INT32 1 or
input_lengths INT32 1 r
request_output_len INT32 1 r
num_return_sequences INT32 1 or
draft_input_ids INT32 -1 og
draft_logits FP32 -1,-1 og
draft_acceptance_threshold FP32 1 or
decoder_input_ids INT32 -1 og
decoder_input_lengths INT32 1 or
end_id INT32 1 or
pad_id INT32 1 or
stop_words_list INT32 2,-1 og
bad_words_list INT32 2,-1 og
embedding_bias FP32 -1 og
beam_width INT32 1 or
runtime_top_k INT32 1 or
runtime_top_p_reset_ids INT32 1 or
min_tokens INT32 1 or
temperature FP32 1 or
runtime_top_p FP32 1 or
runtime_top_p_min FP32 1 or
runtime_top_p_decay FP32 1 or
len_penalty FP32 1 or
repetition_penalty FP32 1 or
beam_search_diversity_rate FP32 1 or
presence_penalty FP32 1 or
frequency_penalty FP32 1 or
early_stopping BOOL 1 or
seed UINT64 1 or
return_log_probs BOOL 1 or
return_context_logits BOOL 1 or
return_generation_logits BOOL 1 or
return_perf_metrics BOOL 1 or
return_num_input_tokens BOOL 1 or
return_num_output_tokens BOOL 1 or
exclude_input_in_output BOOL 1 or
stop BOOL 1 or
streaming BOOL 1 or
prompt_embedding_table FP16 -1,-1 og
prompt_table_extra_ids UINT64 -1 og
prompt_vocab_size INT32 1 or
cross_attention_mask BOOL -1,-1 og
mrope_rotary_cos_sin FP32 -1 o
mrope_position_deltas INT64 1 o
lora_task_id UINT64 1 or
lora_weights FP16 -1,-1 og
lora_config INT32 -1,3 og
context_phase_params UINT8 -1 og
skip_cross_attn_blocks BOOL 1 og
retention_token_range_starts INT32 -1 og
retention_token_range_ends INT32 -1 og
retention_token_range_priorities INT32 -1 og
retention_token_range_durations_ms INT32 -1 og
retention_decode_priority INT32 1 og
retention_decode_duration_ms INT32 1 og
guided_decoding_guide_type STRING 1 og
guided_decoding_guide STRING 1 og
lookahead_window_size INT32 1 og
lookahead_ngram_size INT32 1 og
lookahead_verification_set_size INT32 1 og
""")

_STATISTICS = """
cum_log_probs FP32 -1
output_log_probs FP32 -1,-1
context_logits FP32 -1,-1
generation_logits FP32 -1,-1,-1
batch_index INT32 1
sequence_index INT32 1
kv_cache_alloc_new_blocks INT32 1
kv_cache_reused_blocks INT32 1
kv_cache_alloc_total_blocks INT32 1
arrival_time_ns INT64 1
first_scheduled_time_ns INT64 1
first_token_time_ns INT64 1
last_token_time_ns INT64 1
acceptance_rate FP32 1
total_accepted_draft_tokens INT32 1
total_draft_tokens INT32 1
num_input_tokens INT32 1
num_output_tokens INT32 1
"""
CORE_OUTPUTS = _table("output_ids INT32 -1,-1\nsequence_length INT32 -1\ncontext_phase_params UINT8 -1" + _STATISTICS)
TEXT_OUTPUTS = _table("text_output STRING -1" + _STATISTICS)

_TEXT_INPUTS = """
text_input STRING 1
decoder_text_input STRING 1 o
max_tokens INT32 1
bad_words STRING -1 o
stop_words STRING -1 o
exclude_input_in_output BOOL 1 o
end_id INT32 1 o
pad_id INT32 1 o
top_k INT32 1 o
top_p FP32 1 o
temperature FP32 1 o
length_penalty FP32 1 o
repetition_penalty FP32 1 o
min_tokens INT32 1 o
presence_penalty FP32 1 o
frequency_penalty FP32 1 o
seed UINT64 1 o
beam_width INT32 1 o
stream BOOL 1 o
prompt_embedding_table FP16 -1,-1 o
prompt_table_extra_id UINT64 1 o
prompt_vocab_size INT32 1 o
embedding_bias_words STRING -1 o
embedding_bias_weights FP32 -1 o
lora_weights FP16 -1,-1 og
lora_config INT32 -1,3 og
"""
ENSEMBLE_INPUTS = _table(
    _TEXT_INPUTS
    + """num_return_sequences INT32 1 o
return_log_probs BOOL 1 o
return_context_logits BOOL 1 o
return_generation_logits BOOL 1 o
return_perf_metrics BOOL 1 o
return_num_input_tokens BOOL 1 o
return_num_output_tokens BOOL 1 o
lora_task_id UINT64 1 o
guided_decoding_guide_type STRING 1 og
guided_decoding_guide STRING 1 og
"""
)
BLS_INPUTS = _table(
    _TEXT_INPUTS
    + """num_return_sequences INT32 1 or
return_log_probs BOOL 1 or
return_context_logits BOOL 1 or
return_generation_logits BOOL 1 or
return_perf_metrics BOOL 1 or
return_num_input_tokens BOOL 1 or
return_num_output_tokens BOOL 1 or
lora_task_id UINT64 1 or
guided_decoding_guide_type STRING 1 o
guided_decoding_guide STRING 1 o
image_input FP16 -1,3,-1,-1 o
image_bytes_input UINT8 -1,-1,-1,-1 o
image_url_input STRING 1 o
video_bytes_input UINT8 -1,-1,-1,-1 o
num_draft_tokens INT32 1 o
use_draft_logits BOOL 1 or
"""
)

PREPROCESSING_INPUTS = _table("""
QUERY STRING 1
DECODER_QUERY STRING 1 o
IMAGE_BYTES UINT8 -1,-1,-1,-1 o
IMAGE_URL STRING 1 o
IMAGES STRING -1 o
VIDEO_BYTES UINT8 -1,-1,-1,-1 o
REQUEST_OUTPUT_LEN INT32 1
BAD_WORDS_DICT STRING -1 o
STOP_WORDS_DICT STRING -1 o
EMBEDDING_BIAS_WORDS STRING -1 o
EMBEDDING_BIAS_WEIGHTS FP32 -1 o
END_ID INT32 1 o
PAD_ID INT32 1 o
PROMPT_TABLE_EXTRA_ID UINT64 1 o
""")
PREPROCESSING_OUTPUTS = _table("""
INPUT_ID INT32 -1
REQUEST_INPUT_LEN INT32 1
DECODER_INPUT_ID INT32 -1
REQUEST_DECODER_INPUT_LEN INT32 1
BAD_WORDS_IDS INT32 2,-1
STOP_WORDS_IDS INT32 2,-1
EMBEDDING_BIAS FP32 -1
REQUEST_OUTPUT_LEN INT32 -1
OUT_END_ID INT32 1
OUT_PAD_ID INT32 1
OUT_PROMPT_TABLE_EXTRA_IDS UINT64 -1
PIXEL_VALUES FP16 -1,-1,-1,-1
ASPECT_RATIO_IDS INT64 -1
ASPECT_RATIO_MASK INT64 -1,-1
CROSS_ATTENTION_MASK INT64 -1,-1,-1
IMAGE_SIZES INT64 -1,2
IS_VIDEO_INPUT BOOL 1
ATTENTION_MASK INT64 -1
IMAGE_GRID_THW INT64 3
VISION_INPUT_ID INT32 -1
""")

#: Model -> (inputs, outputs) of 1.2.
PUBLIC: dict[str, tuple[dict[str, Tensor], dict[str, Tensor]]] = {
    "preprocessing": (PREPROCESSING_INPUTS, PREPROCESSING_OUTPUTS),
    "tensorrt_llm": (CORE_INPUTS, CORE_OUTPUTS),
    "postprocessing": (
        _table("TOKENS_BATCH INT32 -1,-1\nSEQUENCE_LENGTH INT32 -1"),
        _table("OUTPUT STRING -1"),
    ),
    "ensemble": (ENSEMBLE_INPUTS, TEXT_OUTPUTS),
    "tensorrt_llm_bls": (BLS_INPUTS, TEXT_OUTPUTS),
}

_TEXT_MODELS = ("ensemble", "tensorrt_llm_bls")
_MODELS = ("tensorrt_llm", *_TEXT_MODELS)
_COUNTS = ("num_input_tokens", "num_output_tokens")
_TIMES = (
    *("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns"),
    *("acceptance_rate", "total_accepted_draft_tokens", "total_draft_tokens"),
)
_GUIDES = ("guided_decoding_guide_type", "guided_decoding_guide")
_CORE_OF_0_19 = (
    *("mrope_rotary_cos_sin", "mrope_position_deltas"),
    *("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size"),
)
#: Outputs of preprocessing whose beginnings the specification does not date; those of models that 0.19 brought are taken to be of 0.19.
_VISION_OF_0_19 = ("ATTENTION_MASK", "IMAGE_GRID_THW", "VISION_INPUT_ID")


def public_of(release: str) -> dict[str, tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """Return the tensors of a release: those of 1.2 with each change of Triton specification 3.3 undone, newest first."""
    tables = {model: (dict(inputs), dict(outputs)) for model, (inputs, outputs) in PUBLIC.items()}

    def rename(models: tuple[str, ...], new: str, old: str) -> None:
        for model in models:
            inputs = tables[model][0]
            inputs[old] = inputs.pop(new)

    def drop(models: tuple[str, ...], side: int, names: tuple[str, ...]) -> None:
        for model in models:
            for name in names:
                tables[model][side].pop(name, None)

    line = tuple(int(part) for part in release.split(".")[:2])
    if line < (0, 21):  # PR #5445, and what came with it
        drop(_MODELS, 0, tuple(f"return_{name}" for name in _COUNTS))
        drop(_MODELS, 1, _COUNTS)
        drop(("preprocessing",), 0, ("IMAGES",))
        tables["preprocessing"][1]["IMAGE_SIZES"] = ("INT64", (2,), frozenset())
    if line < (0, 20):
        rename(_MODELS, "seed", "random_seed")
        rename(_MODELS, "min_tokens", "min_length")
    if line < (0, 19):
        rename(_MODELS, "return_perf_metrics", "return_kv_cache_reuse_stats")
        drop(_MODELS, 1, _TIMES)
        drop(_MODELS, 0, _GUIDES)
        drop(("tensorrt_llm",), 0, _CORE_OF_0_19)
        drop(("preprocessing",), 1, _VISION_OF_0_19)
    return tables
