"""Architectures that are not converted but sized: models with multi-head latent attention.

The checkpoint specification has no tensors for latent attention, so rank files would be guesswork. What can be told from headers and
config.json is told. Source of the cache size: "DeepSeek-V2" (2024), section 2.1.2: a layer keeps one latent vector and one rotary key
per token, whatever the number of heads.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtbuild.dims import ConfigReader
from trtbuild.source import SourceCheckpoint

#: Architecture -> why it is not converted.
SIZED_ONLY: dict[str, str] = {
    "DeepseekV2ForCausalLM": "the specification of rank files has no tensors for multi-head latent attention",
    "DeepseekV3ForCausalLM": "the specification of rank files has no tensors for multi-head latent attention",
}
INSTEAD = "TensorRT-LLM 1.0 and later serve the Hugging Face folder itself through the LLM API"


@dataclass(frozen=True, slots=True)
class ModelSize:
    """What a model that is not converted takes.

    Attributes:
        architecture: Hugging Face architecture.
        reason: why it is not converted.
        num_parameters: elements of all tensors.
        weight_bytes: safetensors dtype -> bytes of all tensors of it.
        kv_values_per_token: numbers that all layers together cache for one token.
        num_layers: of the decoder.
        num_attention_heads, num_experts, max_positions: what limits cuts and lengths; None where config.json does not say.
    """

    architecture: str
    reason: str
    num_parameters: int
    weight_bytes: Mapping[str, int]
    kv_values_per_token: int
    num_layers: int
    num_attention_heads: int | None = None
    num_experts: int | None = None
    max_positions: int | None = None


def architecture_of(config: Mapping[str, Any]) -> str | None:
    """Return the architecture of a config if it is one that is only sized."""
    named = config.get("architectures")
    first = named[0] if isinstance(named, list) and named else None
    return first if first in SIZED_ONLY else None


def size_model(source: SourceCheckpoint, architecture: str) -> ModelSize:
    """Size a model from its headers and config.json.

    Raises:
        TrtbuildError: a field of config.json is missing.
    """
    read = ConfigReader(source.config, str(source.path / "config.json"))
    counts: Counter[str] = Counter()
    elements = 0
    for tensor in source.tensors.values():
        counts[tensor.dtype] += tensor.nbytes
        elements += math.prod(tensor.shape)
    per_layer = read.integer("kv_lora_rank") + read.integer("qk_rope_head_dim")
    layers = read.integer("num_hidden_layers")
    limits = ("num_attention_heads", "n_routed_experts", "max_position_embeddings")
    heads, experts, positions = (read.integer(key) if source.config.get(key) is not None else None for key in limits)
    return ModelSize(
        architecture,
        SIZED_ONLY[architecture],
        elements,
        dict(counts),
        per_layer * layers,
        layers,
        heads,
        experts,
        positions,
    )
