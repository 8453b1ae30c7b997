"""What changing a field of trtbuild.yaml takes: nothing, a restart of the server, or a new build.

Knows every field by its place in the file, and where the targets differ. A tuner asks before it tries a value.
"""

from __future__ import annotations

from typing import Literal

#: live: takes effect without a restart; restart: render and start the server again; rebuild: the checkpoint or the engine changes.
Change = Literal["live", "restart", "rebuild"]
#: Prefix of a field's place -> the change; the longest prefix that fits counts.
CHANGES: dict[str, Change] = {
    "model": "rebuild",
    "model.revision": "live",
    "target": "rebuild",
    "tensorrt_llm": "rebuild",
    "quantization": "rebuild",
    "parallel": "rebuild",
    "limits": "restart",
    "kv_cache": "restart",
    "scheduling": "restart",
    "engine": "rebuild",
    "engine.stall_timeout_s": "live",
    "engine.log_level": "live",
    "engine.workers": "live",
    "engine.gpu_weights_percent": "restart",
    "llm_api": "restart",
    "speculative": "restart",
    "speculative.choices": "restart",
    "lora": "restart",
    "serving": "restart",
    "hardware": "live",
    "accuracy": "live",
}
#: The same for one target, where it differs: an engine fixes its limits when it is built.
OF_TARGET: dict[str, dict[str, Change]] = {
    "tensorrt": {
        "limits": "rebuild",
        "kv_cache.tokens_per_block": "rebuild",
        "speculative": "rebuild",
        "speculative.choices": "rebuild",
        "lora.max_rank": "rebuild",
        "lora.target_modules": "rebuild",
        "lora.adapters": "rebuild",
        "llm_api": "live",
        "hardware.gpu": "rebuild",
    },
    "pytorch": {"parallel": "restart", "engine": "live"},
    "reference": {"engine": "live", "llm_api": "live"},
}


def change_of(place: tuple[str, ...], target: str) -> Change:
    """Return what changing a field takes for a target.

    Args:
        place: keys from the top, e.g. ("kv_cache", "max_tokens").
        target: of `names.TARGETS`.
    """
    table = {**CHANGES, **OF_TARGET[target]}
    return max(
        ((prefix, change) for prefix, change in table.items() if _is_prefix(prefix, place)),
        key=lambda entry: entry[0].count("."),
    )[1]


def _is_prefix(prefix: str, place: tuple[str, ...]) -> bool:
    parts = tuple(prefix.split("."))
    return place[: len(parts)] == parts
