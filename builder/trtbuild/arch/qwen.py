"""Qwen2, Qwen2.5 (QKV bias) and Qwen3 dense (q/k norm, no bias). Source: checkpoint specification 1.6.2 and 2.4."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trtbuild.arch.llama import IGNORED, RULES, require_silu
from trtbuild.arch.rules import ArchSpec
from trtbuild.dims import ConfigReader, ModelDims, read_dims
from trtbuild.errors import TrtbuildError
from trtbuild.rope import Rope

#: `seq_length` must be in the file; NVIDIA's translation writes this when Hugging Face has none (1.6.2).
_SEQ_LENGTH = 8192
#: First layer with a window where config.json does not say (transformers: Qwen2Config, Qwen2MoeConfig, Qwen3Config).
_MAX_WINDOW_LAYERS = 28
#: What transformers' Qwen3Config implies when head_dim is not given; every published model gives it.
_QWEN3_HEAD_DIM = 128


#: What layer has a window when they are switched on, as transformers' config classes say: (layer, max_window_layers) -> bool.
Slides = Callable[[int, int], bool]


def late_layers(layer: int, limit: int) -> bool:
    """Say whether a layer of a dense model has a window: those from `max_window_layers` on."""
    return layer >= limit


def refuse_windows(config: Mapping[str, Any], where: str, slides: Slides = late_layers) -> None:
    """Raise TrtbuildError when a layer has a sliding window.

    Args:
        config: of the model.
        where: its path, for the message.
        slides: what layers have one where `layer_types` does not say.
    """
    read = ConfigReader(config, where)
    kinds, limit = config.get("layer_types"), config.get("max_window_layers")
    limit = _MAX_WINDOW_LAYERS if limit is None else limit
    # null is no window, a window that is not given is one of 4096 tokens
    is_on = read.flag("use_sliding_window", False) and config.get("sliding_window", "implied") is not None
    if kinds:
        found = [kind != "full_attention" for kind in kinds]
    else:
        found = [is_on and slides(layer, limit) for layer in range(read.integer("num_hidden_layers"))]
    if any(found):
        raise TrtbuildError(
            f"{where}: {sum(found)} of {len(found)} layers have a sliding window (use_sliding_window, max_window_layers = {limit}, "
            "layer_types), which is not supported",
            hint="set use_sliding_window to false, without layer_types, if the model may be used with full attention",
        )


def refuse_qwen3_bias(config: Mapping[str, Any], where: str) -> None:
    """Raise TrtbuildError when a Qwen3 config asks for attention biases."""
    if ConfigReader(config, where).flag("attention_bias", False):
        raise TrtbuildError(
            f"{where}: attention_bias = true is not supported for Qwen3", hint="the loader has no biases for it"
        )


def _qwen2_dims(config: Mapping[str, Any], architecture: str, where: str) -> ModelDims:
    refuse_windows(config, where)
    rope = Rope.from_hf_config(config, where=where)
    return require_silu(
        read_dims(config, architecture=architecture, where=where, implied={}, rope=rope, qkv_bias=True), where
    )


def _qwen3_dims(config: Mapping[str, Any], architecture: str, where: str) -> ModelDims:
    refuse_windows(config, where)
    refuse_qwen3_bias(config, where)
    rope = Rope.from_hf_config(config, where=where)
    implied = {"head_dim": _QWEN3_HEAD_DIM}
    return require_silu(
        read_dims(config, architecture=architecture, where=where, implied=implied, rope=rope, qk_norm=True), where
    )


def config_fields(dims: ModelDims, source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that every Qwen checkpoint has."""
    return {
        "qwen_type": dims.model_type,
        "attn_bias": dims.qkv_bias,
        "mlp_bias": False,
        "qk_layernorm": dims.qk_norm,
        "seq_length": source.get("seq_length", _SEQ_LENGTH),
    }


def hf_fields(_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that every Qwen config needs to be read as full attention."""
    return {"use_sliding_window": False, "sliding_window": None}


def _qwen3_hf_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    return {**hf_fields(config), "attention_bias": False}


QWEN2 = ArchSpec(
    model_type="qwen2",
    read_dims=_qwen2_dims,
    rules=RULES,
    ignored=IGNORED,
    config_fields=config_fields,
    hf_fields=hf_fields,
    has_smoothquant_layers=True,
)

QWEN3 = ArchSpec(
    model_type="qwen3",
    read_dims=_qwen3_dims,
    rules=RULES,
    ignored=IGNORED,
    config_fields=config_fields,
    hf_fields=_qwen3_hf_fields,
)
