"""What `trtllm-build` refuses, and what it switches off without stopping: found before anything is converted.

A rule that the builder would follow in silence is an error here where the result would not be what trtbuild.yaml says. Each rule
names its source: numbers are sections of the checkpoint specification, # are issues of NVIDIA/TensorRT-LLM. Attention, and
speculation and adapters have tables of their own (`attention_rules.py`, `serving_rules.py`). Formats that a GPU cannot run are refused by `hardware.py`.
"""

from __future__ import annotations

from trtbuild.errors import Way
from trtbuild.hardware import OLDEST_SM
from trtbuild.targets.base import Job
from trtbuild.trtllm.build_settings import gemm_plugin, max_num_tokens
from trtbuild.trtllm.rules import Rule
from trtbuild.trtllm.versions import Feature, with_feature

#: Architectures with a fused all-reduce and norm (4.6).
REDUCE_FUSION = ("LlamaForCausalLM", "Gemma2ForCausalLM", "MedusaForCausalLM")
#: Architectures that came with `Feature.QWEN3_ENGINES`.
QWEN3 = ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM")
#: quant_algo that is refused on SM100 to SM119 (4.6).
NOT_ON_SM100 = (
    "W8A16", "W4A16", "W4A16_AWQ", "W4A16_GPTQ", "W8A16_GPTQ", "W4A8_AWQ", "FP8_PER_CHANNEL_PER_TOKEN",
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN", "W8A8_SQ_PER_CHANNEL", "W8A8_SQ_PER_TENSOR_PLUGIN",
    "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN", "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN",
)  # fmt: skip
#: Plugins that are refused on SM100 exactly (4.2).
PLUGINS_NOT_ON_SM100 = ("gemm_swiglu_plugin", "low_latency_gemm_plugin", "low_latency_gemm_swiglu_plugin")
#: quant_algo -> oldest SM that has it in an engine (1.4.1, 4.6); other formats run on every GPU of OLDEST_SM and later.
OLDEST: dict[str | None, int] = {"FP8": 89, "W4A8_AWQ": 89, "FP8_PER_CHANNEL_PER_TOKEN": 90, "NVFP4": 100}
#: Sizes of a block of the KV cache that the XQA kernels take (7.2).
BLOCK_SIZES = (8, 16, 32, 64, 128)
#: More tokens in a step than this "is usually not recommended" (4.4, rule 4).
MANY_TOKENS = 16384
#: Levels of trtllm-build's log at which a healthy build prints nothing.
_SILENT = ("error", "warning")


def _sm(job: Job, low: int, high: int) -> bool:
    return job.gpu is not None and low <= job.gpu.sm <= high


def _on(job: Job, plugin: str) -> bool:
    return bool(getattr(job.deployment.engine, plugin) != "disable")


def _is_fp8(job: Job) -> bool:
    return job.quant_algo in ("FP8", "MIXED_PRECISION")


def _plugins_not_on_sm100(job: Job) -> list[str]:
    return [f"engine.{name}" for name in PLUGINS_NOT_ON_SM100 if _on(job, name)]


def _lacks(job: Job, feature: Feature) -> bool:
    """Tell whether a release that builds engines does so without a feature; others are refused by a rule of their own."""
    return job.release.has(Feature.ENGINE) and not job.release.has(feature)


def _even_stages(job: Job) -> list[int]:
    return [stages for stages in range(1, job.dims.num_layers + 1) if job.dims.num_layers % stages == 0]


