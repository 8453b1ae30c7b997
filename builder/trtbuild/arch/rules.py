"""The two types an architecture is written in: `WeightRule` (one target tensor) and `ArchSpec` (the family).

Knows names, shapes and how parts are joined and cut. Knows no files, no ranks and no quantization.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trtbuild.dims import ModelDims
from trtbuild.shard import Shard

Shape = tuple[int, ...]
#: Which pipeline stage holds a tensor: the first, the last, or the one of its layer.
Stage = Literal["first", "layer", "last"]


def _always(_dims: ModelDims) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class WeightRule:
    """One target tensor and where it comes from.

    Attributes:
        target: TensorRT-LLM name; "{layer}" stands for the layer number (local to the stage when written).
        sources: Hugging Face names of the parts; the target is the parts below one another (axis 0).
        shapes: dims -> full shape of each part, as Hugging Face stores it.
        shard: how each part is cut over tensor-parallel ranks.
        stage: which pipeline stage holds it.
        quantizable: whether schemes that quantize linears apply to it.
        scale_group: quantizable rules of a layer with the same group share their weight and activation ranges.
        when: dims -> whether the tensor exists at all.
    """

    target: str
    sources: tuple[str, ...]
    shapes: Callable[[ModelDims], tuple[Shape, ...]]
    shard: Shard
    stage: Stage = "layer"
    quantizable: bool = False
    scale_group: str = ""
    when: Callable[[ModelDims], bool] = _always


@dataclass(frozen=True, slots=True)
class ArchSpec:
    """A family of architectures; TensorRT-LLM uses the Hugging Face architecture names.

    Attributes:
        model_type: Hugging Face model type, used when config.json names no architecture.
        read_dims: (config, architecture, file name for messages) -> ModelDims.
        rules: all target tensors.
        ignored: patterns of source tensors that are deliberately not used.
        config_fields: dims -> the family's own fields of TensorRT-LLM's config.json.
        hf_fields: TensorRT-LLM's config.json -> the family's own fields of a Hugging Face config.json.
    """

    model_type: str
    read_dims: Callable[[Mapping[str, Any], str, str], ModelDims]
    rules: tuple[WeightRule, ...]
    ignored: tuple[str, ...]
    config_fields: Callable[[ModelDims, Mapping[str, Any]], dict[str, Any]]
    hf_fields: Callable[[Mapping[str, Any]], dict[str, Any]]
