"""Gemma 1, 2 and 3 (text): norms stored with one added, soft-caps, alternating windows, an explicit head_dim.

Source: checkpoint specification 1.6.4 and 2.4 (tensorrt_llm/models/gemma/{config,convert}.py, 1.x copies). The multiplication of the
embedding by sqrt(hidden_size) is done in the graph; the table is stored as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trtbuild.arch.llama import ATTENTION, EMBEDDING, HEAD, HF, IGNORED, LAYER, MLP
from trtbuild.arch.rules import ArchSpec, WeightRule
from trtbuild.dims import ConfigReader, ModelDims, read_dims
from trtbuild.errors import TrtbuildError
from trtbuild.rope import Rope
from trtbuild.rope_block import NEW, OLD, merged
from trtbuild.shard import Replicate

#: Activations that TensorRT-LLM and transformers both compute in the tanh form.
_ACTIVATIONS = ("gelu", "gelu_pytorch_tanh")
_HEAD_DIM = 256
#: Every so many layers one attends to everything (transformers: Gemma3TextConfig).
_GEMMA3_PATTERN = 6
#: Kind of layer -> name of its rotary base at the top level, and the base where none is given (transformers: Gemma3TextConfig).
_KINDS = {"full_attention": ("rope_theta", 1_000_000.0), "sliding_attention": ("rope_local_base_freq", 10_000.0)}


def _with_offset(rules: tuple[WeightRule, ...]) -> tuple[WeightRule, ...]:
    """Return the rules with one added to every norm: transformers multiplies by 1 + weight, the loader by the weight."""
    is_norm = ("layernorm.weight", "ln_f.weight")
    return tuple(replace(rule, offset=1.0) if rule.target.endswith(is_norm) else rule for rule in rules)


#: Norm -> what its output feeds alone: after Gemma 1 the norm behind the attention is no longer the one in front of the MLP.
_INTER_NORMS = tuple(
    WeightRule(
        f"{LAYER}.{name}.weight", (f"{HF}.{name}.weight",), lambda d: ((d.hidden_size,),), Replicate(), feeds=feeds
    )
    for name, feeds in (("pre_feedforward_layernorm", "gate_up"), ("post_feedforward_layernorm", ""))
)
_SANDWICHED = tuple(
    replace(rule, feeds="") if rule.target.endswith("post_layernorm.weight") else rule for rule in ATTENTION
)
_GEMMA1_RULES = _with_offset((*EMBEDDING, *ATTENTION, *MLP, *HEAD))
_GEMMA2_RULES = _with_offset((*EMBEDDING, *_SANDWICHED, *_INTER_NORMS, *MLP, *HEAD))


def _read(config: Mapping[str, Any], architecture: str, where: str, rope: Rope, **family: Any) -> ModelDims:
    read = ConfigReader(config, where)
    activation = read.text("hidden_activation", read.text("hidden_act", "gelu_pytorch_tanh"))
    if activation not in _ACTIVATIONS:
        raise TrtbuildError(
            f"{where}: activation {activation!r} is not supported here", hint=f"one of {', '.join(_ACTIVATIONS)}"
        )
    if read.flag("attention_bias", False) or read.flag("use_bidirectional_attention", False):
        raise TrtbuildError(
            f"{where}: attention_bias or use_bidirectional_attention is set", hint="neither is supported for Gemma"
        )
    return read_dims(
        config,
        architecture=architecture,
        where=where,
        implied={"head_dim": _HEAD_DIM},
        rope=rope,
        hidden_act="gelu_pytorch_tanh",
        tie_word_embeddings=read.flag("tie_word_embeddings", True),
        **family,
    )


def _gemma1_dims(config: Mapping[str, Any], architecture: str, where: str) -> ModelDims:
    return _read(config, architecture, where, Rope.from_hf_config(config, where=where))


def _gemma2_dims(config: Mapping[str, Any], architecture: str, where: str) -> ModelDims:
    expected = [_kind(layer, 2) for layer in range(ConfigReader(config, where).integer("num_hidden_layers"))]
    if config.get("layer_types") not in (None, expected):
        raise TrtbuildError(
            f"{where}: layer_types do not alternate between sliding and full attention",
            hint="the loader knows no other order",
        )
    return _read(config, architecture, where, Rope.from_hf_config(config, where=where))


def _gemma3_dims(config: Mapping[str, Any], architecture: str, where: str) -> ModelDims:
    layers = ConfigReader(config, where).integer("num_hidden_layers")
    pattern = _pattern(config)
    if config.get("layer_types") not in (None, [_kind(layer, pattern) for layer in range(layers)]):
        raise TrtbuildError(
            f"{where}: layer_types is no repetition of {pattern - 1} sliding layers and a full one",
            hint="the loader knows no other order",
        )
    blocks = _rope_blocks(config, where)
    blank = {"rope_theta": None, OLD: None}
    full, local = (Rope.from_hf_config({**config, **blank, NEW: block}, where=where) for block in blocks.values())
    if local.scaling is not None:
        raise TrtbuildError(
            f"{where}: scaled rotary positions in sliding layers (rope_type {local.scaling['rope_type']})",
            hint="the loader scales none",
        )
    return _read(config, architecture, where, full, qk_norm=True)


def attends_to_all(config: Mapping[str, Any], layer: int) -> bool:
    """Say whether a layer of a Gemma 2 or 3 model has no window: every second one, or every so many as the config says."""
    pattern = 2 if config.get("model_type") == "gemma2" else _pattern(config)
    return _kind(layer, pattern) == "full_attention"


def _kind(layer: int, pattern: int) -> str:
    return "full_attention" if (layer + 1) % pattern == 0 else "sliding_attention"


def _pattern(config: Mapping[str, Any]) -> int:
    """Return the distance of full-attention layers: as given, else read off `layer_types`, else the family's."""
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and "full_attention" in kinds:
        return kinds.index("full_attention") + 1
    given = config.get("sliding_window_pattern")
    return given if isinstance(given, int) and given > 0 else _GEMMA3_PATTERN


