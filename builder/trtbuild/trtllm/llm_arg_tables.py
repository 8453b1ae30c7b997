"""The arguments of TensorRT-LLM's LLM API: top level and nested objects, with the releases that have them.

Data only. Source: LLM API specification 1.3 to 1.11 (`llm_args.py` of about 1.1, of January 2026 and of mid 2026, and the
calendar of renames). What is unmarked there was read in the first and the last of them.
"""

from __future__ import annotations

from trtbuild.trtllm.llm_arg_types import (
    BY_PREFIX,
    EVER,
    NEW_IN_1_1,
    NEW_IN_1_2,
    NEWEST,
    ONLY_1_0,
    ONLY_1_2,
    RC4,
    SAMPLER,
    SINCE_1_1,
    SINCE_1_2,
    UNTIL_1_3,
    UNTIL_RC21,
    Arg,
    Life,
    Value,
    anything,
    flag,
    in_,
    integer,
    mapping,
    number,
    numbers,
    section,
    text,
    texts,
)  # fmt: skip
from trtbuild.trtllm.versions import Span

_OBJECT = "it takes a Python object, which a YAML file cannot hold"
_ENGINE = "only the TensorRT engine backend reads it; target pytorch has none"
_QUANT = (
    "the PyTorch backend takes quantization from the checkpoint (hf_quant_config.json), never from its arguments; use the section "
    "quantization of trtbuild.yaml"
)
#: WIDEEP is gone in newest source (1.11).
_WIDEEP = Life(Span("1.2.0", "1.3.0rc21", "inferred", "1.2-era source; gone in newest"))
#: Not in the copy around 1.1; the default of 1.2 (1.6, doubt 3).
_AUTO = Life(
    Span("1.2.0", None, "inferred", "1.2-era source"), Span("1.1.0", "1.2.0", "inferred", "not in the copy around 1.1")
)

