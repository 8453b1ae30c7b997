"""What reading a quantized folder yields. Knows no format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trtbuild.source import SourceCheckpoint


@dataclass(frozen=True, slots=True)
class QuantizedSource:
    """A quantized folder, seen as the model it stands for.

    Attributes:
        source: the same folder: its config without `quantization_config`, its tensors under the names of the unquantized model.
            A quantized linear appears as `X.weight`, float32 [out, in]: codes times scales, rounded to nothing narrower, so that
            whoever converts it rounds once. All other tensors are as they lie in the file.
        method: how the folder calls its format (`quant_method`).
        algorithm: what the weights are, TensorRT-LLM's name where it has one.
        group_size: inputs that share a scale; None for scales per tensor, channel or block, or when modules differ.
        input_amax: module -> largest |input| that its static input scale stands for. Modules whose kernel first multiplies the input
            by a `pre_quant_scale` are left out: their scale is about the multiplied input, not about the one that `source` sees.
        weight_amax: module -> largest |weight| that its FP8 scale per tensor stands for.
        kv_scales: attention module -> (k_scale, v_scale); real = code * scale.
        kv_algorithm: "FP8" when the folder wants its KV cache in FP8, else None.
        notes: what the user must be told.
    """

    source: SourceCheckpoint
    method: str
    algorithm: str
    group_size: int | None
    input_amax: Mapping[str, float]
    weight_amax: Mapping[str, float]
    kv_scales: Mapping[str, tuple[float, float]]
    kv_algorithm: str | None
    notes: tuple[str, ...]
