"""INT8 with a scale per output channel.

Source: checkpoint specification 2.12 (modelopt/torch/export, tensorrt_llm/quantization/layers.py SmoothQuantLinear).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtbuild.quant.codecs.base import Geometry, Scales, nonzero

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Largest code; the smallest is -128.
LARGEST = 127


@dataclass(frozen=True, slots=True)
class Int8Codec:
    """real = code * scale, scale = amax of the row / 127 (1.0 for zeros), code = float32 quotient, half to even, in [-128, 127].

    Error bound: |w - code * scale| <= scale / 2.
    """

    @property
    def packing(self) -> tuple[int, int]:
        """One code per weight."""
        return 1, 1

    @property
    def geometry(self) -> Geometry:
        """A scale per output channel."""
        return "rows"

    @property
    def group_size(self) -> int:
        """No groups."""
        return 0

    @property
    def row_step(self) -> int:
        """Rows are independent."""
        return 1

    @property
    def needs_range(self) -> bool:
        """Rows are independent."""
        return False

    @property
    def is_elementwise(self) -> bool:
        """A code depends on its row."""
        return False

    def whole(self, amax: float) -> Scales:
        """Return nothing."""
        return Scales()

    def of_block(self, block: NDArray[Any], whole: Scales) -> Scales:
        """Return amax / 127 of each row."""
        import numpy as np

        return Scales(nonzero(np.abs(block).max(axis=1), LARGEST))

    def encode(self, block: NDArray[Any], scales: Scales, dtype: str) -> NDArray[Any]:
        """Return int8 codes."""
        import numpy as np

        assert scales.weight is not None
        quotient = block / scales.weight[:, None]
        np.rint(quotient, out=quotient)
        codes: NDArray[Any] = np.clip(quotient, -LARGEST - 1, LARGEST, out=quotient).astype(np.int8)
        return codes

    def decode(self, codes: NDArray[Any], scales: Scales) -> NDArray[Any]:
        """Return code * scale."""
        import numpy as np

        assert scales.weight is not None
        product: NDArray[Any] = codes.astype(np.float32) * scales.weight[:, None]
        return product

    def bound(self, block: NDArray[Any], scales: Scales) -> NDArray[Any]:
        """Return half a scale, with room for rounding in float32."""
        import numpy as np

        assert scales.weight is not None
        bound: NDArray[Any] = scales.weight[:, None] / 2 + np.abs(block) * np.float32(2**-20)
        return bound
