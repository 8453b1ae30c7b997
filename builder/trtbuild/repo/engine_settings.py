"""The parameters of `tensorrt_llm` that the C++ backend of a release reads, from the same fields that the engine was built with.

Keys, defaults and what happens to a wrong value: Triton specification 1.8; which release reads which: `trtllm.backend_parameters`. Nearly every wrong value is a warning and the default there,
so what does not fit the engine is an error here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.repo.placement import placement
from trtbuild.spec import Deployment
from trtbuild.trtllm.backend_parameters import find_parameter, parameters_of
from trtbuild.trtllm.engine import Engine
from trtbuild.trtllm.versions import Release

logger = logging.getLogger(__name__)

Value = str | int | float | bool | None
#: batch_scheduler_policy of the backend; it takes any other word for the first.
POLICIES = ("guaranteed_no_evict", "max_utilization")
#: speculative.mode -> decoding_mode. With a draft model the target decodes as usual.
DECODING_MODES = {"medusa": "medusa", "redrafter": "redrafter", "lookahead": "lookahead", "eagle": "eagle"}
#: Parameters that say the same for every deployment. Clients get answers without their prompt unless they ask for it (field report
#: TK19), and every one is the text of the answer alone.
FIXED: dict[str, Value] = {
    "gpt_model_type": "inflight_fused_batching",
    "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
    "executor_worker_path": "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker",
    "exclude_input_in_output": True,
}
#: Rank that the pages of the LoRA cache are cut for, unless every adapter is smaller (the backend's default).
_OPTIMAL_ADAPTER_SIZE = 8
#: Field that needs an engine with paged attention for prompts -> whether it is on.
_NEEDS_PAGED: dict[str, Callable[[Deployment], bool]] = {
    "kv_cache.enable_block_reuse": lambda deployment: deployment.kv_cache.enable_block_reuse,
    "scheduling.chunked_context": lambda deployment: deployment.scheduling.chunked_context,
}
#: Limits that a server can lower and not raise: field of `limits` = field of build_config.
_FIXED_AT_BUILD = ("max_seq_len", "max_num_tokens", "max_beam_width")


def engine_parameters(
    deployment: Deployment,
    engine: Engine | None,
    release: Release,
    *,
    paths: Mapping[str, str],
    periods_ms: Mapping[str, int],
) -> dict[str, Value]:
    """Return parameter -> value of a release; those that are left out have the backend's default.

    Args:
        deployment: the resolved trtbuild.yaml.
        engine: the built engine; None when it is built elsewhere, later.
        release: the TensorRT-LLM that serves.
        paths: engine, tokenizer and, for guided decoding, xgrammar: as the server sees them.
        periods_ms: parameter -> milliseconds between two looks.

    Raises:
        UsageError: the backend of the release does not know what is asked for.
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
    cache, scheduling, place = deployment.kv_cache, deployment.scheduling, placement(deployment)
    wanted: dict[str, Value] = {
        "gpt_model_path": paths["engine"],
        "max_beam_width": deployment.limits.max_beam_width,
        "batch_scheduler_policy": scheduling.policy,
        "enable_chunked_context": scheduling.chunked_context,
        "enable_kv_cache_reuse": cache.enable_block_reuse,
        "max_tokens_in_paged_kv_cache": cache.max_tokens,
        "kv_cache_free_gpu_mem_fraction": cache.free_gpu_memory_fraction,
        "kv_cache_host_memory_bytes": cache.host_cache_bytes or None,
        "max_attention_window_size": ",".join(map(str, cache.max_attention_window)) or None,
        "gpu_weights_percent": deployment.engine.gpu_weights_percent if deployment.engine.weight_streaming else None,
        "gpu_device_ids": place.gpu_device_ids,
        "participant_ids": place.participant_ids,
        "guided_decoding_backend": deployment.serving.guided_decoding,
        "xgrammar_tokenizer_info_path": paths.get("xgrammar"),
        **_decoding(deployment),
        **_lora(deployment),
        **periods_ms,
    }
    return _of_release({**FIXED, **wanted}, release, tokenizer=paths["tokenizer"])


#: Parameter -> field of trtbuild.yaml that asks for it, where their names do not tell.
_ASKED_BY = {
    "guided_decoding_backend": "serving.guided_decoding",
    "xgrammar_tokenizer_info_path": "serving.xgrammar_tokenizer_info",
    "lookahead_window_size": "speculative.mode=lookahead",
    "lookahead_ngram_size": "speculative.mode=lookahead",
    "lookahead_verification_set_size": "speculative.mode=lookahead",
}


def _of_release(wanted: Mapping[str, Value], release: Release, *, tokenizer: str) -> dict[str, Value]:
    """Return what a release reads; keys that it must find are there, even empty.

    Raises:
        UsageError: it does not read what is asked for.
    """
    given = {key: value for key, value in wanted.items() if value is not None}
    unread = [key for key in given if (known := find_parameter(key)) is None or not release.within(known.span)]
    if unread:
        fields = dict.fromkeys(_ASKED_BY.get(key, key) for key in unread)
        since = {found.since for key in unread if (found := find_parameter(key)) is not None and found.since}
        raise UsageError(
            f"{', '.join(fields)}: the backend of TensorRT-LLM {release} has no {', '.join(unread)}",
            hint=f"use {max(since)} or later, or leave it out" if since else "leave it out",
        )
    empty = {parameter.name: "" for parameter in parameters_of(release) if parameter.is_key_required_by(release)}
    known_tokenizer = {"tokenizer_dir": tokenizer} if "tokenizer_dir" in empty else {}
    return {**given, **{key: value for key, value in empty.items() if key not in given}, **known_tokenizer}


def _decoding(deployment: Deployment) -> Mapping[str, Value]:
    speculative = deployment.speculative
    window, ngram, verification = speculative.lookahead if speculative.mode == "lookahead" else (None, None, None)
    plain = "beam_search" if deployment.limits.max_beam_width > 1 else None
    tree = ",".join("{" + ",".join(map(str, path)) + "}" for path in speculative.choices) or None
    return {
        "decoding_mode": DECODING_MODES.get(speculative.mode, plain),
        "medusa_choices": tree if speculative.mode == "medusa" else None,
        "eagle_choices": tree if speculative.mode == "eagle" else None,
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
