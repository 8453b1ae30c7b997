"""Rules of attention over prompts: what KV cache reuse and chunked context need, and where FP8 attention exists; see `rules.py`.

Source: checkpoint specification 4.6.
"""

from __future__ import annotations

from trtbuild.targets.base import Job
from trtbuild.trtllm.build_settings import FP8_ATTENTION, FP8_SM, has_fp8_attention, why_not_paged
from trtbuild.trtllm.rules import Rule


def _reads_paged(job: Job) -> list[str]:
    """Return the keys that need paged attention for prompts and are on."""
    deployment = job.deployment
    wishes = {
        "kv_cache.enable_block_reuse": deployment.kv_cache.enable_block_reuse,
        "scheduling.chunked_context": deployment.scheduling.chunked_context,
    }
    return [key for key, is_on in wishes.items() if is_on]


ERRORS: tuple[Rule, ...] = (
    Rule(
        "4.6; field report EB22",
        lambda job: why_not_paged(job) is not None and bool(_reads_paged(job)),
        lambda job: (
            f"{' and '.join(_reads_paged(job))} need{'s' if len(_reads_paged(job)) == 1 else ''} engine.use_paged_context_fmha, "
            f"but {why_not_paged(job)}"
        ),
        lambda job: (
            f"set {', '.join(f'{key}: false' for key in (*_reads_paged(job), 'engine.use_paged_context_fmha'))}"
            + (", or quantization.kv_cache: auto" if job.kv_cache_quant_algo else ", or switch the attention on")
        ),
    ),
    Rule(
        "4.6: paged attention over an FP8 cache is FP8 attention",
        lambda job: (
            job.deployment.engine.use_fp8_context_fmha is False
            and why_not_paged(job) is None
            and job.kv_cache_quant_algo == "FP8"
        ),
        lambda job: (
            "engine.use_fp8_context_fmha=false has no effect: with engine.use_paged_context_fmha and quantization.kv_cache=fp8 the "
            "builder switches it on"
        ),
        "leave engine.use_fp8_context_fmha empty, or set engine.use_paged_context_fmha: false (without KV cache reuse and chunked context)",
    ),
    Rule(
        "4.6",
        lambda job: job.deployment.engine.use_fp8_context_fmha is True and job.quant_algo not in FP8_ATTENTION,
        lambda job: (
            f"engine.use_fp8_context_fmha=true needs weights of {', '.join(FP8_ATTENTION)}; these are {job.quant_algo or 'not quantized'}"
        ),
        "leave engine.use_fp8_context_fmha empty, or use quantization.scheme: fp8",
    ),
    Rule(
        "4.6",
        lambda job: job.deployment.engine.use_fp8_context_fmha is True and job.gpu is not None and job.gpu.sm < FP8_SM,
        lambda job: f"engine.use_fp8_context_fmha=true needs SM{FP8_SM} or later; {job.gpu} has none",
        "leave engine.use_fp8_context_fmha empty",
    ),
    Rule(
        "4.6",
        lambda job: (
            job.deployment.engine.use_fp8_context_fmha is True
            and has_fp8_attention(job)
            and job.deployment.engine.use_paged_context_fmha
            and job.kv_cache_quant_algo != "FP8"
        ),
        lambda job: (
            "engine.use_fp8_context_fmha=true needs quantization.kv_cache=fp8 together with engine.use_paged_context_fmha"
        ),
        "set quantization.kv_cache: fp8, or leave engine.use_fp8_context_fmha empty",
    ),
    Rule(
        "4.6",
        lambda job: job.deployment.engine.use_fp8_context_fmha is True and not job.deployment.engine.context_fmha,
        lambda job: "engine.use_fp8_context_fmha=true needs engine.context_fmha, which is false",
        "leave engine.use_fp8_context_fmha empty, or set engine.context_fmha: true",
    ),
)
