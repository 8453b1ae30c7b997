"""adapter_config.json: rank and scaling of every module, and what makes an adapter more than W + scaling * B @ A.

Knows PEFT's fields and nothing about tensors.
Source: https://huggingface.co/docs/peft/en/package_reference/lora (LoraConfig), PEFT 0.15 to 0.19.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild.errors import TrtbuildError
from trtbuild.lora.selection import Selection
from trtbuild.source import read_json

NAME = "adapter_config.json"
#: The way out wherever an adapter is more than A and B.
MERGE_ELSEWHERE = "merge it into its base model with the library that trained it, and use the merged model folder"
#: Fields that change what the adapter computes when they are set -> how.
REFUSED: dict[str, str] = {
    "use_dora": "DoRA scales the rows of each merged weight with trained magnitudes",
    "modules_to_save": "these modules were trained and saved whole, beside A and B",
    "trainable_token_indices": "rows of the embedding were trained beside A and B",
    "target_parameters": "A and B belong to parameters, not to linear modules",
    "layer_replication": "the adapter runs on a model whose layers are repeated",
    "lora_bias": "B has a bias",
    "alora_invocation_tokens": "the adapter is active only after its invocation tokens",
    "use_qalora": "A reads pooled inputs",
    "use_bdlora": "A and B are block diagonal",
    "arrow_config": "several adapters are mixed per token",
}
#: Initializations that leave the weights of the base alone; the others (pissa, olora, loftq, corda, lora_ga) change them.
KEEPS_BASE: tuple[object, ...] = (None, True, False, "gaussian", "eva", "orthogonal")


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """What adapter_config.json says.

    Attributes:
        path: the file.
        rank: r of modules without an entry in `rank_pattern`.
        alpha: lora_alpha of modules without an entry in `alpha_pattern`.
        use_rslora: whether scaling is alpha / sqrt(r) instead of alpha / r.
        fan_in_fan_out: whether the base keeps its weights as [in, out] (Conv1D).
        base_model_name: base_model_name_or_path, None when it is not given.
        rank_pattern: regular expression for the end of a module name -> r.
        alpha_pattern: regular expression for the end of a module name -> lora_alpha.
        selection: the modules that have A and B.
    """

    path: Path
    rank: int
    alpha: float
    use_rslora: bool
    fan_in_fan_out: bool
    base_model_name: str | None
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    selection: Selection

    @classmethod
    def read(cls, path: Path) -> AdapterConfig:
        """Read adapter_config.json.

        Raises:
            TrtbuildError: it cannot be read, is not LoRA, or is LoRA with something beside A and B.
        """
        config = read_json(path)
        _refuse(path, config)
        name = config.get("base_model_name_or_path")
        return cls(
            path=path,
            rank=_rank(path, "r", config.get("r")),
            alpha=_alpha(path, "lora_alpha", config.get("lora_alpha")),
            use_rslora=_flag(path, config, "use_rslora"),
            fan_in_fan_out=_flag(path, config, "fan_in_fan_out"),
            base_model_name=name if isinstance(name, str) else None,
            rank_pattern={
                key: _rank(path, key, value) for key, value in _pattern(path, config, "rank_pattern").items()
            },
            alpha_pattern={
                key: _alpha(path, key, value) for key, value in _pattern(path, config, "alpha_pattern").items()
            },
            selection=Selection.read(path, config),
        )

    def rank_of(self, module: str) -> int:
        """Return r of a module, for example of "model.layers.0.self_attn.q_proj"."""
        key = _matching(self.rank_pattern, module)
        return self.rank if key is None else self.rank_pattern[key]

    def scaling_of(self, module: str) -> float:
        """Return what B @ A is multiplied with: alpha / r, or alpha / sqrt(r) with rank-stabilized LoRA.

        Source: PEFT `LoraLayer.update_layer`; rsLoRA: https://arxiv.org/abs/2312.03732, section 3.
        """
        key = _matching(self.alpha_pattern, module)
        alpha = self.alpha if key is None else self.alpha_pattern[key]
        rank = self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


def _matching(patterns: Mapping[str, object], module: str) -> str | None:
    """Return the first pattern that is the whole name or its end after a dot, as PEFT's `get_pattern_key` does."""
    return next((key for key in patterns if re.match(rf"(.*\.)?({key})$", module)), None)


def _refuse(path: Path, config: Mapping[str, Any]) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise TrtbuildError(
            f"{path}: peft_type={kind!r} is not supported, only 'LORA' is",
            hint="export the adapter as LoRA, or " + MERGE_ELSEWHERE,
        )
    for field, reason in REFUSED.items():
        if config.get(field):
            raise TrtbuildError(f"{path}: {field}={config[field]!r} is not supported: {reason}", hint=MERGE_ELSEWHERE)
    bias = config.get("bias", "none")
    if bias not in ("none", None):
        raise TrtbuildError(
            f"{path}: bias={bias!r} is not supported, only 'none' is: trained biases are beside A and B",
            hint=MERGE_ELSEWHERE,
        )
    start = config.get("init_lora_weights")
    if start not in KEEPS_BASE:
        raise TrtbuildError(
            f"{path}: init_lora_weights={start!r} is not supported: it changes the weights of the base model, "
            "to which A and B then belong",
            hint="save it as plain LoRA (PEFT's save_pretrained has path_initial_model_for_weight_conversion), or "
            + MERGE_ELSEWHERE,
        )


def _flag(path: Path, config: Mapping[str, Any], field: str) -> bool:
    value = config.get(field)
    if value is not None and not isinstance(value, bool):
        raise TrtbuildError(f"{path}: {field}={value!r} is not true or false", hint=f"repair {NAME}")
    return bool(value)


def _rank(path: Path, field: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise TrtbuildError(f"{path}: rank {field}={value!r} is not a whole number of 1 or more", hint=f"repair {NAME}")
    return value


def _alpha(path: Path, field: str, value: Any) -> float:
    try:
        if not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(float(value)):
            return float(value)
    except OverflowError:  # an integer beyond the range of float
        pass
    raise TrtbuildError(f"{path}: alpha {field}={value!r} is not a finite number", hint=f"repair {NAME}")


def _pattern(path: Path, config: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    value = config.get(field)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TrtbuildError(f"{path}: {field} holds {value!r}, not an object", hint=f"repair {NAME}")
    for key in value:
        try:
            re.compile(key)
        except re.error as error:
            raise TrtbuildError(
                f"{path}: {field} has the key {key!r}, which is not a regular expression: {error}",
                hint=f"repair {NAME}",
            ) from error
    return value
