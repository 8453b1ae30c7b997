"""The models that the mock claims to have: tensors by variant and release of TensorRT-LLM, as data.

Checked against the templates of TensorRT-LLM's Triton backend: inflight_batcher_llm (ensemble, tensorrt_llm_bls,
tensorrt_llm) at 0.17, 0.19 and 1.0 to 1.2, and llmapi/tensorrt_llm at 1.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trtbuild_client.errors import InvalidRequest
from trtbuild_client.mock.options import MockOptions
from trtbuild_client.wire import TensorSpec

_TEXT = """text_input:BYTES:1! decoder_text_input:BYTES:1 max_tokens:INT32:1! num_return_sequences:INT32:1 bad_words:BYTES:-1
stop_words:BYTES:-1 exclude_input_in_output:BOOL:1 end_id:INT32:1 pad_id:INT32:1 top_k:INT32:1 top_p:FP32:1
temperature:FP32:1 length_penalty:FP32:1 repetition_penalty:FP32:1 min_tokens:INT32:1 presence_penalty:FP32:1
frequency_penalty:FP32:1 seed:UINT64:1 return_log_probs:BOOL:1 return_context_logits:BOOL:1
return_generation_logits:BOOL:1 return_perf_metrics:BOOL:1 return_num_input_tokens:BOOL:1
return_num_output_tokens:BOOL:1 beam_width:INT32:1 stream:BOOL:1 prompt_embedding_table:FP16:-1,-1
prompt_table_extra_id:UINT64:1 prompt_vocab_size:INT32:1 embedding_bias_words:BYTES:-1 embedding_bias_weights:FP32:-1
lora_task_id:UINT64:1 lora_weights:FP16:-1,-1 lora_config:INT32:-1,3 guided_decoding_guide_type:BYTES:1
guided_decoding_guide:BYTES:1"""
_BLS_MORE = """image_input:FP16:-1,3,-1,-1 image_bytes_input:UINT8:-1,-1,-1,-1 image_url_input:BYTES:1
video_bytes_input:UINT8:-1,-1,-1,-1 num_draft_tokens:INT32:1 use_draft_logits:BOOL:1"""
_CORE = """input_ids:INT32:-1 input_lengths:INT32:1! request_output_len:INT32:1! num_return_sequences:INT32:1
draft_input_ids:INT32:-1 decoder_input_ids:INT32:-1 decoder_input_lengths:INT32:1 end_id:INT32:1 pad_id:INT32:1
stop_words_list:INT32:2,-1 bad_words_list:INT32:2,-1 embedding_bias:FP32:-1 beam_width:INT32:1 temperature:FP32:1
runtime_top_k:INT32:1 runtime_top_p:FP32:1 len_penalty:FP32:1 repetition_penalty:FP32:1 min_tokens:INT32:1
presence_penalty:FP32:1 frequency_penalty:FP32:1 seed:UINT64:1 return_log_probs:BOOL:1 return_context_logits:BOOL:1
return_generation_logits:BOOL:1 return_perf_metrics:BOOL:1 return_num_input_tokens:BOOL:1
return_num_output_tokens:BOOL:1 exclude_input_in_output:BOOL:1 stop:BOOL:1 streaming:BOOL:1
prompt_embedding_table:FP16:-1,-1 prompt_vocab_size:INT32:1 lora_task_id:UINT64:1 lora_weights:FP16:-1,-1
lora_config:INT32:-1,3 guided_decoding_guide_type:BYTES:1 guided_decoding_guide:BYTES:1"""
_PREPROCESSING = """QUERY:BYTES:1! DECODER_QUERY:BYTES:1 REQUEST_OUTPUT_LEN:INT32:1! BAD_WORDS_DICT:BYTES:-1
STOP_WORDS_DICT:BYTES:-1 EMBEDDING_BIAS_WORDS:BYTES:-1 EMBEDDING_BIAS_WEIGHTS:FP32:-1 END_ID:INT32:1 PAD_ID:INT32:1"""
_LLMAPI = """text_input:BYTES:-1! streaming:BOOL:1 sampling_param_best_of:INT32:1 sampling_param_temperature:FP32:1
sampling_param_top_k:INT32:1 sampling_param_top_p:FP32:1 sampling_param_frequency_penalty:FP32:1
sampling_param_presence_penalty:FP32:1 sampling_param_max_tokens:INT32:1 sampling_param_stop:BYTES:-1
sampling_param_seed:UINT64:1 sampling_param_exclude_input_from_output:BOOL:1 return_finish_reason:BOOL:1
return_stop_reason:BOOL:1 return_cumulative_logprob:BOOL:1 sampling_param_return_perf_metrics:BOOL:1 stop:BOOL:1"""

_TIMES = (
    "arrival_time_ns:INT64:1 first_scheduled_time_ns:INT64:1 first_token_time_ns:INT64:1 last_token_time_ns:INT64:1"
)
_BLOCKS = "kv_cache_alloc_new_blocks:INT32:1 kv_cache_reused_blocks:INT32:1 kv_cache_alloc_total_blocks:INT32:1"
_DRAFT = "acceptance_rate:FP32:1 total_accepted_draft_tokens:INT32:1 total_draft_tokens:INT32:1"
_NUMBERS = "num_input_tokens:INT32:1 num_output_tokens:INT32:1"
_LOG_PROBS = "cum_log_probs:FP32:-1 output_log_probs:FP32:-1,-1"
_COMMON_OUT = f"{_LOG_PROBS} batch_index:INT32:1 sequence_index:INT32:1 {_BLOCKS} {_TIMES} {_DRAFT} {_NUMBERS}"
_TEXT_OUT = f"text_output:BYTES:-1 {_COMMON_OUT}"
_CORE_OUT = f"output_ids:INT32:-1,-1 sequence_length:INT32:-1 {_COMMON_OUT}"
_LLMAPI_OUT = (
    f"text_output:BYTES:-1 finish_reason:BYTES:-1 stop_reason:BYTES:-1 cumulative_logprob:FP32:-1 {_TIMES} {_DRAFT}"
)

#: First release -> what it is called there (name of 1.2 -> name, "" for what it lacks). The last row that is not newer
#: than the release counts, and rows do not add up. Source: templates at v0.16.0, v0.19.0, c2e65b8 (0.20), v1.0.0.
_SPELLINGS: tuple[tuple[tuple[int, int], Mapping[str, str]], ...] = (
    ((0, 16), {
        "seed": "random_seed", "min_tokens": "min_length", "return_perf_metrics": "return_kv_cache_reuse_stats",
        "guided_decoding_guide_type": "", "guided_decoding_guide": "",
        **dict.fromkeys([each.partition(":")[0] for each in f"{_TIMES} {_DRAFT}".split()], ""),
        **dict.fromkeys(("return_num_input_tokens", "return_num_output_tokens", "num_input_tokens", "num_output_tokens"), ""),
    }),
    ((0, 19), {
        "seed": "random_seed", "min_tokens": "min_length",
        **dict.fromkeys(("return_num_input_tokens", "return_num_output_tokens", "num_input_tokens", "num_output_tokens"), ""),
    }),
    ((0, 20), dict.fromkeys(
        ("return_num_input_tokens", "return_num_output_tokens", "num_input_tokens", "num_output_tokens"), ""
    )),
    ((1, 0), {}),
)  # fmt: skip

_Model = tuple[str, str, tuple[str, ...], bool]  # inputs, outputs, steps, whether its policy follows the option
_VARIANTS: dict[str, dict[str, _Model]] = {
    "engine": {
        "ensemble": (_TEXT, _TEXT_OUT, ("preprocessing", "tensorrt_llm", "postprocessing"), True),
        "tensorrt_llm_bls": (f"{_TEXT} {_BLS_MORE}", _TEXT_OUT, (), True),
        "tensorrt_llm": (_CORE, _CORE_OUT, (), True),
        "preprocessing": (_PREPROCESSING, "INPUT_ID:INT32:-1 REQUEST_INPUT_LEN:INT32:1", (), False),
        "postprocessing": ("TOKENS_BATCH:INT32:-1,-1! SEQUENCE_LENGTH:INT32:-1!", "OUTPUT:BYTES:-1", (), False),
    },
    "llmapi": {"tensorrt_llm": (_LLMAPI, _LLMAPI_OUT, (), True)},
}
#: As the templates have it; llmapi knows 0 only.
_MAX_BATCH_SIZE = {"engine": 64, "llmapi": 0}


@dataclass(frozen=True, slots=True)
class Model:
    """One model.

    Attributes:
        spelling: what this release calls a tensor of 1.2, "" for what it lacks; names that are not in it are equal.
        is_served: it can be asked; the others are only described.
        parameters: of its configuration.
    """

    name: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    max_batch_size: int
    is_decoupled: bool
    steps: tuple[str, ...]
    spelling: Mapping[str, str]
    is_cumulative: bool
    is_served: bool
    parameters: Mapping[str, str]

    def spelled(self, name: str) -> str:
        """Return what this release calls a tensor of 1.2; "" when it lacks it."""
        return self.spelling.get(name, name)


def models(options: MockOptions) -> dict[str, Model]:
    """Return the models of a mock.

    Raises:
        InvalidRequest: the release is older than what is known.
    """
    spelling = _spelling(options.release) if options.variant == "engine" else {}
    found = {}
    for name, (inputs, outputs, steps, follows) in _VARIANTS[options.variant].items():
        found[name] = Model(
            name=name,
            inputs=_specs(inputs, spelling),
            outputs=_specs(outputs, spelling),
            max_batch_size=_MAX_BATCH_SIZE[options.variant],
            is_decoupled=follows and options.is_decoupled,
            steps=steps,
            spelling=spelling,
            is_cumulative=options.variant == "llmapi" or (options.has_cumulative_bls and name == "tensorrt_llm_bls"),
            is_served=follows,
            parameters=_parameters(name, options),
        )
    return found


def _parameters(name: str, options: MockOptions) -> Mapping[str, str]:
    """Return the parameters of a model's configuration that clients read; names of trtbuild's templates."""
    found = {}
    if name == "tensorrt_llm_bls":
        found["tensorrt_llm_model_name"] = "tensorrt_llm"
        if options.has_cumulative_bls:
            found["accumulate_tokens"] = "true"
    if options.max_seq_len is not None and name == ("preprocessing" if options.variant == "engine" else "tensorrt_llm"):
        found["max_seq_len"] = str(options.max_seq_len)
    return found


def _spelling(release: str) -> Mapping[str, str]:
    parts = release.split(".")
    if len(parts) < 2 or not (parts[0].isdecimal() and parts[1].isdecimal()):
        raise InvalidRequest(f"release '{release}' is no version", hint="Write it as 0.17 or 1.2.")
    asked = (int(parts[0]), int(parts[1]))
    rows = [names for first, names in _SPELLINGS if first <= asked]
    if not rows:
        raise InvalidRequest(f"release {release} is older than what the mock knows", hint="0.16 and newer are known.")
    return rows[-1]


def _specs(table: str, spelling: Mapping[str, str]) -> dict[str, TensorSpec]:
    specs = {}
    for row in table.split():
        name, dtype, dims = row.rstrip("!").split(":")
        name = spelling.get(name, name)
        if name:
            specs[name] = TensorSpec(dtype, tuple(int(dim) for dim in dims.split(",")), not row.endswith("!"))
    return specs
