"""No quantization: weights stay in the model's dtype."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trtbuild.quant.recipes import SearchSettings
from trtbuild.quant.scheme import ScaleTensor

if TYPE_CHECKING:
    from numpy.typing import NDArray


class NoQuantization:
    """Plain float16, bfloat16 or float32 weights; error bound: that of the dtype."""

    name = "none"
    quant_algo: str | None = None
    weight_dtype: str | None = None
    scale_tensors: tuple[ScaleTensor, ...] = ()
    needs_activations = False
    is_elementwise = True
    search: SearchSettings | None = None

    def config(self) -> dict[str, Any]:
        """Return nothing but the missing algorithm."""
        return {"quant_algo": None}

    def warnings(self, module: str, local_shape: tuple[int, ...]) -> list[str]:
        """Return nothing: any shape will do."""
        return []

    def scales(self, *, weight_amax: float, input_amax: float | None) -> dict[str, NDArray[Any]]:
        """Return nothing."""
        return {}

    def encode(self, block: NDArray[Any], scales: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return the block."""
        return block

    def bound(self, block: NDArray[Any], scales: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return zero: the file holds the weight itself."""
        zero: NDArray[Any] = block * 0
        return zero

    def decode(self, weight: NDArray[Any], scales: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return the weight as stored."""
        return weight
