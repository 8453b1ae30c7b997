"""Rotary position settings as the loader reads them; `rope_block` knows how config.json spells them.

Knows what TensorRT-LLM makes of `rotary_base` and `rotary_scaling` (checkpoint specification 1.5; tensorrt_llm/layers/attention.py
of the 1.x line). Knows nothing about tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtbuild.errors import TrtbuildError
from trtbuild.rope_block import DEFAULT_THETA, merged

#: Scaling kinds that both the loader and transformers compute alike -> the keys that must be there.
KINDS: dict[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
}
#: Keys of a yarn block that the loader does not read, with the values that change nothing.
_YARN_IGNORED: dict[str, tuple[Any, ...]] = {"truncate": (None, True), "attention_factor": (None,)}


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
    def from_hf_config(cls, config: Mapping[str, Any], *, where: str, theta: float = DEFAULT_THETA) -> Rope:
        """Read the rotary settings of a Hugging Face config.

        Args:
            config: the (text) config.
            where: file name for messages.
            theta: base that the family implies.

        Raises:
            TrtbuildError: the block is malformed, of an unknown kind, differs per layer type, contradicts another
                spelling, or asks for something the loader would silently ignore.
        """
        block = merged(config, where=where, theta=theta)
        pct = block["partial_rotary_factor"]
        if pct != 1:
            raise TrtbuildError(
                f"{where}: partial_rotary_factor = {pct!r} is not supported here",
                hint="this family rotates whole heads",
            )
        return cls.from_block(block, config, where=where)

    @classmethod
    def from_block(cls, block: Mapping[str, Any], config: Mapping[str, Any], *, where: str) -> Rope:
        """Read one block of rotary settings, as `rope_block.merged` returns it; what share of a head is rotated is not looked at.

        Raises:
            TrtbuildError: it is of an unknown kind, or asks for something the loader would silently ignore.
        """
        rest = {key: value for key, value in block.items() if key != "partial_rotary_factor"}
        return cls(theta=_theta(rest.pop("rope_theta"), where), scaling=_scaling(rest, config, where))

    def hf_parameters(self) -> dict[str, Any]:
        """Return the transformers-5 form `rope_parameters`."""
        return {"rope_theta": self.theta, **(dict(self.scaling) if self.scaling else {"rope_type": "default"})}


def _theta(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 1 or not math.isfinite(value):
        raise TrtbuildError(f"{where}: rope_theta = {value!r} is not a number above 1", hint="repair config.json")
    return float(value)


def _scaling(block: dict[str, Any], config: Mapping[str, Any], where: str) -> Mapping[str, Any] | None:
    kind = block.pop("rope_type")
    if kind == "default":
        if "factor" in block:
            raise TrtbuildError(
                f"{where}: the rotary settings have factor = {block['factor']!r}, but no rope_type",
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
                hint=f"remove {key}, or set it to {'true' if True in harmless else f'{implied:.6g}, which the factor implies'}",
            )
