"""Which field of trtbuild.yaml sets which argument of the LLM API, and the arguments of one deployment.

One table: whoever asks what a field becomes, and whoever asks which field sets an argument, reads the same rows.
Values are those that suit all releases where there is a choice (LLM API specification 1.12).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from trtbuild.errors import UsageError
from trtbuild.limits import ResolvedLimits
from trtbuild.spec import Deployment
from trtbuild.trtllm.llm_args import SPECULATIVE, LlmArgs, Path, Setting
from trtbuild.trtllm.llm_speculative import ENGINE_ONLY, MODES, decoding_type, length_key
from trtbuild.trtllm.versions import Feature, Release

EXTRA = "llm_api.extra"


class _Unset(Enum):
    """The type of `UNSET`."""

    UNSET = 0


#: What a row returns when the argument is left at TensorRT-LLM's default.
UNSET = _Unset.UNSET


@dataclass(frozen=True, slots=True)
class Facts:
    """What the arguments of a deployment follow from.

    Attributes:
        deployment: the resolved trtbuild.yaml.
        release: of TensorRT-LLM, that will serve.
        limits: with every default filled in.
        kv_cache_quant_algo: "FP8", "NVFP4" or None.
        locate: returns a folder's path as the server sees it.
    """

    deployment: Deployment
    release: Release
    limits: ResolvedLimits
    kv_cache_quant_algo: str | None
    locate: Callable[[str], str] = str


@dataclass(frozen=True, slots=True)
class Row:
    """One argument that trtbuild.yaml sets.

    Attributes:
        field: its place in trtbuild.yaml.
        path: the argument.
        value: what it becomes, or `UNSET`.
        is_owned: whether it is the field's alone; another one follows from the field, and `llm_api.extra` may set it instead.
    """

    field: str
    path: Path
    value: Callable[[Facts], Any]
    is_owned: bool = True


def _unless(value: Any, default: Any) -> Any:
    return UNSET if value == default else value


ROWS: tuple[Row, ...] = (
    Row("parallel.tp_size", ("tensor_parallel_size",), lambda f: f.deployment.parallel.tp_size),
    Row("parallel.pp_size", ("pipeline_parallel_size",), lambda f: f.deployment.parallel.pp_size),
    Row("parallel.ep_size", ("moe_expert_parallel_size",), lambda f: _unless(f.deployment.parallel.ep_size, 1)),
    Row("hardware.count", ("gpus_per_node",), lambda f: _gpus_per_node(f)),
    Row("limits.max_batch_size", ("max_batch_size",), lambda f: f.limits.max_batch_size),
    Row("limits.max_num_tokens", ("max_num_tokens",), lambda f: f.limits.max_num_tokens),
    Row("limits.max_seq_len", ("max_seq_len",), lambda f: f.limits.max_seq_len),
    Row("limits.max_beam_width", ("max_beam_width",), lambda f: _unless(f.limits.max_beam_width, 1)),
    Row("scheduling.chunked_context", ("enable_chunked_prefill",), lambda f: f.deployment.scheduling.chunked_context),
    Row("kv_cache.free_gpu_memory_fraction", ("kv_cache_config", "free_gpu_memory_fraction"), lambda f: f.deployment.kv_cache.free_gpu_memory_fraction),
    Row("kv_cache.enable_block_reuse", ("kv_cache_config", "enable_block_reuse"), lambda f: f.deployment.kv_cache.enable_block_reuse),
    Row("kv_cache.tokens_per_block", ("kv_cache_config", "tokens_per_block"), lambda f: _unless(f.deployment.kv_cache.tokens_per_block, 32)),
    Row("kv_cache.max_tokens", ("kv_cache_config", "max_tokens"), lambda f: _unless(f.deployment.kv_cache.max_tokens, None)),
    Row("kv_cache.host_cache_bytes", ("kv_cache_config", "host_cache_size"), lambda f: _unless(f.deployment.kv_cache.host_cache_bytes, 0)),
    Row("kv_cache.max_attention_window", ("kv_cache_config", "max_attention_window"), lambda f: _unless(list(f.deployment.kv_cache.max_attention_window), [])),
    Row("quantization.kv_cache", ("kv_cache_config", "dtype"), lambda f: f.kv_cache_quant_algo.lower() if f.kv_cache_quant_algo else UNSET),
    Row("llm_api.cuda_graphs", ("cuda_graph_config",), lambda f: UNSET if f.deployment.llm_api.cuda_graphs else None),
    Row("llm_api.cuda_graph_padding", ("cuda_graph_config", "enable_padding"), lambda f: f.deployment.llm_api.cuda_graph_padding if f.deployment.llm_api.cuda_graphs else UNSET),
    Row("limits.max_batch_size", ("cuda_graph_config", "max_batch_size"), lambda f: _graph_size(f), is_owned=False),
    Row("scheduling.policy", ("scheduler_config", "capacity_scheduler_policy"), lambda f: f.deployment.scheduling.policy.upper()),
    Row("llm_api.attn_backend", ("attn_backend",), lambda f: _unless(f.deployment.llm_api.attn_backend, "TRTLLM")),
    Row("llm_api.moe_backend", ("moe_config", "backend"), lambda f: _unless(f.deployment.llm_api.moe_backend, None)),
    Row("llm_api.attention_dp", ("enable_attention_dp",), lambda f: _unless(f.deployment.llm_api.attention_dp, False)),
    Row("llm_api.overlap_scheduler", ("disable_overlap_scheduler",), lambda f: True if not _overlaps(f) else UNSET),
    Row("llm_api.stream_interval", ("stream_interval",), lambda f: f.deployment.llm_api.stream_interval),
    Row("llm_api.guided_decoding", ("guided_decoding_backend",), lambda f: _unless(f.deployment.llm_api.guided_decoding, None)),
    Row("lora.adapters", ("lora_config", "lora_dir"), lambda f: _unless([f.locate(path) for path in f.deployment.lora.adapters], [])),
    Row("lora.target_modules", ("lora_config", "lora_target_modules"), lambda f: _unless(list(f.deployment.lora.target_modules), [])),
    Row("lora.max_rank", ("lora_config", "max_lora_rank"), lambda f: f.deployment.lora.max_rank if has_lora(f.deployment) else UNSET),
    Row("lora.device_cache_fraction", ("peft_cache_config", "device_cache_percent"), lambda f: f.deployment.lora.device_cache_fraction if has_lora(f.deployment) else UNSET),
    Row("lora.host_cache_bytes", ("peft_cache_config", "host_cache_size"), lambda f: f.deployment.lora.host_cache_bytes if has_lora(f.deployment) else UNSET),
)  # fmt: skip


def arguments(facts: Facts) -> dict[str, Any]:
    """Return the arguments of a deployment as nested plain data, ready for YAML.

    Raises:
        UsageError: the release lacks an argument, or `llm_api.extra` holds what it must not.
    """
    return LlmArgs(facts.release).build(settings(facts))


def settings(facts: Facts) -> list[Setting]:
    """Return the arguments of a deployment one by one, those of `llm_api.extra` last.

    Raises:
        UsageError: see `arguments`.
    """
    extra = extra_settings(facts.deployment, facts.release)
    given = {item.path for item in extra}
    if ("cuda_graph_config", "batch_sizes") in given:  # the two together must agree (1.6), so one is left out
        given.add(("cuda_graph_config", "max_batch_size"))
    own = [
        Setting(row.path, value, row.field)
        for row in ROWS
        if (value := row.value(facts)) is not UNSET and (row.is_owned or row.path not in given)
    ]
    return [*own, *_speculative(facts), *extra]


def extra_settings(deployment: Deployment, release: Release) -> list[Setting]:
    """Return what `llm_api.extra` sets, checked against the release's table and against the fields of trtbuild.yaml.

    Raises:
        UsageError: see `LlmArgs.check`.
    """
    mode = MODES.get(deployment.speculative.mode)
    decoding = decoding_type(mode, release) if mode is not None else ""
    return LlmArgs(release).check(deployment.llm_api.extra, origin=EXTRA, fields=owned(deployment), decoding=decoding)


def owned(deployment: Deployment) -> dict[Path, str]:
    """Return the arguments that fields of trtbuild.yaml set, so that `llm_api.extra` must not -> the field."""
    found = {row.path: row.field for row in ROWS if row.is_owned}
    if deployment.speculative.mode != "none":
        found[SPECULATIVE,] = "speculative.mode"
        found[SPECULATIVE, "decoding_type"] = "speculative.mode"
        for key in ("max_draft_len", "num_nextn_predict_layers"):
            found[SPECULATIVE, key] = "speculative.max_draft_len"
        for key in ("speculative_model_dir", "speculative_model"):
            found[SPECULATIVE, key] = "speculative.draft_model"
    return found


def has_lora(deployment: Deployment) -> bool:
    """Say whether adapters are served."""
    return bool(deployment.lora.adapters or deployment.lora.target_modules)


def runs_two_models(deployment: Deployment, release: Release) -> bool:
    """Say whether a draft model runs in steps of its own, which the overlap scheduler cannot follow (1.6)."""
    mode = MODES.get(deployment.speculative.mode)
    return mode is not None and mode.is_two_models and not release.has(Feature.DRAFT_ONE_MODEL)


def _overlaps(facts: Facts) -> bool:
    return facts.deployment.llm_api.overlap_scheduler and not runs_two_models(facts.deployment, facts.release)


def _graph_size(facts: Facts) -> Any:
    return facts.limits.max_batch_size if facts.deployment.llm_api.cuda_graphs else UNSET


def _gpus_per_node(facts: Facts) -> Any:
    """Return the GPUs of a node where several nodes serve; alone, TensorRT-LLM counts them itself."""
    count, parallel = facts.deployment.hardware.count, facts.deployment.parallel
    return count if count is not None and parallel.tp_size * parallel.pp_size > count else UNSET


def _speculative(facts: Facts) -> Iterator[Setting]:
    """Yield `speculative_config`.

    Raises:
        UsageError: the mode is one of engines, or lacks what it needs.
    """
    given = facts.deployment.speculative
    if given.mode == "none":
        return
    if given.mode in ENGINE_ONLY:
        why, instead = ENGINE_ONLY[given.mode]
        raise UsageError(
            f"speculative.mode={given.mode} does not run on target pytorch: {why}",
            hint=f"the nearest is {instead}; {given.mode} itself works with target tensorrt",
        )
    mode = MODES[given.mode]
    if mode.needs_model and given.draft_model is None:
        raise UsageError(f"speculative.mode={given.mode} needs a draft model", hint="set speculative.draft_model")
    if mode.needs_length and given.max_draft_len is None:
        raise UsageError(
            f"speculative.mode={given.mode} needs the number of draft tokens",
            hint="set speculative.max_draft_len, e.g. 3",
        )
    yield Setting((SPECULATIVE, "decoding_type"), decoding_type(mode, facts.release), "speculative.mode")
    if given.max_draft_len is not None:
        yield Setting((SPECULATIVE, length_key(mode, facts.release)), given.max_draft_len, "speculative.max_draft_len")
    if mode.needs_model and given.draft_model is not None:
        # The older name is an alias in later releases, so it suits all (1.7).
        folder = facts.locate(given.draft_model)
        yield Setting((SPECULATIVE, "speculative_model_dir"), folder, "speculative.draft_model")
