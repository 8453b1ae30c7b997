"""FP8 (E4M3) with a scale per tensor, per output channel or per block of 128 x 128.

Source: checkpoint specification 2.6 and 2.7, unified specification 2.5 and 2.8 (modelopt/torch/export); E4M3: "FP8 Formats for Deep
Learning" (Micikevicius et al. 2022), the variant without infinities.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtbuild.quant.codecs.base import TINY, Geometry, Scales

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Largest finite E4M3 value.
E4M3_MAX = 448.0
#: Side of a block.
BLOCK = 128


@dataclass(frozen=True, slots=True)
class Fp8Codec:
    """real = code * scale, scale = amax / 448 (never zero); codes are quotients clamped to +-448 and rounded half to even.

    Error bound: |w - code * scale| <= the larger of 2^-4 |w| and 2^-10 scale; rounded twice, 2^-8 |w| more (bfloat16's share).

    Attributes:
        rounds_twice: the quotient is rounded to the model's dtype before it is rounded to E4M3, as ModelOpt does it in unified folders
            with a scale per tensor.
    """

    geometry: Geometry = "tensor"
    rounds_twice: bool = False

    @property
    def packing(self) -> tuple[int, int]:
        """One code per weight."""
        return 1, 1

    @property
    def group_size(self) -> int:
        """The side of a block."""
        return BLOCK if self.geometry == "blocks" else 0

    @property
    def row_step(self) -> int:
        """Blocks must not be torn."""
        return BLOCK if self.geometry == "blocks" else 1

    @property
    def needs_range(self) -> bool:
        """Only for one scale per tensor."""
        return self.geometry == "tensor"

    @property
    def is_elementwise(self) -> bool:
        """Only for one scale per tensor."""
        return self.geometry == "tensor"

    def whole(self, amax: float) -> Scales:
        """Return amax / 448 in float32, shape []."""
        return Scales(scale_of(amax)) if self.needs_range else Scales()

    def of_block(self, block: NDArray[Any], whole: Scales) -> Scales:
        """Return the scales of some rows."""
        import numpy as np

        if self.geometry == "tensor":
            return whole
        amax = np.abs(block)
        if self.geometry == "rows":
            amax = amax.max(axis=1)
        else:
            amax = np.maximum.reduceat(amax, range(0, block.shape[0], BLOCK), axis=0)
            amax = np.maximum.reduceat(amax, range(0, block.shape[1], BLOCK), axis=1)[:, None, :, None]
        return Scales(np.maximum(amax, np.float32(TINY)) / np.float32(E4M3_MAX))

    def encode(self, block: NDArray[Any], scales: Scales, dtype: str) -> NDArray[Any]:
        """Return E4M3 codes."""
        import ml_dtypes
        import numpy as np

        from trtbuild.dtypes import numpy_dtype

        quotient = block / self._wide(scales, block.shape)
        if self.rounds_twice:
            with np.errstate(over="ignore"):
                quotient = quotient.astype(numpy_dtype(dtype)).astype(np.float32)
        codes: NDArray[Any] = np.clip(quotient, -E4M3_MAX, E4M3_MAX, out=quotient).astype(ml_dtypes.float8_e4m3fn)
        return codes

    def decode(self, codes: NDArray[Any], scales: Scales) -> NDArray[Any]:
        """Return code * scale."""
        import numpy as np

        product: NDArray[Any] = codes.astype(np.float32) * self._wide(scales, codes.shape)
        return product

    def bound(self, block: NDArray[Any], scales: Scales) -> NDArray[Any]:
        """Return the bound of the class, with room for the rounding of quotient and product in float32."""
        import numpy as np

        exact = np.maximum(np.abs(block) / 16, self._wide(scales, block.shape) / 1024)
        exact = exact + np.abs(block) / 256 if self.rounds_twice else exact
        bound: NDArray[Any] = exact * np.float32(1 + 2**-20)
        return bound

    def _wide(self, scales: Scales, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return the scales so that they broadcast over [rows, in]."""
        import numpy as np

        scale = scales.weight
        assert scale is not None
        if self.geometry == "rows":
            return scale[:, None]
        if self.geometry == "tensor":
            return scale
        rows = np.repeat(scale[:, 0, :, 0], BLOCK, axis=0)[: shape[0]]
        wide: NDArray[Any] = np.repeat(rows, BLOCK, axis=1)[:, : shape[1]]
        return wide


def scale_of(amax: float, limit: float = E4M3_MAX) -> NDArray[Any]:
    """Return amax / limit as a float32 tensor of shape [], 1.0 for a range of zero, and never so small that its reciprocal is infinite.

    Kernels multiply by the reciprocal: zero times infinity would be NaN.
    """
    import numpy as np

    scale = np.float32(amax) / np.float32(limit)
    return np.array(np.maximum(scale, np.float32(TINY)) if amax > 0 else np.float32(1))
