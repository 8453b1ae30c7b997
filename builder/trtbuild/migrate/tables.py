"""What every setting of a deployment with engines becomes. Data only.

Sources: Triton specification 1.1 to 1.8 (parameters of the stock models), LLM API specification 1.3 to 1.8 (arguments).
"""

from __future__ import annotations

from dataclasses import dataclass

from trtbuild.migrate.readers import Reader, amount, boolean, count, counts, one_of, share, words

EXTRA = "llm_api.extra."


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a config.pbtxt that has an equivalent.

    Attributes:
        new: key of trtbuild.yaml; below `llm_api.extra.` an argument of the LLM API.
        read: makes the value of the text.
    """

    new: str
    read: Reader


#: Parameters of `tensorrt_llm`.
CORE: dict[str, Parameter] = {
    "max_beam_width": Parameter("limits.max_beam_width", count),
    "batch_scheduler_policy": Parameter("scheduling.policy", one_of("guaranteed_no_evict", "max_utilization", "static_batch")),
    "kv_cache_free_gpu_mem_fraction": Parameter("kv_cache.free_gpu_memory_fraction", share),
    "max_tokens_in_paged_kv_cache": Parameter("kv_cache.max_tokens", count),
    "kv_cache_host_memory_bytes": Parameter("kv_cache.host_cache_bytes", amount),
    "max_attention_window_size": Parameter("kv_cache.max_attention_window", counts),
    "enable_kv_cache_reuse": Parameter("kv_cache.enable_block_reuse", boolean),
    "enable_chunked_context": Parameter("scheduling.chunked_context", boolean),
    "kv_cache_onboard_blocks": Parameter(f"{EXTRA}kv_cache_config.onboard_blocks", boolean),
    "sink_token_length": Parameter(f"{EXTRA}kv_cache_config.sink_token_length", amount),
    "lora_cache_optimal_adapter_size": Parameter(f"{EXTRA}peft_cache_config.optimal_adapter_size", count),
    "lora_cache_max_adapter_size": Parameter(f"{EXTRA}peft_cache_config.max_adapter_size", count),
    "lora_cache_gpu_memory_fraction": Parameter("lora.device_cache_fraction", share),
    "lora_cache_host_memory_bytes": Parameter("lora.host_cache_bytes", amount),
    "guided_decoding_backend": Parameter("llm_api.guided_decoding", one_of("xgrammar", "llguidance")),
    "iter_stats_max_iterations": Parameter(f"{EXTRA}iter_stats_max_iterations", amount),
    "request_stats_max_iterations": Parameter(f"{EXTRA}request_stats_max_iterations", amount),
}  # fmt: skip
#: Parameters of the models around it, ours included.
TEXT: dict[str, Parameter] = {
    "add_special_tokens": Parameter("serving.add_special_tokens", boolean),
    "skip_special_tokens": Parameter("serving.skip_special_tokens", boolean),
    "stop_words": Parameter("serving.stop_words", words),
}
#: Parameters without an equivalent -> what to do. Those with an empty text need nothing.
DROPPED: dict[str, str] = {
    "gpt_model_type": "batching is always in flight",
    "gpt_model_path": "there is no engine; its limits are taken over",
    "encoder_model_path": "",
    "FORCE_CPU_ONLY_INPUT_TENSORS": "",
    "executor_worker_path": "the LLM API starts its own workers",
    "worker_path": "the LLM API starts its own workers",
    "participant_ids": "the LLM API starts its own workers",
    "num_nodes": "start the server under trtllm-llmapi-launch on every node",
    "gpu_device_ids": "set CUDA_VISIBLE_DEVICES for the server",
    "recv_poll_period_ms": "",
    "cancellation_check_period_ms": "it is in triton_config of model.yaml",
    "stats_check_period_ms": "the model has no metrics of its own; trtllm-serve has",
    "exclude_input_in_output": "a request says sampling_param_exclude_input_from_output; without it the prompt comes back, as before",
    "normalize_log_probs": "log probabilities are not normalized",
    "multi_block_mode": "always on",
    "enable_context_fmha_fp32_acc": "the kernels decide",
    "cuda_graph_mode": "graphs are on unless llm_api.cuda_graphs is false",
    "cuda_graph_cache_size": "sizes: llm_api.extra.cuda_graph_config",
    "enable_trt_overlap": "it had no effect; llm_api.overlap_scheduler is on",
    "xgrammar_tokenizer_info_path": "the LLM API makes it from the tokenizer",
    "speculative_decoding_fast_logits": "",
    "medusa_choices": "Medusa is part of an engine",
    "eagle_choices": "trees of EAGLE are part of an engine",
    "tokenizer_dir": "the tokenizer comes with the model folder",
    "lookahead_ngram_size": "lookahead is part of an engine",
    "lookahead_verification_set_size": "lookahead is part of an engine",
    "tokens_per_block": "",
    "max_num_tokens": "",
    "max_seq_len": "",
    "vocab_size": "",
    "engine_dir": "there is no engine",
    "max_draft_len": "it is that of the engine",
    "draft_logits": "",
    "tensorrt_llm_model_name": "there is one model",
    "accumulate_tokens": "streams of the one model always hold all text so far; trtbuild's client reads both",
}
#: Parameters that need a decision -> which.
DECIDE: dict[str, str] = {
    "lora_prefetch_dir": "name the adapters as PEFT folders in lora.adapters: the files of the C++ cache are not read",
    "cross_kv_cache_fraction": "encoder-decoder models are not served by target pytorch",
    "gpu_weights_percent": "weights cannot be streamed from the host: use a smaller format of weights, or more GPUs",
    "chat_template": "the model takes prompts as they are: apply the template in the client, or serve chats with trtllm-serve",
    "system_prompt": "send it with the prompt",
    "tensorrt_llm_draft_model_name": "set speculative.mode draft_target and speculative.draft_model",
    "multimodal_encoders_name": "multimodal models: serve the folder with trtllm-serve",
    "multimodal_model_path": "multimodal models: serve the folder with trtllm-serve",
    "lookahead_window_size": "lookahead is part of an engine: speculative.mode ngram needs no draft either",
}
#: decoding_mode -> mode of speculation that the engine had.
DECODING_MODES: dict[str, str] = {
    "medusa": "medusa", "redrafter": "redrafter", "explicit_draft_tokens": "redrafter", "lookahead": "lookahead", "eagle": "eagle",
}  # fmt: skip
#: speculative_decoding_mode of an engine's build_config -> the same.
ENGINE_MODES: dict[str, str] = {
    "draft_tokens_external": "draft_target", "medusa": "medusa", "lookahead_decoding": "lookahead", "explicit_draft_tokens": "redrafter", "eagle": "eagle",
}  # fmt: skip

#: Format of weights of an engine -> scheme.
SCHEMES: dict[str, str] = {
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8_per_channel_per_token",
    "FP8_BLOCK_SCALES": "fp8_block",
    "W4A16_AWQ": "int4_awq",
    "W4A8_AWQ": "w4a8_awq",
    "NVFP4": "nvfp4",
    "W4A16_GPTQ": "int4_gptq",
    "W8A16": "int8_weight_only",
    "W4A16": "int4_weight_only",
    "W8A8_SQ_PER_CHANNEL": "int8_smoothquant",
    "W8A8_SQ_PER_TENSOR_PLUGIN": "int8_smoothquant",
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN": "int8_smoothquant",
    "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN": "int8_smoothquant",
    "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN": "int8_smoothquant",
}

#: Fields of trtbuild.yaml (by prefix) that target pytorch does not read -> what to do.
FIELDS_DROPPED: dict[str, str] = {
    "engine": "there is no engine",
    "parallel.embedding": "the server cuts the embedding itself",
    "limits.opt_num_tokens": "kernels are tuned when the server starts",
    "limits.max_input_len": "prompts up to max_seq_len are taken",
    "serving.preprocessing_instances": "there is one model",
    "serving.bls_instances": "there is one model",
    "serving.max_queue_size": "the LLM API has a queue of its own",
    "serving.max_queue_delay_us": "the LLM API makes batches itself",
    "speculative.lookahead": "lookahead is part of an engine",
}
#: Fields that need a decision when they are set -> which.
FIELDS_DECIDE: dict[str, str] = {
    "serving.chat_template": DECIDE["chat_template"],
    "serving.system_prompt": DECIDE["system_prompt"],
}
