"""The parameters of `tensorrt_llm` that the C++ backend reads, from the same fields that the engine was built with.

Keys, defaults and what happens to a wrong value: Triton specification 1.8. Nearly every wrong value is a warning and the default there,
so what does not fit the engine is an error here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.spec import Deployment
from trtbuild.trtllm.engine import Engine

logger = logging.getLogger(__name__)

Value = str | int | float | bool | None
#: batch_scheduler_policy of the backend; it takes any other word for the first.
POLICIES = ("guaranteed_no_evict", "max_utilization")
#: speculative.mode -> decoding_mode. With a draft model the target decodes as usual.
DECODING_MODES = {"medusa": "medusa", "redrafter": "redrafter", "lookahead": "lookahead", "eagle": "eagle"}
#: Rank that the pages of the LoRA cache are cut for, unless every adapter is smaller (the backend's default).
_OPTIMAL_ADAPTER_SIZE = 8
#: Field that needs an engine with paged attention for prompts -> whether it is on.
_NEEDS_PAGED: dict[str, Callable[[Deployment], bool]] = {
    "kv_cache.enable_block_reuse": lambda deployment: deployment.kv_cache.enable_block_reuse,
    "scheduling.chunked_context": lambda deployment: deployment.scheduling.chunked_context,
}
#: Limits that a server can lower and not raise: field of `limits` = field of build_config.
_FIXED_AT_BUILD = ("max_seq_len", "max_num_tokens", "max_beam_width")


def engine_parameters(deployment: Deployment, engine: Engine | None) -> dict[str, Value]:
    """Return parameter -> value, None for those that are left out so that the backend's default holds.

    Args:
        deployment: the resolved trtbuild.yaml.
        engine: the built engine; None when it is built elsewhere, later.

    Raises:
        UsageError: the backend does not know the scheduler's policy.
        TrtbuildError: the engine was built without what a field needs, or for less.
    """
    if deployment.scheduling.policy not in POLICIES:
        raise UsageError(
            f"scheduling.policy={deployment.scheduling.policy} is unknown to Triton's TensorRT-LLM backend",
            hint=f"use {' or '.join(POLICIES)}",
        )
    if engine is not None:
        _check_paged(deployment, engine)
        _check_limits(deployment, engine)
        _check_features(deployment, engine)
    cache, scheduling = deployment.kv_cache, deployment.scheduling
    return {
        "max_beam_width": deployment.limits.max_beam_width,
        "batch_scheduler_policy": scheduling.policy,
        "enable_chunked_context": scheduling.chunked_context,
        "enable_kv_cache_reuse": cache.enable_block_reuse,
        "max_tokens_in_paged_kv_cache": cache.max_tokens,
        "kv_cache_free_gpu_mem_fraction": cache.free_gpu_memory_fraction,
        "kv_cache_host_memory_bytes": cache.host_cache_bytes or None,
        "max_attention_window_size": ",".join(map(str, cache.max_attention_window)) or None,
        "gpu_weights_percent": deployment.engine.gpu_weights_percent if deployment.engine.weight_streaming else None,
        **_decoding(deployment),
        **_lora(deployment),
    }


def _decoding(deployment: Deployment) -> Mapping[str, Value]:
    speculative = deployment.speculative
    window, ngram, verification = speculative.lookahead if speculative.mode == "lookahead" else (None, None, None)
    plain = "beam_search" if deployment.limits.max_beam_width > 1 else None
    return {
        "decoding_mode": DECODING_MODES.get(speculative.mode, plain),
        "lookahead_window_size": window,
        "lookahead_ngram_size": ngram,
        "lookahead_verification_set_size": verification,
    }


def _lora(deployment: Deployment) -> Mapping[str, Value]:
    lora = deployment.lora
    if not (lora.adapters or lora.target_modules):
        return {}
    return {
        "lora_cache_max_adapter_size": lora.max_rank,
        "lora_cache_optimal_adapter_size": min(lora.max_rank, _OPTIMAL_ADAPTER_SIZE),
        "lora_cache_gpu_memory_fraction": lora.device_cache_fraction,
        "lora_cache_host_memory_bytes": lora.host_cache_bytes,
    }


def _check_paged(deployment: Deployment, engine: Engine) -> None:
    """Refuse KV cache reuse and chunked context on an engine without paged attention for prompts (field report EB22)."""
    wanted = [key for key, is_on in _NEEDS_PAGED.items() if is_on(deployment)]
    has_paged = engine.plugins.get("use_paged_context_fmha")
    if not wanted or has_paged is True:
        return
    if has_paged is None:
        logger.warning(
            "note: %s does not say whether use_paged_context_fmha was enabled; %s need%s it, and a server refuses to load without",
            engine.path / "config.json",
            " and ".join(wanted),
            "s" if len(wanted) == 1 else "",
        )
        return
    raise TrtbuildError(
        f"{' and '.join(wanted)} need{'s' if len(wanted) == 1 else ''} use_paged_context_fmha, which is false in {engine.path / 'config.json'}",
        hint=f"set {' and '.join(f'{key}: false' for key in wanted)}, or build the engine with engine.use_paged_context_fmha: true",
    )


def _check_limits(deployment: Deployment, engine: Engine) -> None:
    for name in _FIXED_AT_BUILD:
        asked, built = getattr(deployment.limits, name), engine.build.get(name)
        if isinstance(asked, int) and isinstance(built, int) and asked > built:
            raise TrtbuildError(
                f"limits.{name}={asked} in trtbuild.yaml exceeds {name}={built} in {engine.path / 'config.json'}",
                hint=f"use at most {built}, or build the engine for {asked}",
            )


def _check_features(deployment: Deployment, engine: Engine) -> None:
    """Refuse fields that an engine must have been built for, where config.json says that it was not."""
    wants: dict[str, tuple[bool, Any]] = {
        "engine.weight_streaming": (
            deployment.engine.weight_streaming,
            engine.build.get("weight_streaming", True),
        ),
        "lora": (
            bool(deployment.lora.adapters or deployment.lora.target_modules),
            engine.plugins.get("lora_plugin", "auto"),
        ),
        "speculative.mode": (
            deployment.speculative.mode != "none",
            engine.build.get("max_draft_len", True),
        ),
    }
    missing = [field for field, (is_wanted, built) in wants.items() if is_wanted and not built]
    if missing:
        raise TrtbuildError(
            f"{', '.join(missing)} in trtbuild.yaml, and {engine.path / 'config.json'} is of an engine built without",
            hint="build the engine again from this trtbuild.yaml",
        )