TOP: dict[str, Arg] = {
    "model": text(refused="the server gets the checkpoint on its command line"),
    "tokenizer": text(default="the model's folder"),
    "tokenizer_mode": text("auto", "slow", default="auto"),
    "custom_tokenizer": text(life=SINCE_1_2),
    "skip_tokenizer_init": flag(),
    "trust_remote_code": flag(refused="it would run code of the model's author in the server"),
    "revision": text(), "tokenizer_revision": text(),
    "model_kwargs": mapping(life=SINCE_1_1),
    "dtype": text("auto", "float16", "bfloat16", "float32", default="auto"),
    "tensor_parallel_size": integer("1", low=1),
    "pipeline_parallel_size": integer("1", low=1),
    "pp_partition": numbers(life=SINCE_1_1),
    "context_parallel_size": integer("1", low=1),
    "cp_config": section("cp_config"),
    "gpus_per_node": integer(low=1),
    "moe_cluster_parallel_size": integer(low=-1, note="deprecated in newest"),
    "moe_tensor_parallel_size": integer(low=-1),
    "moe_expert_parallel_size": integer(low=-1),
    "enable_attention_dp": flag(),
    "enable_lm_head_tp_in_adp": flag(life=SINCE_1_1),
    "load_format": text("auto", "dummy", Value("vision_only", SINCE_1_1), Value("gms", NEWEST), default="auto", note="dummy gives random weights"),
    "enable_lora": flag(note="ignored when lora_config is given"),
    "lora_config": section("lora_config"),
    "kv_cache_config": section("kv_cache_config"),
    "enable_chunked_prefill": flag(),
    "guided_decoding_backend": text("xgrammar", "llguidance"),
    "batched_logits_processor": anything(refused=_OBJECT),
    "iter_stats_max_iterations": integer(low=-1), "request_stats_max_iterations": integer(low=-1),
    "peft_cache_config": section("peft_cache_config"),
    "scheduler_config": section("scheduler_config"),
    "cache_transceiver_config": section("cache_transceiver_config"),
    "sparse_attention_config": anything(life=SINCE_1_2, note="prototype"),
    "speculative_config": section("speculative_config"),
    "max_batch_size": integer("2048", low=1),
    "max_input_len": integer("1024", low=1, note="meaningful for engines only"),
    "max_seq_len": integer("the model's", low=1),
    "max_beam_width": integer("1", low=1),
    "max_num_tokens": integer("8192", low=1),
    "gather_generation_logits": flag(),
    "num_postprocess_workers": integer("0", low=0), "postprocess_tokenizer_dir": text(),
    "reasoning_parser": text(), "otlp_traces_endpoint": text(life=SINCE_1_1),
    "return_perf_metrics": flag(life=SINCE_1_1),
    "perf_metrics_max_requests": integer("0", low=0, life=SINCE_1_1, note="deprecated in newest for perf_metrics_output_dir"),
    "orchestrator_type": text("rpc", "ray", life=NEW_IN_1_2),
    "env_overrides": mapping(life=SINCE_1_2),
    "backend": text(refused="target pytorch means the PyTorch backend"),
    "decoding_config": anything(refused="deprecated; use the section speculative of trtbuild.yaml"),
    "quant_config": mapping(refused=_QUANT), "calib_config": mapping(refused=_QUANT),
    "build_config": mapping(life=UNTIL_RC21, refused=_ENGINE),
    **{name: anything(life=UNTIL_RC21, refused=_ENGINE) for name in (
        "enable_tqdm", "workspace", "fail_fast_on_attention_window_too_large", "enable_build_cache", "extended_runtime_perf_knob_config",
        "embedding_parallel_mode", "fast_build", "enable_prompt_adapter", "max_prompt_adapter_token", "batching_type", "normalize_log_probs",
    )},
    # PyTorch backend (1.6)
    "cuda_graph_config": section("cuda_graph_config", note="null captures no graphs"),
    "attn_backend": text("TRTLLM", "FLASHINFER", "VANILLA", default="TRTLLM"),
    "moe_config": section("moe_config"),
    "nvfp4_gemm_config": section("nvfp4_gemm_config", life=SINCE_1_2),
    "attention_dp_config": section("attention_dp_config", life=SINCE_1_1),
    "disable_overlap_scheduler": flag(),
    "enable_mixed_sampler": flag(life=ONLY_1_0, renamed_to="sampler_type"),
    "enable_trtllm_sampler": flag(life=ONLY_1_0, renamed_to="sampler_type"),
    "sampler_type": text("auto", "TRTLLMSampler", "TorchSampler", default="auto", life=SAMPLER),
    "sampler_force_async_worker": flag(life=SINCE_1_2),
    "stream_interval": integer("1", low=1),
    "enable_iter_perf_stats": flag(), "enable_iter_req_stats": flag(), "print_iter_log": flag(),
    "batch_wait_timeout_ms": number("0", low=0, life=SINCE_1_1),
    "batch_wait_timeout_iters": integer("0", low=0, life=SINCE_1_2),
    "batch_wait_max_tokens_ratio": number("0", low=0, high=1, life=SINCE_1_2),
    "torch_compile_config": section("torch_compile_config"),
    "enable_autotuner": flag("true"),
    "allreduce_strategy": text("AUTO", "NCCL", "UB", "MINLATENCY", "ONESHOT", "TWOSHOT", "LOWPRECISION", "MNNVL", Value("NCCL_SYMMETRIC", SINCE_1_1), default="AUTO"),
    "force_dynamic_quantization": flag(),
    "checkpoint_format": text(default="HF", life=SINCE_1_1), "checkpoint_loader": anything(refused=_OBJECT),
    "kv_connector_config": section("kv_connector_config", life=SINCE_1_1),
    "mm_encoder_only": flag(life=SINCE_1_1),
    "ray_worker_extension_cls": text(life=SINCE_1_2), "ray_placement_config": anything(life=SINCE_1_2, refused=_OBJECT),
    "enable_sleep": flag(life=ONLY_1_2, renamed_to="sleep_config"),
    "sleep_config": mapping(life=Life(Span("1.4.0rc0", None, "inferred", "newest source"), Span("1.3.0rc0", "1.4.0rc0", "inferred", ""))),
    "enable_min_latency": flag(note="Llama-4 only"),
    "use_cute_dsl_blockscaling_mm": flag(life=SINCE_1_2), "use_cute_dsl_blockscaling_bmm": flag(life=SINCE_1_2),
    "disable_flashinfer_sampling": flag(life=ONLY_1_2),
    "enable_layerwise_nvtx_marker": flag(), "layer_wise_benchmarks_config": mapping(life=SINCE_1_2),
    "max_stats_len": integer("1000", low=1, life=SINCE_1_2), "garbage_collection_gen0_threshold": integer("20000", low=1),
    **in_(
        NEWEST,
        post_processor_hook=text(), kv_cache_compression_config=mapping(), num_serve_frontends=integer(low=1, high=64),
        perf_metrics_output_dir=text(), prometheus_metrics_config=mapping(), enable_energy_metrics=flag(), telemetry_config=mapping(),
        generation_config=text("trtllm", "auto"), encoder_cuda_graph_config=mapping(), multimodal_config=mapping(), dwdp_config=mapping(),
        encoder_max_batch_size=integer(low=1), encoder_max_num_tokens=integer(low=1), enable_mla_skip_correction=flag(),
        enable_in_graph_sampling=flag(), checkpoint_io_policy=anything(), mx_config=mapping(), gms_config=mapping(), disable_mm_encoder=flag(),
        encode_only=flag(), reorder_policy_config=mapping(), prefill_cuda_graph_backend=text("disabled", "piecewise", "breakable"),
        prefill_capture_num_tokens=numbers(),
    ),
}  # fmt: skip

