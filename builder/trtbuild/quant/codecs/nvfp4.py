"""NVFP4: E2M1 codes in blocks of 16 inputs with E4M3 scales and one float32 scale of the whole weight.

Source: checkpoint specification 2.14, unified specification 2.9 (modelopt/torch/quantization/qtensor/nvfp4_tensor.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtbuild.quant.codecs.base import Geometry, Scales, per_group
from trtbuild.quant.codecs.fp8 import E4M3_MAX, scale_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Inputs that share a scale.
GROUP = 16
#: Magnitudes of the E2M1 codes 0 to 7; bit 3 is the sign. Source: OCP Microscaling Formats (MX) v1.0, 5.3.3.
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
#: Largest value that the whole and a block scale of 448 stand for.
LIMIT = MAGNITUDES[-1] * E4M3_MAX
#: Between two magnitudes; a tie goes to the even code.
MIDDLES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
_SMALLEST_SCALE = 2.0**-9


@dataclass(frozen=True, slots=True)
class Nvfp4Codec:
    """real = magnitude(code) * block scale * second; second = amax / 2688, block scale = E4M3 of block amax / (6 second).

    A byte holds two inputs, the even one in its low nibble. Block scales are row-major, not swizzled; those of zero blocks are 1.0.
    Error bound: |w - real| <= unit * the larger of 1 (half the widest step, 4 to 6) and what lies beyond 6 units, unit = block scale * second;
    below 4 units 1/2, below 2 units 1/4.
    """

    @property
    def packing(self) -> tuple[int, int]:
        """Two inputs to a byte."""
        return 1, 2

    @property
    def geometry(self) -> Geometry:
        """A scale per group of inputs."""
        return "groups"

    @property
    def group_size(self) -> int:
        """16, fixed by the format."""
        return GROUP

    @property
    def row_step(self) -> int:
        """Rows are independent."""
        return 1

    @property
    def needs_range(self) -> bool:
        """For the second scale."""
        return True

    @property
    def is_elementwise(self) -> bool:
        """A code depends on its block."""
        return False

    def whole(self, amax: float) -> Scales:
        """Return the second scale."""
        return Scales(second=scale_of(amax, LIMIT))

    def of_block(self, block: NDArray[Any], whole: Scales) -> Scales:
        """Return the E4M3 block scales, [rows, in / 16]."""
        import ml_dtypes
        import numpy as np

        assert whole.second is not None
        amax = np.abs(block).reshape(block.shape[0], -1, GROUP).max(axis=2)
        scale = amax / (np.float32(MAGNITUDES[-1]) * whole.second)
        scale = np.where(amax > 0, np.clip(scale, _SMALLEST_SCALE, E4M3_MAX), np.float32(1))
        return Scales(scale.astype(ml_dtypes.float8_e4m3fn), whole.second)

    def encode(self, block: NDArray[Any], scales: Scales, dtype: str) -> NDArray[Any]:
        """Return bytes, uint8 [rows, in / 2]."""
        import numpy as np

        quotient = block / self._units(scales, block.shape[1])
        magnitude = np.abs(quotient)
        codes = np.searchsorted(np.array(MIDDLES, np.float32), magnitude, side="left").astype(np.uint8)
        for code, middle in enumerate(MIDDLES):
            if code % 2:  # a tie between an odd and the next even code goes up
                codes[magnitude == np.float32(middle)] = code + 1
        codes |= np.signbit(quotient).astype(np.uint8) << 3
        packed: NDArray[Any] = codes[:, 0::2] | (codes[:, 1::2] << 4)
        return packed

    def decode(self, codes: NDArray[Any], scales: Scales) -> NDArray[Any]:
        """Return magnitude * block scale * second."""
        import numpy as np

        table = np.array([*MAGNITUDES, *(-magnitude for magnitude in MAGNITUDES)], np.float32)
        values = np.empty((codes.shape[0], 2 * codes.shape[1]), np.float32)
        values[:, 0::2], values[:, 1::2] = table[codes & 15], table[codes >> 4]
        values *= self._units(scales, values.shape[1])
        return values

    def bound(self, block: NDArray[Any], scales: Scales) -> NDArray[Any]:
        """Return the bound of the class, with room for rounding in float32."""
        import numpy as np

        unit = self._units(scales, block.shape[1])
        exact = np.abs(block)
        bound = np.where(exact > 4 * unit, unit, np.where(exact > 2 * unit, unit / 2, unit / 4))
        result: NDArray[Any] = np.maximum(bound, exact - 6 * unit) * np.float32(1 + 2**-18) + exact * np.float32(2**-20)
        return result

    def _units(self, scales: Scales, columns: int) -> NDArray[Any]:
        import numpy as np

        assert scales.weight is not None
        assert scales.second is not None
        return per_group(scales.weight.astype(np.float32) * scales.second, columns)
