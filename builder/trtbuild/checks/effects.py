"""Keys of trtbuild.yaml that are set and change nothing: by target, and by the other keys that they need.

One file may serve several targets, so this is told and not refused. What a target refuses is not here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from trtbuild.evaluate.limits import has_limits
from trtbuild.spec import Deployment
from trtbuild.spec.fields import fields

#: Target -> sections and keys that nothing of it reads: neither what is written, nor what starts the server, nor its repository.
BY_TARGET: Mapping[str, tuple[str, ...]] = {
    "tensorrt": ("llm_api",),
    "pytorch": (
        "engine", "limits.opt_num_tokens", "parallel.embedding", "serving.preprocessing_instances", "serving.bls_instances",
        "serving.add_special_tokens", "serving.max_queue_size", "serving.max_queue_delay_us", "serving.queue_timeout_us",
        "serving.queue_timeout_action", "serving.allow_timeout_override", "serving.priority_levels", "serving.default_priority_level",
    ),
    "reference": (
        "engine", "llm_api", "scheduling", "speculative", "lora", "hardware", "limits.opt_num_tokens", "limits.max_beam_width",
        "kv_cache.free_gpu_memory_fraction", "kv_cache.enable_block_reuse", "kv_cache.host_cache_bytes", "kv_cache.max_attention_window",
    ),
}  # fmt: skip
#: Keys -> what they need, and whether it is there; for the targets that read them.
_NEEDED: tuple[tuple[tuple[str, ...], str, Callable[[Deployment], bool]], ...] = (
    (("speculative",), "speculative.mode is none", lambda it: it.speculative.mode != "none"),
    (("speculative.lookahead",), "speculative.mode is not lookahead", lambda it: it.speculative.mode in ("none", "lookahead")),
    (("speculative.draft_model",), "the mode of speculation needs no draft model", lambda it: it.speculative.mode not in ("lookahead", "ngram", "mtp")),
    (("lora.max_rank", "lora.device_cache_fraction", "lora.host_cache_bytes"), "lora.adapters is empty", lambda it: bool(it.lora.adapters or it.lora.target_modules)),
    (("accuracy.file", "accuracy.max_samples", "accuracy.max_length_tokens"), "accuracy has no limits", lambda it: has_limits(it.accuracy)),
    (("llm_api.cuda_graph_padding",), "llm_api.cuda_graphs is off", lambda it: it.llm_api.cuda_graphs),
    (("hardware.price_per_gpu_hour",), "hardware.gpu is not said", lambda it: it.hardware.gpu is not None),
)  # fmt: skip


def without_effect(deployment: Deployment, *, calibrates: bool) -> list[str]:
    """Return a note for each reason for which keys that are not at their defaults change nothing.

    Args:
        deployment: the resolved trtbuild.yaml.
        calibrates: whether the model will be run on sample texts.
    """
    changed = list(changed_keys(deployment))
    reasons = dict.fromkeys(within(changed, BY_TARGET[deployment.target]), f"target {deployment.target}")
    for prefixes, reason, holds in (
        *_NEEDED,
        (("quantization.calibration",), "nothing is calibrated", lambda _: calibrates),
    ):
        if not holds(deployment):
            reasons = {**dict.fromkeys(within(changed, prefixes), reason), **reasons}
    by_reason: dict[str, list[str]] = {}
    for name in changed:
        if name in reasons:
            by_reason.setdefault(reasons[name], []).append(name)
    return [f"without effect ({reason}): {', '.join(names)}" for reason, names in by_reason.items()]


def changed_keys(deployment: Deployment) -> Iterator[str]:
    """Yield the keys that are not at their defaults."""
    data = deployment.as_dict()
    for field in fields():
        if field.section is None and not field.required:
            value = data
            for part in field.path:
                value = value[part]
            if value != field.default:
                yield ".".join(field.path)


def within(names: list[str], prefixes: tuple[str, ...]) -> list[str]:
    """Return the names that are one of some keys, or inside a section of them."""
    return [name for name in names if any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)]