NESTED: dict[str, dict[str, Arg]] = {
    "cp_config": {
        "cp_type": text("ULYSSES", "HELIX", Value("STAR", UNTIL_1_3)), "tokens_per_block": integer(low=1), "use_nccl_for_alltoall": flag(life=SINCE_1_2),
        "fifo_version": integer(life=SINCE_1_2), "cp_anchor_size": integer(life=UNTIL_1_3), "block_size": integer(life=UNTIL_1_3),
    },
    "kv_cache_config": {
        "enable_block_reuse": flag("true"),
        "max_tokens": integer(low=1, note="the smaller of this and the fraction counts"),
        "max_attention_window": numbers(),
        "sink_token_length": integer(low=0, note="deprecated and ignored in newest"),
        "free_gpu_memory_fraction": number("0.9", low=0, high=0.999),
        "host_cache_size": integer("0 bytes", low=0),
        "onboard_blocks": flag("true", life=UNTIL_1_3),
        "cross_kv_cache_fraction": number(low=0, high=1), "secondary_offload_min_priority": integer(low=0),
        "event_buffer_max_size": integer("0", low=0), "attention_dp_events_gather_period_ms": integer("5", low=0, life=SINCE_1_1),
        "enable_partial_reuse": flag("true"), "copy_on_partial_reuse": flag("true"), "use_uvm": flag(),
        "max_gpu_total_bytes": integer("0", low=0, life=SINCE_1_1),
        "dtype": text("auto", "fp8", Value("nvfp4", NEW_IN_1_1), Value("float16", NEW_IN_1_1), Value("bfloat16", NEW_IN_1_1), Value("float32", NEW_IN_1_1), Value("fp8_ds_mla", NEWEST), default="auto", nullable=False),
        "mamba_ssm_cache_dtype": text("auto", "float16", "bfloat16", "float32", default="auto", life=SINCE_1_1),
        "tokens_per_block": integer("32", low=1),
        "use_kv_cache_manager_v2": anything(life=SINCE_1_2, note="prototype"), "max_util_for_resume": number("0.95", low=0, high=1, life=SINCE_1_2),
        **in_(
            NEWEST,
            disk_cache_size=integer(low=0), disk_cache_path=text(), kv_events_config=mapping(), iteration_stats_interval=integer(low=0),
            mamba_state_config=mapping(), enable_swa_scratch_reuse=flag(), kv_cache_event_hash_algo=text(), block_reuse_config=section("block_reuse_config"),
            pool_ratio=anything(), avg_seq_len=integer(low=1), disk_prefetch_num_reqs=integer(low=0), fp8_context_mla_kv_len_cap=integer(low=0),
        ),
        "kv_pool_rebalance_*": anything(life=BY_PREFIX),
        **in_(RC4, host_cache_bind_to_gpu_numa_node=flag(), disk_io_threads=integer(low=1), cold_tier_offload_min_priority=integer(low=0)),
    },
    "block_reuse_config": {"policy": text("all_reusable", "per_request", "per_conversation", life=NEWEST), "max_num_turns": integer(low=1, life=NEWEST)},
    "scheduler_config": {
        "capacity_scheduler_policy": text("GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH", default="GUARANTEED_NO_EVICT", nullable=False),
        "context_chunking_policy": text("FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS", Value("FORCE_CHUNK", NEWEST)),
        "dynamic_batch_config": mapping(refused=_ENGINE),
        "waiting_queue_policy": text("fcfs", Value("priority", NEWEST), life=SINCE_1_2, default="fcfs"),
        **in_(NEWEST, use_python_scheduler=flag(), enable_prefix_aware_scheduling=flag("true")),
    },
    "cuda_graph_config": {"batch_sizes": numbers(), "max_batch_size": integer("128", low=0), "enable_padding": flag()},
    "moe_config": {
        "backend": text(
            Value("AUTO", _AUTO), "CUTLASS", Value("CUTEDSL", SINCE_1_1), "TRTLLM", Value("DEEPGEMM", SINCE_1_1), "VANILLA", "TRITON", Value("WIDEEP", _WIDEEP),
            Value("DENSEGEMM", NEWEST), Value("MARLIN", NEWEST), Value("MEGAMOE_*", BY_PREFIX), default="AUTO from 1.2 on, before CUTLASS", nullable=False,
        ),
        "max_num_tokens": integer(low=1), "load_balancer": anything(), "disable_finalize_fusion": flag(life=SINCE_1_1),
        "use_low_precision_moe_combine": flag(life=SINCE_1_2, note="NVFP4 only"),
    },
    "nvfp4_gemm_config": {"allowed_backends": texts("cutlass", "cublaslt", "cuda_core", "cutedsl", Value("marlin", NEWEST), life=SINCE_1_2)},
    "attention_dp_config": {
        "enable_balance": flag(), "timeout_iters": integer("50", low=0), "batching_wait_iters": integer("10", low=0),
        "kv_cache_routing_*": anything(life=BY_PREFIX),
    },
    "torch_compile_config": {
        "enable_fullgraph": flag("true"), "enable_inductor": flag(), "enable_piecewise_cuda_graph": flag(note="newest prefers prefill_cuda_graph_backend"),
        "capture_num_tokens": numbers(), "enable_userbuffers": flag("true"), "max_num_streams": integer("1; newest 3", low=1, life=SINCE_1_1),
    },
    "kv_connector_config": {
        "connector_module": text(), "connector_scheduler_class": text(), "connector_worker_class": text(),
        "connector": text("lmcache", "lmcache-mp", "kvbm", life=NEWEST), "server_url": text(life=NEWEST),
    },
    "lora_config": {
        "lora_dir": texts(default="none"), "lora_ckpt_source": text("hf", "nemo", default="hf", nullable=False), "max_lora_rank": integer("64", low=1),
        "lora_target_modules": texts(), "trtllm_modules_to_hf_modules": mapping(), "max_loras": integer(low=1), "max_cpu_loras": integer(low=1),
        "swap_gate_up_proj_lora_b_weight": flag("true", life=SINCE_1_1), "cuda_graph_specialize_lora": flag(life=NEWEST),
    },
    "peft_cache_config": {
        "num_host_module_layer": integer("0", low=0), "num_device_module_layer": integer("0", low=0), "optimal_adapter_size": integer("8", low=1),
        "max_adapter_size": integer("64", low=1), "num_put_workers": integer("1", low=1), "num_ensure_workers": integer("1", low=1),
        "num_copy_streams": integer("1", low=1), "max_pages_per_block_host": integer("24", low=1), "max_pages_per_block_device": integer("8", low=1),
        "device_cache_percent": number("0.02", low=0, high=1), "host_cache_size": integer("1 GiB", low=0),
        "lora_prefetch_dir": text(refused="TensorRT-LLM insists that it stays empty; name adapters in lora.adapters"),
    },
    "cache_transceiver_config": {
        "backend": text("DEFAULT", "UCX", "NIXL", Value("MOONCAKE", SINCE_1_2), "MPI"),
        "transceiver_runtime": text("CPP", "PYTHON", Value("auto", NEWEST), life=SINCE_1_2),
        "max_tokens_in_buffer": integer(low=1, note="should be at least the longest prompt"),
        "kv_transfer_timeout_ms": integer(low=1, life=SINCE_1_1), "kv_transfer_sender_future_timeout_ms": integer("1000", low=1, life=SINCE_1_2),
        **in_(NEWEST, kv_transfer_poll_interval_ms=integer("5000", low=1), kv_cache_bounce_size_mb=integer("0", low=0), enable_pipelined_transfer=flag()),
    },
}  # fmt: skip

