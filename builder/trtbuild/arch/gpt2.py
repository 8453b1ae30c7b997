"""GPT-2: Conv1D weights stored [in, out], learned positions, layer norms with bias, a tied head.

Source: checkpoint specification 1.6.6 and 2.4 (tensorrt_llm/models/gpt/{config,convert}.py, 1.x copies).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trtbuild.arch.llama import LAYER
from trtbuild.arch.rules import ArchSpec, Stage, View, WeightRule, rows_of, transposed
from trtbuild.dims import ConfigReader, ModelDims, read_dims, renamed
from trtbuild.errors import TrtbuildError
from trtbuild.shard import Replicate, Shard, Split, SplitQKV, SplitVocab

_HF = "transformer.h.{layer}"
_NAMES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
    "n_inner": "intermediate_size",
    "activation_function": "hidden_act",
}
_ACTIVATIONS = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh")
#: Settings of transformers that the engine has no counterpart for -> the only value that can be converted.
_FIXED = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}


def norm(target: str, source: str, *, feeds: str = "") -> tuple[WeightRule, WeightRule]:
    """Return the rules of a layer norm: weight and bias [hidden_size], whole on every rank; feeds: see `WeightRule`."""
    stage: Stage = "layer" if "{layer}" in target else "last"
    weight, bias = (
        WeightRule(
            f"{target}.{kind}",
            (f"{source}.{kind}",),
            lambda d: ((d.hidden_size,),),
            Replicate(),
            stage=stage,
            feeds=feeds,
        )
        for kind in ("weight", "bias")
    )
    return weight, bias


def _qkv_shapes(dims: ModelDims) -> tuple[tuple[int, int], ...]:
    return ((dims.hidden_size, dims.hidden_size),) * 3


def _qkv_views(dims: ModelDims) -> tuple[View, ...]:
    size = dims.hidden_size
    return tuple(rows_of((size, 3 * size), part * size, size, is_transposed=True) for part in range(3))


def _qkv_bias_views(dims: ModelDims) -> tuple[View, ...]:
    size = dims.hidden_size
    return tuple(rows_of((3 * size,), part * size, size) for part in range(3))


def _conv1d(target: str, source: str, group: str, shard: Shard, out: str, inside: str) -> tuple[WeightRule, WeightRule]:
    """Return weight and bias of a Conv1D; out, inside: fields of ModelDims; the bias is cut where the rows are."""
    cuts_rows = shard == Split(0)
    return (
        WeightRule(
            f"{target}.weight", (f"{source}.weight",), lambda d: ((getattr(d, out), getattr(d, inside)),), shard,
            quantizable=True, scale_group=group, views=lambda d: (transposed(getattr(d, out), getattr(d, inside)),),
        ),
        WeightRule(
            f"{target}.bias", (f"{source}.bias",), lambda d: ((getattr(d, out),),), shard if cuts_rows else Replicate()
        ),
    )  # fmt: skip


_RULES: tuple[WeightRule, ...] = (
    WeightRule(
        "transformer.vocab_embedding.weight", ("transformer.wte.weight",),
        lambda d: ((d.vocab_size, d.hidden_size),), SplitVocab(), stage="first",
    ),
    WeightRule(
        "transformer.position_embedding.weight", ("transformer.wpe.weight",),
        lambda d: ((d.max_position_embeddings, d.hidden_size),), SplitVocab(), stage="first",
    ),
    *norm(f"{LAYER}.input_layernorm", f"{_HF}.ln_1", feeds="qkv"),
    WeightRule(
        f"{LAYER}.attention.qkv.weight", (f"{_HF}.attn.c_attn.weight",) * 3, _qkv_shapes, SplitQKV(),
        quantizable=True, scale_group="qkv", views=_qkv_views,
    ),
    WeightRule(
        f"{LAYER}.attention.qkv.bias", (f"{_HF}.attn.c_attn.bias",) * 3, lambda d: ((d.hidden_size,),) * 3, SplitQKV(),
        views=_qkv_bias_views,
    ),
    *_conv1d(f"{LAYER}.attention.dense", f"{_HF}.attn.c_proj", "dense", Split(1), "hidden_size", "hidden_size"),
    *norm(f"{LAYER}.post_layernorm", f"{_HF}.ln_2", feeds="fc"),
    *_conv1d(f"{LAYER}.mlp.fc", f"{_HF}.mlp.c_fc", "fc", Split(0), "intermediate_size", "hidden_size"),
    *_conv1d(f"{LAYER}.mlp.proj", f"{_HF}.mlp.c_proj", "proj", Split(1), "hidden_size", "intermediate_size"),
    *norm("transformer.ln_f", "transformer.ln_f"),
    WeightRule(
        "lm_head.weight", ("transformer.wte.weight",),
        lambda d: ((d.vocab_size, d.hidden_size),), SplitVocab(), stage="last",
    ),
)  # fmt: skip


def _dims(config: Mapping[str, Any], architecture: str, where: str) -> ModelDims:
    usual = renamed(config, _NAMES, where)
    for key, allowed in _FIXED.items():
        if config.get(key, allowed) != allowed:
            raise TrtbuildError(
                f"{where}: {key} = {json.dumps(config[key])} is not supported",
                hint=f"only {json.dumps(allowed)} can be converted",
            )
    read = ConfigReader(usual, where)
    activation = read.text("hidden_act", "gelu_new")
    if activation not in _ACTIVATIONS:
        raise TrtbuildError(
            f"{where}: activation_function = {activation!r} is not supported", hint=f"one of {', '.join(_ACTIVATIONS)}"
        )
    if not read.flag("tie_word_embeddings", True):
        raise TrtbuildError(f"{where}: tie_word_embeddings = false is not supported for GPT-2", hint="its head is tied")
    hidden, heads = read.integer("hidden_size"), read.integer("num_attention_heads")
    return read_dims(
        usual,
        architecture=architecture,
        where=where,
        implied={"num_key_value_heads": heads, "intermediate_size": 4 * hidden},
        rope=None,
        epsilon="layer_norm_epsilon",
        implied_epsilon=1e-5,
        hidden_act=activation,
        tie_word_embeddings=True,
        qkv_bias=True,
        dense_bias=True,
        mlp_bias=True,
    )


def _config_fields(dims: ModelDims, _source: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "position_embedding_type": "learned_absolute",
        "gpt_variant": "gpt2",
        "bias": True,
        "q_scaling": 1.0,
        "embedding_scale": None,
        "apply_query_key_layer_scaling": False,
    }


def _hf_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "n_embd": config["hidden_size"],
        "n_layer": config["num_hidden_layers"],
        "n_head": config["num_attention_heads"],
        "n_positions": config["max_position_embeddings"],
        "n_inner": config["intermediate_size"],
        "activation_function": config["hidden_act"],
        "layer_norm_epsilon": config["norm_epsilon"],
    }


GPT2 = ArchSpec(
    model_type="gpt2",
    read_dims=_dims,
    rules=_RULES,
    ignored=("transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias", "lm_head.weight"),
    config_fields=_config_fields,
    hf_fields=_hf_fields,
    prefixes=(
        ("h.", "transformer.h."),
        ("wte.", "transformer.wte."),
        ("wpe.", "transformer.wpe."),
        ("ln_f.", "transformer.ln_f."),
    ),
    has_smoothquant_layers=True,
)
