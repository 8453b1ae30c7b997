"""INT8 and INT4 weight-only, form P: the file holds plain weights and the loader quantizes them for its GPU.

Source: checkpoint specification 2.8 (tensorrt_llm/models/convert_utils.py, cutlass_preprocessors.cpp `symmetric_quantize`).
Processed weights depend on the GPU architecture and the release, so they are not written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trtbuild.quant.recipes import SearchSettings
from trtbuild.quant.scheme import ScaleTensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Both sides of a rank's weight should be a multiple of this for the mixed-input kernels.
_ALIGNMENT = 64


class _WeightOnly:
    """Symmetric, per output channel: scale = amax / 2^(bits-1), code = round(w / scale) clamped to [-2^(bits-1), 2^(bits-1) - 1].

    Error bound: |w - code * scale| <= scale / 2, except that the largest positive weight of a row may be clipped by one scale.
    """

    name: str
    quant_algo: str | None
    bits: int
    weight_dtype: str | None = None
    scale_tensors: tuple[ScaleTensor, ...] = ()
    needs_activations = False
    is_elementwise = True
    search: SearchSettings | None = None

    def config(self) -> dict[str, Any]:
        """Return the algorithm alone: with a list of exclusions the load-time quantizer would match other names (2.8)."""
        return {"quant_algo": self.quant_algo}

    def warnings(self, module: str, local_shape: tuple[int, ...]) -> list[str]:
        """Name the weights whose rank shape the mixed-input kernels cannot take."""
        if any(size % _ALIGNMENT for size in local_shape):
            return [f"{module} is {list(local_shape)} on a rank; weight-only kernels need multiples of {_ALIGNMENT}"]
        return []

    def scales(self, *, weight_amax: float, input_amax: float | None) -> dict[str, NDArray[Any]]:
        """Return nothing: the loader makes the scales."""
        return {}

    def encode(self, block: NDArray[Any], scales: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return the block: the loader makes the codes."""
        return block

    def bound(self, block: NDArray[Any], scales: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return zero: the file holds the weight itself."""
        zero: NDArray[Any] = block * 0
        return zero

    def decode(self, weight: NDArray[Any], scales: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return what the loader will make of the weight: codes times the scale rounded to the weight's dtype."""
        import numpy as np

        limit = float(1 << (self.bits - 1))
        exact = weight.astype(np.float32)
        scale = np.abs(exact).max(axis=1, keepdims=True) / np.float32(limit)
        scaled = exact / np.where(scale > 0, scale, np.float32(1))
        codes = np.clip(np.trunc(scaled + np.copysign(np.float32(0.5), scaled)), -limit, limit - 1)
        product: NDArray[Any] = codes * scale.astype(weight.dtype).astype(np.float32)
        return product


class Int8WeightOnly(_WeightOnly):
    """8-bit codes (`W8A16`)."""

    name = "int8_weight_only"
    quant_algo = "W8A16"
    bits = 8


class Int4WeightOnly(_WeightOnly):
    """4-bit codes (`W4A16`)."""

    name = "int4_weight_only"
    quant_algo = "W4A16"
    bits = 4