def _rope_blocks(config: Mapping[str, Any], where: str = "config.json") -> dict[str, dict[str, Any]]:
    """Return rotary settings per kind of layer, full attention first, from the spellings of transformers 4 and 5.

    Raises:
        TrtbuildError: what should be an object is none, or two spellings contradict each other.
    """
    given = config.get(NEW) or {}
    if not isinstance(given, Mapping) or not given.keys() <= _KINDS.keys():
        raise TrtbuildError(
            f"{where}: rope_parameters ({', '.join(map(str, given))}) does not give settings per kind of layer",
            hint=f"its keys must be {' and '.join(_KINDS)}",
        )
    return {
        kind: merged(
            {**config, OLD: config.get(OLD) if kind == "full_attention" else None, NEW: given.get(kind)},
            where=where,
            theta=theta,
            top_fields={"rope_theta": name},
        )
        for kind, (name, theta) in _KINDS.items()
    }


def _config_fields(dims: ModelDims, source: Mapping[str, Any]) -> dict[str, Any]:
    return {"hidden_act": "gelu", "attn_bias": False, "mlp_bias": False}


def _gemma2_config_fields(dims: ModelDims, source: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_config_fields(dims, source),
        "inter_layernorms": True,
        "query_pre_attn_scalar": source.get("query_pre_attn_scalar", _HEAD_DIM),
        "final_logit_softcapping": source.get("final_logit_softcapping", 30.0),
        "attn_logit_softcapping": source.get("attn_logit_softcapping", 50.0),
        # A run-time setting of the server (max_attention_window_size); kept, the loader warns about it.
        "sliding_window": source.get("sliding_window", 4096),
    }


def _gemma3_config_fields(dims: ModelDims, source: Mapping[str, Any]) -> dict[str, Any]:
    pattern = _pattern(source)
    return {
        **_config_fields(dims, source),
        "inter_layernorms": True,
        "qk_layernorm": True,
        "query_pre_attn_scalar": source.get("query_pre_attn_scalar", _HEAD_DIM),
        "final_logit_softcapping": source.get("final_logit_softcapping"),
        "attn_logit_softcapping": source.get("attn_logit_softcapping"),
        "sliding_window": source.get("sliding_window", 4096),
        "rope_local_base_freq": float(_rope_blocks(source)["sliding_attention"]["rope_theta"]),
        # The spelling differs between releases (1.6.4).
        "_sliding_window_pattern": pattern,
        "sliding_window_pattern": pattern,
    }


def _hf_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "attention_bias": False}


_SHARED = ("query_pre_attn_scalar", "final_logit_softcapping", "attn_logit_softcapping", "sliding_window")


def _gemma2_hf_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    kinds = [_kind(layer, 2) for layer in range(config["num_hidden_layers"])]
    return {**_hf_fields(config), **{key: config[key] for key in _SHARED}, "layer_types": kinds}


def _gemma3_hf_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    pattern = config["_sliding_window_pattern"]
    full = {"rope_theta": config["rotary_base"], **(config["rotary_scaling"] or {"rope_type": "default"})}
    return {
        **_hf_fields(config),
        **{key: config[key] for key in _SHARED},
        "layer_types": [_kind(layer, pattern) for layer in range(config["num_hidden_layers"])],
        "sliding_window_pattern": pattern,
        "rope_scaling": config["rotary_scaling"],
        "rope_local_base_freq": config["rope_local_base_freq"],
        "rope_parameters": {
            "full_attention": full,
            "sliding_attention": {"rope_theta": config["rope_local_base_freq"], "rope_type": "default"},
        },
    }


GEMMA = ArchSpec(
    model_type="gemma",
    read_dims=_gemma1_dims,
    rules=_GEMMA1_RULES,
    ignored=IGNORED,
    config_fields=_config_fields,
    hf_fields=_hf_fields,
    shards_embedding=True,
    has_smoothquant_layers=True,
)

GEMMA2 = ArchSpec(
    model_type="gemma2",
    read_dims=_gemma2_dims,
    rules=_GEMMA2_RULES,
    ignored=IGNORED,
    config_fields=_gemma2_config_fields,
    hf_fields=_gemma2_hf_fields,
    shards_embedding=True,
)

GEMMA3 = ArchSpec(
    model_type="gemma3_text",
    read_dims=_gemma3_dims,
    rules=_GEMMA2_RULES,
    ignored=IGNORED,
    config_fields=_gemma3_config_fields,
    hf_fields=_gemma3_hf_fields,
    shards_embedding=True,
)
