"""What `trtllm-build` is asked for beyond the fields of trtbuild.yaml as they stand: values that depend on model, GPU and formats.

The builder would choose these itself, by rules that changed between releases; here they are chosen once and passed explicitly.
Source: checkpoint specification 4.2, 4.4, 4.5 and 4.6.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtbuild.targets.base import Job


#: quant_algo with FP8 attention for prompts (4.6).
FP8_ATTENTION = ("FP8", "W4A8_AWQ", "NVFP4")
#: Oldest SM with FP8 attention.
FP8_SM = 89
#: speculative.mode -> trtllm-build's word. The other modes exist in the LLM API only.
MODES: dict[str, str] = {
    "draft_target": "draft_tokens_external",
    "lookahead": "lookahead_decoding",
    "medusa": "medusa",
    "redrafter": "explicit_draft_tokens",
    "eagle": "eagle",
}
#: speculative.mode -> beginning of the names of the architectures it is a part of (4.5); the others take any.
ARCHITECTURES: dict[str, str] = {"medusa": "Medusa", "redrafter": "ReDrafter", "eagle": "Eagle"}


def gemm_plugin(job: Job) -> str:
    """Return the GEMM plugin: as given, or auto for unquantized 16-bit models, nvfp4 for NVFP4, else disable.

    Disabling it for NVFP4 would count as the user's wish and cost the NVFP4 kernels (`_explicitly_disable_gemm_plugin`, plugin.py of 1.1).
    Weights that a plugin holds cannot be streamed (4.9).
    """
    engine = job.deployment.engine
    if engine.gemm_plugin is not None:
        return engine.gemm_plugin
    if engine.weight_streaming:
        return "disable"
    if job.quant_algo is None:
        return "auto" if job.dtype in ("float16", "bfloat16") else "disable"
    return "nvfp4" if job.quant_algo == "NVFP4" else "disable"


def has_fp8_attention(job: Job) -> bool:
    """Say whether formats and GPU allow FP8 attention for prompts; a GPU that is not named is taken to."""
    return job.quant_algo in FP8_ATTENTION and (job.gpu is None or job.gpu.sm >= FP8_SM)


def use_fp8_context_fmha(job: Job) -> bool:
    """Return whether FP8 attention is asked for: as given, or where weights and KV cache are FP8."""
    engine = job.deployment.engine
    if engine.use_fp8_context_fmha is not None:
        return engine.use_fp8_context_fmha
    return engine.context_fmha and has_fp8_attention(job) and job.kv_cache_quant_algo == "FP8"


def why_not_paged(job: Job) -> str | None:
    """Return why an engine will have no paged attention for prompts, and so neither KV cache reuse nor chunked context; None if it has."""
    engine = job.deployment.engine
    if not engine.use_paged_context_fmha:
        return "engine.use_paged_context_fmha is false"
    if not engine.context_fmha:
        return "engine.context_fmha is false"
    if job.kv_cache_quant_algo == "INT8":
        return "with quantization.kv_cache=int8 the builder switches engine.use_paged_context_fmha off"
    if job.kv_cache_quant_algo == "FP8" and not has_fp8_attention(job):
        cause = (
            f"SM{job.gpu.sm} has no FP8 attention"
            if job.gpu is not None and job.quant_algo in FP8_ATTENTION
            else f"weights are {job.quant_algo or 'not quantized'}, and only {', '.join(FP8_ATTENTION)} have FP8 attention"
        )
        return f"with quantization.kv_cache=fp8 the builder switches engine.use_paged_context_fmha off, since {cause}"
    return None


def use_paged_context_fmha(job: Job) -> bool:
    """Return whether the engine will have paged attention for prompts."""
    return why_not_paged(job) is None


def draft_len(job: Job) -> int:
    """Return the draft tokens of a step: as given, those of lookahead's window, n-gram and verification set, or 0 (from the checkpoint).

    Source: `LookaheadDecodingConfig.calculateSpeculativeResource` of TensorRT-LLM 0.17 to 1.2.
    """
    speculative = job.deployment.speculative
    if speculative.mode == "none":
        return 0
    if speculative.max_draft_len is not None or speculative.mode != "lookahead":
        return speculative.max_draft_len or 0
    return lookahead_draft_len(*speculative.lookahead)


def lookahead_draft_len(window: int, ngram: int, verification: int) -> int:
    """Return the draft tokens that lookahead takes at most: n - 2 + (w - 1 + g)(n - 1), 0 for n = 1."""
    return 0 if ngram == 1 else ngram - 2 + (window - 1 + verification) * (ngram - 1)


def max_num_tokens(job: Job) -> int:
    """Return the tokens of a step; the builder raises them to max_batch_size x (draft + 1) without a word (4.4, rule 6)."""
    limits, draft = job.limits, draft_len(job)
    return max(limits.max_num_tokens, limits.max_batch_size * (draft + 1)) if draft else limits.max_num_tokens


def opt_num_tokens(job: Job) -> int | None:
    """Return the tokens that kernels are tuned for; None with several profiles, which exclude it."""
    if job.deployment.limits.opt_num_tokens is not None:
        return job.deployment.limits.opt_num_tokens
    if job.deployment.engine.multiple_profiles:
        return None
    return min(job.limits.max_batch_size * job.limits.max_beam_width, max_num_tokens(job))


def has_lora(job: Job) -> bool:
    """Say whether adapters are served."""
    return bool(job.deployment.lora.adapters or job.deployment.lora.target_modules)


def lora_modules(job: Job) -> list[str]:
    """Return TensorRT-LLM's names of the modules that adapters change: as given, or those of the first adapter; reads its header.

    Raises:
        TrtbuildError: the adapter cannot be read, or changes what cannot be served.
    """
    from trtbuild.lora.adapter import Adapter
    from trtbuild.lora.names import locate, target_modules

    lora = job.deployment.lora
    if lora.target_modules or not lora.adapters:
        return list(lora.target_modules)
    found = locate(module.name for module in Adapter.open(Path(lora.adapters[0])).modules)
    return target_modules(name for _, name in found.values())


def settings(job: Job) -> dict[str, Any]:
    """Return option of trtllm-build -> value, for the options that are no plain copy of a field."""
    lora = job.deployment.lora
    return {
        "max_batch_size": job.limits.max_batch_size,
        "max_input_len": job.limits.max_input_len,
        "max_seq_len": job.limits.max_seq_len,
        "max_num_tokens": max_num_tokens(job),
        "opt_num_tokens": opt_num_tokens(job),
        "gemm_plugin": gemm_plugin(job),
        "use_fp8_context_fmha": use_fp8_context_fmha(job),
        "use_paged_context_fmha": use_paged_context_fmha(job),
        "speculative_decoding_mode": MODES.get(job.deployment.speculative.mode),
        "max_draft_len": draft_len(job) or None,
        "lora_plugin": "auto" if has_lora(job) else "disable",
        "lora_dir": lora.adapters,
        "lora_ckpt_source": "hf" if lora.adapters else None,
        "lora_target_modules": lora_modules(job),
        "max_lora_rank": lora.max_rank if has_lora(job) else None,
    }
