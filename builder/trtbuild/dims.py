"""Dimensions of a decoder-only model. The only place that knows the key names of Hugging Face configs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtbuild.errors import TrtbuildError
from trtbuild.rope import Rope
from trtbuild.spellings import require_same

#: Largest head size of the attention kernels, and what it must be a multiple of (NVIDIA/TensorRT-LLM#679).
MAX_HEAD_DIM = 256
HEAD_DIM_STEP = 8
#: Largest size that a 32-bit config holds, and most layers and experts: published decoders have some 130 layers and 512 experts at most.
_MOST = 2**31 - 1
#: Longest value that a message shows whole, characters.
_SHOWN = 60
#: Usual names that transformers takes for a family's own as well (attribute maps of its configs); it ignores other usual names there.
_ALIASES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
_MOST_OF = dict.fromkeys(("num_hidden_layers", "num_local_experts", "num_experts"), 4096)


@dataclass(frozen=True, slots=True)
class ModelDims:
    """What conversion and planning need to know about a model; sizes are of the whole model, not of a rank.

    Attributes:
        architecture: Hugging Face architecture, e.g. "LlamaForCausalLM".
        model_type: Hugging Face model type, e.g. "llama".
        dtype: dtype of the checkpoint as config.json states it ("bfloat16"), or "" when it does not.
        rope: rotary settings, None for learned positions.
        qkv_bias, dense_bias, mlp_bias: which linears carry a bias.
        qk_norm: whether q and k are normalized per head.
        parallel_norms: number of norms in front of attention and MLP that run side by side (Falcon), 0 when one follows the other.
        rotary_pct: share of a head that is rotated.
        num_experts: routed experts of a layer, 0 for a dense model.
        experts_per_token: how many of them a token visits.
        moe_intermediate_size: width of a routed expert.
        shared_expert_intermediate_size: width of the expert that every token visits, 0 without.
        renormalizes_experts: whether the weights of the visited experts are made to sum to one.
    """

    architecture: str
    model_type: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    norm_epsilon: float
    hidden_act: str
    rope: Rope | None
    tie_word_embeddings: bool
    dtype: str
    qkv_bias: bool = False
    dense_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    parallel_norms: int = 0
    rotary_pct: float = 1.0
    num_experts: int = 0
    experts_per_token: int = 0
    moe_intermediate_size: int = 0
    shared_expert_intermediate_size: int = 0
    renormalizes_experts: bool = True

    @property
    def q_size(self) -> int:
        """Rows of q_proj: num_attention_heads * head_dim."""
        return self.num_attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Rows of k_proj and of v_proj: num_kv_heads * head_dim."""
        return self.num_kv_heads * self.head_dim


def _shown(value: object) -> str:
    """Return a value for a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


class ConfigReader:
    """Reads typed fields of config.json; a wrong type or a missing field is an error that names file and field."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.config = config
        self.where = where

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a positive integer; null counts as absent."""
        value = self.config.get(key)
        if value is None:
            value = default
        if value is None:
            raise TrtbuildError(f"{self.where}: '{key}' is missing", hint="it must be a positive integer")
        most = _MOST_OF.get(key, _MOST)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= most:
            raise TrtbuildError(
                f"{self.where}: {key} = {_shown(value)} is not a positive integer up to {most}",
                hint="repair config.json",
            )
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a positive number."""
        value = self.config.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= sys.float_info.max:
            raise TrtbuildError(
                f"{self.where}: {key} = {_shown(value)} is not a positive number", hint="repair config.json"
            )
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean; null counts as absent."""
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise TrtbuildError(
                f"{self.where}: {key} = {_shown(value)} is neither true nor false", hint="repair config.json"
            )
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string; null counts as absent."""
        value = self.config.get(key)
        if value is None:
            value = default
        if not isinstance(value, str):
            raise TrtbuildError(f"{self.where}: {key} = {_shown(value)} is not a string", hint="repair config.json")
        return value