#: Names that no release from 1.0 on has (1.11, Triton specification 2.2) -> what to write instead.
OLD_NAMES: dict[str, str] = {
    "use_cuda_graph": "cuda_graph_config",
    "cuda_graph_batch_sizes": "cuda_graph_config.batch_sizes",
    "cuda_graph_max_batch_size": "cuda_graph_config.max_batch_size",
    "cuda_graph_padding_enabled": "cuda_graph_config.enable_padding",
    "cuda_graph_config.padding_enabled": "cuda_graph_config.enable_padding",
    "moe_backend": "moe_config.backend",
    "moe_load_balancer": "moe_config.load_balancer",
    "moe_max_num_tokens": "moe_config.max_num_tokens",
    "torch_compile_enabled": "torch_compile_config",
    "torch_compile_fullgraph": "torch_compile_config.enable_fullgraph",
    "torch_compile_inductor_enabled": "torch_compile_config.enable_inductor",
    "torch_compile_piecewise_cuda_graph": "torch_compile_config.enable_piecewise_cuda_graph",
    "torch_compile_enable_userbuffers": "torch_compile_config.enable_userbuffers",
    "autotuner_enabled": "enable_autotuner",
    "mixed_sampler": "sampler_type",
    "use_torch_sampler": "sampler_type",
    "kv_cache_dtype": "kv_cache_config.dtype",
    "kv_cache_free_gpu_memory_fraction": "kv_cache_config.free_gpu_memory_fraction",
    "free_gpu_memory_fraction": "kv_cache_config.free_gpu_memory_fraction",
    "enable_block_reuse": "kv_cache_config.enable_block_reuse",
    "pytorch_backend_config": "cuda_graph_config",
    "tp_size": "tensor_parallel_size",
    "pp_size": "pipeline_parallel_size",
    "ep_size": "moe_expert_parallel_size",
}

__all__ = ["EVER", "NESTED", "OLD_NAMES", "TOP"]
