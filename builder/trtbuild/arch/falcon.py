"""Falcon: q, k, v grouped per kv head, attention and MLP side by side, one or two norms in front.

Source: checkpoint specification 1.6.8 and 2.4 (tensorrt_llm/models/falcon/{config,convert}.py, 1.x copies).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trtbuild.arch.gpt2 import norm
from trtbuild.arch.gpt_neox import fused_qkv, linear
from trtbuild.arch.llama import LAYER
from trtbuild.arch.rules import ArchSpec, WeightRule
from trtbuild.dims import ConfigReader, ModelDims, read_dims, renamed
from trtbuild.errors import TrtbuildError
from trtbuild.rope import Rope
from trtbuild.shard import Split, SplitVocab

_HF = "transformer.h.{layer}"
_NAMES = {
    "n_embed": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "ffn_hidden_size": "intermediate_size",
    "activation": "hidden_act",
}


def _norms(target: str, source: str, numbers: tuple[int, ...]) -> tuple[WeightRule, ...]:
    """Return a norm that is there for these values of `parallel_norms`."""
    return tuple(replace(rule, when=lambda d: d.parallel_norms in numbers) for rule in norm(target, source))


_EMBEDDING = "transformer.word_embeddings.weight"
_RULES: tuple[WeightRule, ...] = (
    WeightRule(
        "transformer.vocab_embedding.weight", (_EMBEDDING,),
        lambda d: ((d.vocab_size, d.hidden_size),), SplitVocab(), stage="first",
    ),
    *_norms(f"{LAYER}.input_layernorm", f"{_HF}.input_layernorm", (0, 1)),
    *_norms(f"{LAYER}.input_layernorm", f"{_HF}.ln_attn", (2,)),
    *_norms(f"{LAYER}.mlp_layernorm", f"{_HF}.ln_mlp", (2,)),
    *_norms(f"{LAYER}.post_layernorm", f"{_HF}.post_attention_layernorm", (0,)),
    *fused_qkv(f"{_HF}.self_attention.query_key_value"),
    *linear(
        f"{LAYER}.attention.dense", f"{_HF}.self_attention.dense", "dense", Split(1),
        out="hidden_size", inside="q_size", bias="dense_bias",
    ),
    *linear(
        f"{LAYER}.mlp.fc", f"{_HF}.mlp.dense_h_to_4h", "fc", Split(0),
        out="intermediate_size", inside="hidden_size", bias="mlp_bias",
    ),
    *linear(
        f"{LAYER}.mlp.proj", f"{_HF}.mlp.dense_4h_to_h", "proj", Split(1),
        out="hidden_size", inside="intermediate_size", bias="mlp_bias",
    ),
    *norm("transformer.ln_f", "transformer.ln_f"),
    WeightRule(
        "lm_head.weight", ("lm_head.weight",),
        lambda d: ((d.vocab_size, d.hidden_size),), SplitVocab(), stage="last", when=lambda d: not d.tie_word_embeddings,
    ),
    WeightRule(
        "lm_head.weight", (_EMBEDDING,),
        lambda d: ((d.vocab_size, d.hidden_size),), SplitVocab(), stage="last", when=lambda d: d.tie_word_embeddings,
    ),
)  # fmt: skip


def _dims(config: Mapping[str, Any], architecture: str, where: str) -> ModelDims:
    usual = renamed(config, _NAMES, where)
    read = ConfigReader(usual, where)
    heads, hidden = read.integer("num_attention_heads"), read.integer("hidden_size")
    is_new, is_parallel = read.flag("new_decoder_architecture", False), read.flag("parallel_attn", True)
    kv_heads = read.integer("num_kv_heads", heads) if is_new else 1 if read.flag("multi_query", True) else heads
    if read.flag("alibi", False):
        raise TrtbuildError(
            f"{where}: alibi positions are not supported", hint="Falcon models with rotary positions can be converted"
        )
    activation = read.text("hidden_act", "gelu")
    if activation != "gelu":
        raise TrtbuildError(f"{where}: activation = {activation!r} is not supported here", hint="this family uses gelu")
    norms = read.integer("num_ln_in_parallel_attn", 2) if is_new else int(is_parallel)
    if norms > 2:
        raise TrtbuildError(f"{where}: num_ln_in_parallel_attn = {norms}", hint="it must be 1 or 2")
    bias = read.flag("bias", False)
    return read_dims(
        {**usual, "num_key_value_heads": kv_heads},
        architecture=architecture,
        where=where,
        implied={"intermediate_size": 4 * hidden, "max_position_embeddings": 2048},
        rope=Rope.from_hf_config(config, where=where),
        epsilon="layer_norm_epsilon",
        implied_epsilon=1e-5,
        hidden_act=activation,
        tie_word_embeddings=read.flag("tie_word_embeddings", True),
        parallel_norms=norms,
        qkv_bias=bias,
        dense_bias=bias,
        mlp_bias=bias,
    )


def _config_fields(dims: ModelDims, source: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "bias": dims.qkv_bias,
        "parallel_attention": dims.parallel_norms > 0,
        "num_ln_in_parallel_attn": dims.parallel_norms or None,
        "new_decoder_architecture": bool(source.get("new_decoder_architecture", False)),
    }


def _hf_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    heads, kv_heads, is_new = (
        config["num_attention_heads"], config["num_key_value_heads"], config["new_decoder_architecture"],
    )  # fmt: skip
    return {
        "layer_norm_epsilon": config["norm_epsilon"],
        "new_decoder_architecture": is_new,
        "num_kv_heads": kv_heads if is_new else heads,
        "multi_query": kv_heads == 1 and heads > 1,
        "parallel_attn": config["parallel_attention"],
        "num_ln_in_parallel_attn": config["num_ln_in_parallel_attn"] if is_new else None,
        "bias": config["bias"],
        "alibi": False,
        "ffn_hidden_size": config["intermediate_size"],
        "activation": "gelu",
    }


FALCON = ArchSpec(
    model_type="falcon",
    read_dims=_dims,
    rules=_RULES,
    ignored=("transformer.h.*.self_attention.rotary_emb.inv_freq",),
    config_fields=_config_fields,
    hf_fields=_hf_fields,
    hf_absent=("head_dim",),
)