#: Broken ones end the build before it begins.
ERRORS: tuple[Rule, ...] = (
    Rule(
        "5: 1.3.0rc20 is the last candidate with engines",
        lambda job: not job.release.has(Feature.ENGINE),
        lambda job: f"TensorRT-LLM {job.release} builds no TensorRT engines: 1.3.0rc20 was the last that did",
        lambda job: (
            f"or set tensorrt_llm to {[each.name for each in with_feature(Feature.ENGINE) if not each.version.is_candidate][-1]}"
        ),
        (Way("build with --target pytorch", {"target": "pytorch"}),),
    ),
    Rule(
        "1.6.2, 4.11",
        lambda job: job.dims.architecture in QWEN3 and _lacks(job, Feature.QWEN3_ENGINES),
        lambda job: f"TensorRT-LLM {job.release} builds no engine of {job.dims.architecture}",
        lambda job: f"set tensorrt_llm to {next(with_feature(Feature.QWEN3_ENGINES))} or later",
    ),
    Rule(
        "3.4",
        lambda job: job.dims.num_layers % job.parallel.pp_size != 0 and _lacks(job, Feature.UNEVEN_STAGES),
        lambda job: (
            f"parallel.pp_size={job.parallel.pp_size} does not divide the {job.dims.num_layers} layers, and TensorRT-LLM {job.release} gives every "
            "pipeline stage as many"
        ),
        lambda job: (
            f"use one of {', '.join(map(str, _even_stages(job)))}, or set tensorrt_llm to "
            f"{next(with_feature(Feature.UNEVEN_STAGES))} or later"
        ),
    ),
    Rule(
        "1.4.1; field report EB18",
        lambda job: job.gpu is not None and job.gpu.sm < OLDEST.get(job.quant_algo, OLDEST_SM),
        lambda job: (
            f"{job.quant_algo or job.dtype} does not run on {job.gpu}: it needs SM{OLDEST.get(job.quant_algo, OLDEST_SM)} or later"
        ),
        lambda job: (
            "" if job.gpu is not None and job.gpu.sm >= OLDEST_SM else f"TensorRT-LLM lists no GPU below SM{OLDEST_SM}"
        ),
        (
            Way("use int4_awq", {"quantization.scheme": "int4_awq"}),
            Way("use no quantization", {"quantization.scheme": "none"}),
            Way("--target reference runs on the CPU", {"target": "reference"}),
        ),
    ),
    Rule(
        "4.6",
        lambda job: job.deployment.engine.multiple_profiles and job.deployment.limits.opt_num_tokens is not None,
        lambda job: (
            f"limits.opt_num_tokens={job.deployment.limits.opt_num_tokens} and engine.multiple_profiles exclude each other"
        ),
        "leave limits.opt_num_tokens empty, or set engine.multiple_profiles: false",
    ),
    Rule(
        "4.4, rule 5: it would be clipped",
        lambda job: (job.deployment.limits.opt_num_tokens or 0) > max_num_tokens(job),
        lambda job: (
            f"limits.opt_num_tokens={job.deployment.limits.opt_num_tokens} exceeds limits.max_num_tokens={max_num_tokens(job)}"
        ),
        lambda job: f"use at most {max_num_tokens(job)}, or leave it empty",
    ),
    Rule(
        "7.2: XQA kernels",
        lambda job: job.deployment.kv_cache.tokens_per_block not in BLOCK_SIZES,
        lambda job: (
            f"kv_cache.tokens_per_block={job.deployment.kv_cache.tokens_per_block} is no block size that the attention kernels take"
        ),
        f"use one of {', '.join(map(str, BLOCK_SIZES))}",
    ),
    Rule(
        "4.4, rule 4: it would be raised",
        lambda job: max_num_tokens(job) < job.deployment.kv_cache.tokens_per_block,
        lambda job: (
            f"limits.max_num_tokens={max_num_tokens(job)} is below kv_cache.tokens_per_block={job.deployment.kv_cache.tokens_per_block}"
        ),
        lambda job: f"use limits.max_num_tokens >= {job.deployment.kv_cache.tokens_per_block}, or smaller blocks",
    ),
    Rule(
        "1.8 of the Triton specification",
        lambda job: job.deployment.scheduling.policy == "static_batch",
        lambda job: (
            "scheduling.policy=static_batch is unknown to Triton's TensorRT-LLM backend, which would take guaranteed_no_evict"
        ),
        "use guaranteed_no_evict or max_utilization",
    ),
    Rule(
        "4.6",
        lambda job: job.deployment.engine.reduce_fusion and job.parallel.tp_size == 1,
        lambda job: "engine.reduce_fusion fuses an all-reduce, and with parallel.tp_size=1 there is none",
        "set engine.reduce_fusion: false",
    ),
    Rule(
        "4.6",
        lambda job: job.deployment.engine.reduce_fusion and job.dims.architecture not in REDUCE_FUSION,
        lambda job: f"engine.reduce_fusion is for {', '.join(REDUCE_FUSION)}; this is {job.dims.architecture}",
        "set engine.reduce_fusion: false",
    ),
    Rule(
        "4.6",
        lambda job: job.deployment.engine.user_buffer and not job.deployment.engine.reduce_fusion,
        lambda job: "engine.user_buffer needs engine.reduce_fusion",
        "set engine.reduce_fusion: true, or engine.user_buffer: false",
    ),
    Rule(
        "#2817: a maintainer says so",
        lambda job: job.deployment.engine.user_buffer and job.gpu is not None and job.gpu.sm < 90,
        lambda job: f"engine.user_buffer does not work below SM90; {job.gpu} is asked for",
        "set engine.user_buffer: false",
    ),
    Rule(
        "4.6",
        lambda job: (
            job.deployment.engine.norm_quant_fusion
            and (job.dims.architecture != "LlamaForCausalLM" or job.quant_algo != "NVFP4")
        ),
        lambda job: (
            f"engine.norm_quant_fusion is for LlamaForCausalLM in NVFP4; this is {job.dims.architecture}, {job.quant_algo or 'not quantized'}"
        ),
        "set engine.norm_quant_fusion: false",
    ),
    Rule(
        "4.6",
        lambda job: job.deployment.engine.norm_quant_fusion and job.deployment.engine.reduce_fusion,
        lambda job: "engine.norm_quant_fusion and engine.reduce_fusion exclude each other",
        "set one of them to false",
    ),
    Rule(
        "4.6",
        lambda job: _on(job, "gemm_swiglu_plugin") and not job.deployment.engine.use_fused_mlp,
        lambda job: "engine.gemm_swiglu_plugin needs engine.use_fused_mlp, which is false",
        "set engine.use_fused_mlp: true, or engine.gemm_swiglu_plugin: disable",
    ),
    Rule(
        "4.2; docs, FP8 tuning: only one of them",
        lambda job: _on(job, "gemm_swiglu_plugin") and _on(job, "low_latency_gemm_swiglu_plugin"),
        lambda job: (
            "engine.gemm_swiglu_plugin and engine.low_latency_gemm_swiglu_plugin do the same; only one can be on"
        ),
        "keep the latter for small batches, the former otherwise",
    ),
    *(
        Rule(
            "4.2: FP8 kernels",
            lambda job, name=name: _on(job, name) and not _is_fp8(job),  # type: ignore[misc]  # the default binds this turn's name
            lambda job, name=name: (
                f"engine.{name}=fp8 needs FP8 weights; these are {job.quant_algo or 'not quantized'}"
            ),  # type: ignore[misc]  # as above
            f"set engine.{name}: disable, or use quantization.scheme: fp8",
        )
        for name in PLUGINS_NOT_ON_SM100
    ),
    Rule(
        "4.2",
        lambda job: _sm(job, 100, 100) and bool(_plugins_not_on_sm100(job)),
        lambda job: f"{', '.join(_plugins_not_on_sm100(job))}: trtllm-build refuses it on SM100 ({job.gpu})",
        "set it to disable",
    ),
    Rule(
        "4.2: Hopper",
        lambda job: _on(job, "gemm_swiglu_plugin") and job.gpu is not None and job.gpu.sm not in (90, 100),
        lambda job: f"engine.gemm_swiglu_plugin has kernels for SM90 only; {job.gpu} is asked for",
        "set engine.gemm_swiglu_plugin: disable",
    ),
    Rule(
        "4.6",
        lambda job: _sm(job, 100, 119) and job.quant_algo in NOT_ON_SM100,
        lambda job: f"trtllm-build refuses {job.quant_algo} on SM100 to SM119 ({job.gpu})",
        "",
        (
            Way("use --quantization fp8", {"quantization.scheme": "fp8"}),
            Way("use --quantization nvfp4", {"quantization.scheme": "nvfp4"}),
            Way("use --target pytorch, which has the scheme", {"target": "pytorch"}),
        ),
    ),
    Rule(
        "4.6",
        lambda job: _sm(job, 100, 119) and job.kv_cache_quant_algo == "INT8",
        lambda job: f"trtllm-build refuses an INT8 KV cache on SM100 to SM119 ({job.gpu})",
        "set quantization.kv_cache: fp8 or auto",
    ),
    Rule(
        "4.2: an assertion of the builder",
        lambda job: job.deployment.engine.pp_reduce_scatter and job.dims.architecture != "MixtralForCausalLM",
        lambda job: f"engine.pp_reduce_scatter is for MixtralForCausalLM; this is {job.dims.architecture}",
        "set engine.pp_reduce_scatter: false",
    ),
    Rule(
        "4.9",
        lambda job: job.deployment.engine.weight_streaming and gemm_plugin(job) != "disable",
        lambda job: (
            f"engine.weight_streaming cannot stream weights that a plugin holds, and engine.gemm_plugin={gemm_plugin(job)}"
        ),
        "set engine.gemm_plugin: disable, or leave it empty",
    ),
    Rule(
        "4.6: the builder does not check it",
        lambda job: (
            job.deployment.engine.weight_streaming
            and (job.deployment.engine.strip_plan or job.deployment.engine.fast_build)
        ),
        lambda job: (
            f"engine.weight_streaming and engine.{'strip_plan' if job.deployment.engine.strip_plan else 'fast_build'} both move the "
            "weights out of the engine, each in its way"
        ),
        "use one of them",
    ),
    Rule(
        "4.9",
        lambda job: job.deployment.engine.gpu_weights_percent < 1 and not job.deployment.engine.weight_streaming,
        lambda job: (
            f"engine.gpu_weights_percent={job.deployment.engine.gpu_weights_percent} needs engine.weight_streaming"
        ),
        "set engine.weight_streaming: true, or gpu_weights_percent: 1.0",
    ),
)
#: Nothing is wrong, but the user should know.
NOTES: tuple[Rule, ...] = (
    Rule(
        "4.4, rule 4",
        lambda job: max_num_tokens(job) > MANY_TOKENS,
        lambda job: (
            f"limits.max_num_tokens={max_num_tokens(job)}: the builder advises against more than {MANY_TOKENS}, which gain nothing and can "
            "exceed the volume of a TensorRT tensor"
        ),
    ),
    Rule(
        "4.4, rule 6",
        lambda job: max_num_tokens(job) > job.limits.max_num_tokens,
        lambda job: (
            f"limits.max_num_tokens becomes {max_num_tokens(job)}: every one of {job.limits.max_batch_size} requests gets its draft in a step"
        ),
    ),
    Rule(
        "help text of --user_buffer",
        lambda job: job.deployment.engine.user_buffer and job.quant_algo != "FP8",
        lambda job: (
            f"engine.user_buffer is documented for FP8 Llama only; these weights are {job.quant_algo or 'not quantized'}"
        ),
    ),
    Rule(
        "4.9",
        lambda job: job.deployment.engine.weight_sparsity,
        lambda job: (
            "engine.weight_sparsity: that the weights are 2:4 pruned is not checked; weights that are not gain nothing"
        ),
    ),
    Rule(
        "4.9",
        lambda job: job.deployment.engine.strip_plan,
        lambda job: (
            "engine.strip_plan: the engine has no weights; run trtllm-refit --checkpoint_dir checkpoint --engine_dir engine before it serves"
        ),
    ),
    Rule(
        "4.1",
        lambda job: job.deployment.engine.gather_generation_logits,
        lambda job: "engine.gather_generation_logits is deprecated: logits of answers can be asked for without it",
    ),
    Rule(
        "the builder's log",
        lambda job: job.deployment.engine.log_level in _SILENT,
        lambda job: (
            f"engine.log_level={job.deployment.engine.log_level}: a healthy build prints nothing, so engine.stall_timeout_s="
            f"{job.deployment.engine.stall_timeout_s} limits the whole build, and there is no progress"
        ),
    ),
    Rule(
        "versions",
        lambda job: job.release.evidence == "inferred",
        lambda job: (
            f"TensorRT-LLM {job.release}: {job.release.note or 'not documented, concluded from its neighbours'}"
        ),
    ),
)
