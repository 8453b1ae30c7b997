"""GPT-NeoX and Pythia: q, k, v interleaved per head, attention and MLP side by side, partly rotated heads.

Source: checkpoint specification 1.6.7 and 2.4 (examples/gptneox/convert_checkpoint.py). The second norm of a layer keeps its Hugging
Face name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trtbuild.arch.gpt2 import norm
from trtbuild.arch.llama import LAYER
from trtbuild.arch.rules import ArchSpec, Shape, View, WeightRule
from trtbuild.dims import ConfigReader, ModelDims, read_dims
from trtbuild.errors import TrtbuildError
from trtbuild.rope import Rope
from trtbuild.rope_block import merged
from trtbuild.shard import Replicate, Shard, Split, SplitQKV, SplitVocab
from trtbuild.spellings import require_same

_HF = "gpt_neox.layers.{layer}"
_PCT = 0.25
#: What the family calls the fields of a rotary block at the top level (transformers: GPTNeoXConfig).
_TOP_FIELDS = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}


def grouped_views(dims: ModelDims, columns: Shape) -> tuple[View, ...]:
    """Return q, k and v inside a fused tensor of one group per kv head: its query heads, then its k, then its v.

    Args:
        dims: of the model.
        columns: (in,) for the weight, () for the bias.
    """
    size = dims.head_dim
    queries = dims.num_attention_heads // dims.num_kv_heads * size
    stride = queries + 2 * size
    shape = (stride * dims.num_kv_heads, *columns)
    return (
        View(shape, 0, queries, stride),
        View(shape, queries, size, stride),
        View(shape, queries + size, size, stride),
    )


def fused_qkv(source: str) -> tuple[WeightRule, WeightRule]:
    """Return the rules of a grouped `query_key_value` weight and of its bias, where there is one."""
    return (
        WeightRule(
            f"{LAYER}.attention.qkv.weight", (f"{source}.weight",) * 3,
            lambda d: ((d.q_size, d.hidden_size), (d.kv_size, d.hidden_size), (d.kv_size, d.hidden_size)), SplitQKV(),
            quantizable=True, scale_group="qkv", views=lambda d: grouped_views(d, (d.hidden_size,)),
        ),
        WeightRule(
            f"{LAYER}.attention.qkv.bias", (f"{source}.bias",) * 3,
            lambda d: ((d.q_size,), (d.kv_size,), (d.kv_size,)), SplitQKV(),
            when=lambda d: d.qkv_bias, views=lambda d: grouped_views(d, ()),
        ),
    )  # fmt: skip


def linear(
    target: str, source: str, group: str, shard: Shard, *, out: str, inside: str, bias: str
) -> tuple[WeightRule, WeightRule]:
    """Return weight and bias of a linear; out, inside, bias: fields of ModelDims; a row-parallel bias stays whole."""
    return (
        WeightRule(
            f"{target}.weight", (f"{source}.weight",), lambda d: ((getattr(d, out), getattr(d, inside)),), shard,
            quantizable=True, scale_group=group,
        ),
        WeightRule(
            f"{target}.bias", (f"{source}.bias",), lambda d: ((getattr(d, out),),),
            shard if shard == Split(0) else Replicate(), when=lambda d: bool(getattr(d, bias)),
        ),
    )  # fmt: skip


_RULES: tuple[WeightRule, ...] = (
    WeightRule(
        "transformer.vocab_embedding.weight", ("gpt_neox.embed_in.weight",),
        lambda d: ((d.vocab_size, d.hidden_size),), SplitVocab(), stage="first",
    ),
    *norm(f"{LAYER}.input_layernorm", f"{_HF}.input_layernorm"),
    *fused_qkv(f"{_HF}.attention.query_key_value"),
    *linear(
        f"{LAYER}.attention.dense", f"{_HF}.attention.dense", "dense", Split(1),
        out="hidden_size", inside="q_size", bias="dense_bias",
    ),
    *norm(f"{LAYER}.post_attention_layernorm", f"{_HF}.post_attention_layernorm"),
    *linear(
        f"{LAYER}.mlp.fc", f"{_HF}.mlp.dense_h_to_4h", "fc", Split(0),
        out="intermediate_size", inside="hidden_size", bias="mlp_bias",
    ),
    *linear(
        f"{LAYER}.mlp.proj", f"{_HF}.mlp.dense_4h_to_h", "proj", Split(1),
        out="hidden_size", inside="intermediate_size", bias="mlp_bias",
    ),
    *norm("transformer.ln_f", "gpt_neox.final_layer_norm"),
    WeightRule(
        "lm_head.weight", ("embed_out.weight",),
        lambda d: ((d.vocab_size, d.hidden_size),), SplitVocab(), stage="last",
    ),
)  # fmt: skip


def _dims(config: Mapping[str, Any], architecture: str, where: str) -> ModelDims:
    read = ConfigReader(config, where)
    fixed = {"use_parallel_residual": True, "attention_bias": True, "tie_word_embeddings": False}
    for key, allowed in fixed.items():
        if read.flag(key, allowed) != allowed:
            raise TrtbuildError(
                f"{where}: {key} = {json.dumps(config[key])} is not supported for GPT-NeoX",
                hint=f"only {json.dumps(allowed)} can be converted",
            )
    activation = read.text("hidden_act", "gelu")
    if not activation.startswith("gelu"):
        raise TrtbuildError(f"{where}: hidden_act = {activation!r} is not supported here", hint="this family uses gelu")
    block = merged(config, where=where, pct=_PCT, top_fields=_TOP_FIELDS)
    require_same(
        {"rope_theta": config.get("rope_theta"), "the base that transformers reads": block["rope_theta"]},
        where,
        "transformers reads rotary_emb_base and rope_parameters.rope_theta only",
    )
    rope = Rope.from_block(block, config, where=where)
    if rope.scaling is not None:
        raise TrtbuildError(
            f"{where}: scaled rotary positions are not supported for GPT-NeoX", hint="remove rope_scaling"
        )
    return read_dims(
        config,
        architecture=architecture,
        where=where,
        implied={"num_key_value_heads": config.get("num_attention_heads")},
        rope=rope,
        epsilon="layer_norm_eps",
        implied_epsilon=1e-5,
        hidden_act=activation,
        tie_word_embeddings=False,
        rotary_pct=float(block["partial_rotary_factor"]),
        qkv_bias=True,
        dense_bias=True,
        mlp_bias=True,
    )


def _config_fields(dims: ModelDims, _source: Mapping[str, Any]) -> dict[str, Any]:
    assert dims.rope is not None
    return {"rotary_emb_base": dims.rope.theta, "rotary_pct": dims.rotary_pct, "rotary_scaling": None}


def _hf_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "layer_norm_eps": config["norm_epsilon"],
        "rotary_pct": config["rotary_pct"],
        "rotary_emb_base": config["rotary_emb_base"],
        "use_parallel_residual": True,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": config["rotary_emb_base"], "partial_rotary_factor": config["rotary_pct"],
        },
    }  # fmt: skip


GPT_NEOX = ArchSpec(
    model_type="gpt_neox",
    read_dims=_dims,
    rules=_RULES,
    ignored=(
        "gpt_neox.layers.*.attention.bias",
        "gpt_neox.layers.*.attention.masked_bias",
        "gpt_neox.layers.*.attention.rotary_emb.inv_freq",
        "gpt_neox.rotary_emb.inv_freq",
    ),
    config_fields=_config_fields,
    hf_fields=_hf_fields,
    prefixes=(("lm_head.", "embed_out."),),
    has_pipeline=False,
)
