"""Qwen2, Qwen2.5 (QKV bias) and Qwen3 dense (q/k norm, no bias). Source: checkpoint specification 1.6.2 and 2.4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtbuild.arch.llama import IGNORED, RULES, require_silu
from trtbuild.arch.rules import ArchSpec
from trtbuild.dims import ConfigReader, ModelDims, read_dims
from trtbuild.errors import TrtbuildError
from trtbuild.rope import Rope

#: `seq_length` must be in the file; NVIDIA's translation writes this when Hugging Face has none (1.6.2).
_SEQ_LENGTH = 8192
#: What transformers' Qwen3Config implies when head_dim is not given; every published model gives it.
_QWEN3_HEAD_DIM = 128


def refuse_windows(config: Mapping[str, Any], where: str) -> None:
    """Raise TrtbuildError when only some layers have a sliding window."""
    kinds = config.get("layer_types") or []
    if ConfigReader(config, where).flag("use_sliding_window", False) or any(kind != "full_attention" for kind in kinds):
        raise TrtbuildError(
            f"{where}: sliding-window attention in some layers (use_sliding_window, layer_types) is not supported",
            hint="set use_sliding_window to false if the model may be used with full attention",
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
