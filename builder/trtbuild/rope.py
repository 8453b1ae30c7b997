"""Rotary position settings, read from every spelling of config.json and written in the one the loader reads.

Knows the transformers-4 (`rope_theta`, `rope_scaling`) and transformers-5 (`rope_parameters`) spellings and what
TensorRT-LLM makes of `rotary_base` and `rotary_scaling` (checkpoint specification 1.5; tensorrt_llm/layers/attention.py
of the 1.x line). Knows nothing about tensors.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtbuild.errors import TrtbuildError

logger = logging.getLogger(__name__)

#: Scaling kinds that both the loader and transformers compute alike -> the keys that must be there.
KINDS: dict[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
}
#: Keys of a yarn block that the loader does not read, with the values that change nothing.
_YARN_IGNORED: dict[str, tuple[Any, ...]] = {"truncate": (None, True), "attention_factor": (None,)}
_DEFAULT_THETA = 10000.0


@dataclass(frozen=True, slots=True)
class Rope:
    """Base and scaling of the rotary embedding.

    Attributes:
        theta: base of the geometric series of inverse frequencies (`rotary_base`).
        scaling: the scaling block with `rope_type`, or None for plain RoPE (`rotary_scaling`).
    """

    theta: float
    scaling: Mapping[str, Any] | None = None

    @classmethod
    def from_hf_config(cls, config: Mapping[str, Any], *, where: str) -> Rope:
        """Read the rotary settings of a Hugging Face config.

        Args:
            config: the (text) config.
            where: file name for messages.

        Raises:
            TrtbuildError: the block is malformed, of an unknown kind, differs per layer type, or asks for something
                the loader would silently ignore.
        """
        nested = config.get("rope_parameters")
        legacy = config.get("rope_scaling")
        for key, block in (("rope_parameters", nested), ("rope_scaling", legacy)):
            if block is not None and not isinstance(block, Mapping):
                raise TrtbuildError(f"{where}: {key} = {block!r} is not an object", hint="repair config.json")
        if nested is not None and any(isinstance(value, Mapping) for value in nested.values()):
            kinds = ", ".join(str(key) for key in nested)
            raise TrtbuildError(
                f"{where}: rope_parameters differs per layer type ({kinds}), which this architecture cannot express",
                hint="only one set of rotary settings for all layers is supported",
            )
        block = dict(nested or legacy or {})
        theta = _theta(config, block, where)
        return cls(theta=theta, scaling=_scaling(block, config, where))

    def hf_parameters(self) -> dict[str, Any]:
        """Return the transformers-5 form `rope_parameters`."""
        return {"rope_theta": self.theta, **(dict(self.scaling) if self.scaling else {"rope_type": "default"})}


def _theta(config: Mapping[str, Any], block: dict[str, Any], where: str) -> float:
    inner, outer = block.pop("rope_theta", None), config.get("rope_theta")
    if inner is not None and outer is not None and inner != outer:
        logger.warning(
            "%s: rope_theta is %s at the top and %s inside rope_parameters; using %s", where, outer, inner, inner
        )
    value = inner if inner is not None else outer
    if value is None:
        return _DEFAULT_THETA
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 1 or not math.isfinite(value):
        raise TrtbuildError(f"{where}: rope_theta = {value!r} is not a number above 1", hint="repair config.json")
    return float(value)


def _scaling(block: dict[str, Any], config: Mapping[str, Any], where: str) -> Mapping[str, Any] | None:
    kind = block.pop("type", None)
    kind = block.pop("rope_type", None) or kind
    block.pop("partial_rotary_factor", None)
    if kind in (None, "default"):
        if "factor" in block:
            raise TrtbuildError(
                f"{where}: the rope block {block!r} has a factor but no rope_type",
                hint=f"known kinds: {', '.join(KINDS)}",
            )
        return None
    if kind not in KINDS:
        raise TrtbuildError(
            f"{where}: rope scaling '{kind}' is not supported", hint=f"supported kinds: {', '.join(KINDS)}"
        )
    if kind == "yarn":
        # transformers falls back to the model's positions, the loader to 4096: write the number that is meant.
        block.setdefault("original_max_position_embeddings", config.get("max_position_embeddings"))
    for key in KINDS[kind]:
        value = block.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise TrtbuildError(
                f"{where}: rope scaling '{kind}' needs {key} > 0, got {value!r}", hint="repair config.json"
            )
    if kind == "yarn":
        _check_yarn(block, where)
    return {"rope_type": kind, **{key: value for key, value in block.items() if value is not None}}


def _check_yarn(block: dict[str, Any], where: str) -> None:
    # The loader derives the factor from mscale (1.0) and mscale_all_dim (0.0): 0.1 ln(factor) + 1, as transformers does.
    implied = 0.1 * math.log(block["factor"]) + 1.0 if block["factor"] > 1 else 1.0
    factor = block.get("attention_factor")
    if factor is not None and math.isclose(factor, implied, rel_tol=1e-6):
        del block["attention_factor"]
    for key, harmless in _YARN_IGNORED.items():
        if block.get(key) not in harmless:
            raise TrtbuildError(
                f"{where}: yarn scaling with {key} = {block[key]!r} would be ignored by TensorRT-LLM",
                hint=f"only {key} in {harmless} can be converted"
                + (f" (or {implied:.6g})" if factor is not None else ""),
            )