def read_dims(
    config: Mapping[str, Any],
    *,
    architecture: str,
    where: str,
    implied: Mapping[str, int | None],
    rope: Rope | None,
    epsilon: str = "rms_norm_eps",
    implied_epsilon: float = 1e-6,
    **family: Any,
) -> ModelDims:
    """Read the fields that every decoder's config has, by their usual names.

    Args:
        config: parsed config.json; families with other names rename them first (`renamed`).
        architecture: the resolved architecture name.
        where: path for messages.
        implied: sizes that the family implies where config.json is silent; other sizes must be given.
        rope: rotary settings, None for learned positions.
        epsilon: the key of the norms' epsilon.
        implied_epsilon: its value where config.json is silent.
        **family: further fields of `ModelDims`, as the family decides them.

    Raises:
        TrtbuildError: a field is missing, of the wrong type, or of a size the kernels do not have.
    """
    read = ConfigReader(config, where)
    heads, hidden = read.integer("num_attention_heads"), read.integer("hidden_size")
    if config.get("head_dim") is None and "head_dim" not in implied and hidden % heads:
        raise TrtbuildError(
            f"{where}: hidden_size={hidden} is not divisible by num_attention_heads={heads} and head_dim is not given",
            hint="add head_dim to config.json",
        )
    fields: dict[str, Any] = {
        "hidden_act": read.text("hidden_act", "silu") if "hidden_act" not in family else "",
        "tie_word_embeddings": read.flag("tie_word_embeddings", False)
        if "tie_word_embeddings" not in family
        else False,
        **family,
    }
    dims = ModelDims(
        architecture=architecture,
        model_type=read.text("model_type"),
        hidden_size=hidden,
        intermediate_size=read.integer("intermediate_size", implied.get("intermediate_size")),
        num_layers=read.integer("num_hidden_layers"),
        num_attention_heads=heads,
        num_kv_heads=read.integer("num_key_value_heads", implied.get("num_key_value_heads")),
        head_dim=read.integer("head_dim", implied.get("head_dim") or hidden // heads),
        vocab_size=read.integer("vocab_size"),
        max_position_embeddings=read.integer("max_position_embeddings", implied.get("max_position_embeddings")),
        norm_epsilon=read.number(epsilon, implied_epsilon),
        rope=rope,
        dtype=str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch."),
        **fields,
    )
    if heads % dims.num_kv_heads:
        raise TrtbuildError(
            f"{where}: num_attention_heads={heads} is not a multiple of num_key_value_heads={dims.num_kv_heads}",
            hint="repair config.json",
        )
    if dims.head_dim % HEAD_DIM_STEP or dims.head_dim > MAX_HEAD_DIM:
        raise TrtbuildError(
            f"{where}: head size {dims.head_dim} is not supported",
            hint=f"the attention kernels need a multiple of {HEAD_DIM_STEP} up to {MAX_HEAD_DIM}",
        )
    if dims.num_experts and not 0 < dims.experts_per_token <= dims.num_experts:
        raise TrtbuildError(
            f"{where}: {dims.experts_per_token} experts per token of {dims.num_experts}", hint="repair config.json"
        )
    return dims


def renamed(config: Mapping[str, Any], names: Mapping[str, str], where: str) -> dict[str, Any]:
    """Return the config with fields under their usual names as well.

    Args:
        config: parsed config.json.
        names: the family's name -> usual name ("n_embd" -> "hidden_size").
        where: path for messages.

    Raises:
        TrtbuildError: both names are there with different values, and transformers knows both.
    """
    for own, usual in names.items():
        if usual in _ALIASES:
            require_same({name: config.get(name) for name in (own, usual)}, where, f"keep {own}")
    given = {usual: config[own] for own, usual in names.items() if own in config}
    return {key: value for key, value in {**config, **given}.items() if key not in given or value is not None}
