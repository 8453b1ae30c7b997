"""Llama-shaped decoders: Llama 1 to 3.3, Mistral (with Nemo's explicit head_dim), and what Qwen shares with them.

Source of names and shapes: checkpoint specification 2.3 (tensorrt_llm/models/llama/{config,convert}.py, 1.x copies).
Note the crossed MLP names: `mlp.fc` is gate_proj, `mlp.gate` is up_proj.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtbuild.arch.rules import ArchSpec, WeightRule
from trtbuild.dims import ConfigReader, ModelDims, read_dims
from trtbuild.errors import TrtbuildError
from trtbuild.rope import Rope
from trtbuild.shard import Replicate, Split, SplitQKV, SplitVocab

#: Tokens a layer looks back where config.json says nothing; null is no window (transformers: MistralConfig).
MISTRAL_WINDOW = 4096
LAYER = "transformer.layers.{layer}"
HF = "model.layers.{layer}"
_QKV = tuple(f"{HF}.self_attn.{part}_proj" for part in "qkv")


def _qkv_rows(dims: ModelDims) -> tuple[int, int, int]:
    return dims.q_size, dims.kv_size, dims.kv_size


EMBEDDING: tuple[WeightRule, ...] = (
    WeightRule(
        "transformer.vocab_embedding.weight", ("model.embed_tokens.weight",),
        lambda d: ((d.vocab_size, d.hidden_size),), SplitVocab(), stage="first",
    ),
)  # fmt: skip
ATTENTION: tuple[WeightRule, ...] = (
    WeightRule(
        f"{LAYER}.input_layernorm.weight", (f"{HF}.input_layernorm.weight",),
        lambda d: ((d.hidden_size,),), Replicate(), feeds="qkv",
    ),
    WeightRule(
        f"{LAYER}.attention.qkv.weight", tuple(f"{name}.weight" for name in _QKV),
        lambda d: tuple((rows, d.hidden_size) for rows in _qkv_rows(d)), SplitQKV(), quantizable=True, scale_group="qkv",
    ),
    WeightRule(
        f"{LAYER}.attention.qkv.bias", tuple(f"{name}.bias" for name in _QKV),
        lambda d: tuple((rows,) for rows in _qkv_rows(d)), SplitQKV(), when=lambda d: d.qkv_bias,
    ),
    WeightRule(
        f"{LAYER}.attention.q_layernorm.weight", (f"{HF}.self_attn.q_norm.weight",),
        lambda d: ((d.head_dim,),), Replicate(), when=lambda d: d.qk_norm,
    ),
    WeightRule(
        f"{LAYER}.attention.k_layernorm.weight", (f"{HF}.self_attn.k_norm.weight",),
        lambda d: ((d.head_dim,),), Replicate(), when=lambda d: d.qk_norm,
    ),
    WeightRule(
        f"{LAYER}.attention.dense.weight", (f"{HF}.self_attn.o_proj.weight",),
        lambda d: ((d.hidden_size, d.q_size),), Split(1), quantizable=True, scale_group="dense",
    ),
    WeightRule(
        f"{LAYER}.attention.dense.bias", (f"{HF}.self_attn.o_proj.bias",),
        lambda d: ((d.hidden_size,),), Replicate(), when=lambda d: d.dense_bias,
    ),
    WeightRule(
        f"{LAYER}.post_layernorm.weight", (f"{HF}.post_attention_layernorm.weight",),
        lambda d: ((d.hidden_size,),), Replicate(), feeds="gate_up",
    ),
)  # fmt: skip
MLP: tuple[WeightRule, ...] = (
    WeightRule(
        f"{LAYER}.mlp.fc.weight", (f"{HF}.mlp.gate_proj.weight",),
        lambda d: ((d.intermediate_size, d.hidden_size),), Split(0), quantizable=True, scale_group="gate_up",
    ),
    WeightRule(
        f"{LAYER}.mlp.fc.bias", (f"{HF}.mlp.gate_proj.bias",),
        lambda d: ((d.intermediate_size,),), Split(0), when=lambda d: d.mlp_bias,
    ),
    WeightRule(
        f"{LAYER}.mlp.gate.weight", (f"{HF}.mlp.up_proj.weight",),
        lambda d: ((d.intermediate_size, d.hidden_size),), Split(0), quantizable=True, scale_group="gate_up",
    ),
    WeightRule(
        f"{LAYER}.mlp.gate.bias", (f"{HF}.mlp.up_proj.bias",),
        lambda d: ((d.intermediate_size,),), Split(0), when=lambda d: d.mlp_bias,
    ),
    WeightRule(
        f"{LAYER}.mlp.proj.weight", (f"{HF}.mlp.down_proj.weight",),
        lambda d: ((d.hidden_size, d.intermediate_size),), Split(1), quantizable=True, scale_group="down",
    ),
    WeightRule(
        f"{LAYER}.mlp.proj.bias", (f"{HF}.mlp.down_proj.bias",),
        lambda d: ((d.hidden_size,),), Replicate(), when=lambda d: d.mlp_bias,
    ),
)  # fmt: skip
HEAD: tuple[WeightRule, ...] = (
    WeightRule("transformer.ln_f.weight", ("model.norm.weight",), lambda d: ((d.hidden_size,),), Replicate(), stage="last"),
    WeightRule(
        "lm_head.weight", ("lm_head.weight",),
        lambda d: ((d.vocab_size, d.hidden_size),), SplitVocab(), stage="last", when=lambda d: not d.tie_word_embeddings,
    ),
    # A tied head is written out: with the embedding replicated its local shape differs, and the loader would leave it empty (2.1).
    WeightRule(
        "lm_head.weight", ("model.embed_tokens.weight",),
        lambda d: ((d.vocab_size, d.hidden_size),), SplitVocab(), stage="last", when=lambda d: d.tie_word_embeddings,
    ),
)  # fmt: skip

RULES = (*EMBEDDING, *ATTENTION, *MLP, *HEAD)

#: Buffers that old checkpoints carry although they are computed from config.json.
IGNORED = ("model.layers.*.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq")


def _dims(config: Mapping[str, Any], architecture: str, where: str) -> ModelDims:
    read = ConfigReader(config, where)
    bias = read.flag("attention_bias", read.flag("bias", False))
    # Configs of the first Llama models are silent about both.
    implied = {"num_key_value_heads": config.get("num_attention_heads"), "max_position_embeddings": 2048}
    flags: dict[str, Any] = {"qkv_bias": bias, "dense_bias": bias, "mlp_bias": read.flag("mlp_bias", False)}
    rope = Rope.from_hf_config(config, where=where)
    return require_silu(
        read_dims(config, architecture=architecture, where=where, implied=implied, rope=rope, **flags), where
    )


def _mistral_dims(config: Mapping[str, Any], architecture: str, where: str) -> ModelDims:
    rope = Rope.from_hf_config(config, where=where)
    return require_silu(read_dims(config, architecture=architecture, where=where, implied={}, rope=rope), where)


def require_silu(dims: ModelDims, where: str) -> ModelDims:
    """Return dims unless the activation is another one than the gated MLP of this family has."""
    if dims.hidden_act not in ("silu", "swish"):
        raise TrtbuildError(
            f"{where}: hidden_act = {dims.hidden_act!r} is not supported here", hint="this family uses silu"
        )
    return dims


def _config_fields(dims: ModelDims, _source: Mapping[str, Any]) -> dict[str, Any]:
    return {"attn_bias": dims.qkv_bias, "mlp_bias": dims.mlp_bias, "residual_mlp": False}


def _mistral_config_fields(dims: ModelDims, source: Mapping[str, Any]) -> dict[str, Any]:
    # A window is a run-time setting of the server (max_attention_window_size); the key is only kept, the loader warns about it.
    window = source.get("sliding_window", MISTRAL_WINDOW)
    return {**_config_fields(dims, source), **({"sliding_window": window} if isinstance(window, int) else {})}


def _hf_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"attention_bias": config["attn_bias"], "mlp_bias": config["mlp_bias"]}


def _mistral_hf_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"sliding_window": config.get("sliding_window")}


LLAMA = ArchSpec(
    model_type="llama",
    read_dims=_dims,
    rules=RULES,
    ignored=IGNORED,
    config_fields=_config_fields,
    hf_fields=_hf_fields,
    has_smoothquant_layers=True,
)

MISTRAL = ArchSpec(
    model_type="mistral",
    read_dims=_mistral_dims,
    rules=RULES,
    ignored=IGNORED,
    config_fields=_mistral_config_fields,
    hf_fields=_mistral_hf_fields,
    has_smoothquant_layers=True,
)
