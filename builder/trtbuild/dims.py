"""Dimensions of a decoder-only model. The only place that knows the key names of Hugging Face configs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtbuild.errors import TrtbuildError
from trtbuild.rope import Rope

#: Largest head size of the attention kernels, and what it must be a multiple of (NVIDIA/TensorRT-LLM#679).
MAX_HEAD_DIM = 256
HEAD_DIM_STEP = 8


@dataclass(frozen=True, slots=True)
class ModelDims:
    """What conversion and planning need to know about a model; sizes are of the whole model, not of a rank.

    Attributes:
        architecture: Hugging Face architecture, e.g. "LlamaForCausalLM".
        model_type: Hugging Face model type, e.g. "llama".
        dtype: dtype of the checkpoint as config.json states it ("bfloat16"), or "" when it does not.
        qkv_bias, dense_bias, mlp_bias: which linears carry a bias.
        qk_norm: whether q and k are normalized per head.
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
    rope: Rope
    tie_word_embeddings: bool
    dtype: str
    qkv_bias: bool = False
    dense_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False

    @property
    def q_size(self) -> int:
        """Rows of q_proj: num_attention_heads * head_dim."""
        return self.num_attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Rows of k_proj and of v_proj: num_kv_heads * head_dim."""
        return self.num_kv_heads * self.head_dim


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
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise TrtbuildError(f"{self.where}: {key} = {value!r} is not a positive integer", hint="repair config.json")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a positive number."""
        value = self.config.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise TrtbuildError(f"{self.where}: {key} = {value!r} is not a positive number", hint="repair config.json")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean; null counts as absent."""
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise TrtbuildError(f"{self.where}: {key} = {value!r} is neither true nor false", hint="repair config.json")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string; null counts as absent."""
        value = self.config.get(key)
        if value is None:
            value = default
        if not isinstance(value, str):
            raise TrtbuildError(f"{self.where}: {key} = {value!r} is not a string", hint="repair config.json")
        return value


def read_dims(
    config: Mapping[str, Any], *, architecture: str, where: str, implied: Mapping[str, int | None], **flags: bool
) -> ModelDims:
    """Read the fields that every Llama-shaped config has.

    Args:
        config: parsed config.json.
        architecture: the resolved architecture name.
        where: path for messages.
        implied: sizes that the family implies where config.json is silent; other sizes must be given.
        **flags: qkv_bias, dense_bias, mlp_bias, qk_norm as the family decides them.

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
    dims = ModelDims(
        architecture=architecture,
        model_type=read.text("model_type"),
        hidden_size=hidden,
        intermediate_size=read.integer("intermediate_size"),
        num_layers=read.integer("num_hidden_layers"),
        num_attention_heads=heads,
        num_kv_heads=read.integer("num_key_value_heads", implied.get("num_key_value_heads")),
        head_dim=read.integer("head_dim", implied.get("head_dim") or hidden // heads),
        vocab_size=read.integer("vocab_size"),
        max_position_embeddings=read.integer("max_position_embeddings", implied.get("max_position_embeddings")),
        norm_epsilon=read.number("rms_norm_eps", 1e-6),
        hidden_act=read.text("hidden_act", "silu"),
        rope=Rope.from_hf_config(config, where=where),
        tie_word_embeddings=read.flag("tie_word_embeddings", False),
        dtype=str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch."),
        **flags,
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
    return dims
