"""INT8 with a scale per output channel, or one for the whole weight.

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
    """real = code * scale, scale = amax / 127 (1.0 for zeros), code = float32 quotient, half to even, in [-128, 127].

    Error bound: |w - code * scale| <= scale / 2.

    Attributes:
        geometry: "rows" or "tensor".
        needs_range: amax is that of the whole weight instead of the row's; with geometry "rows" each row is given that one scale.
    """

    geometry: Geometry = "rows"
    needs_range: bool = False

    @property
    def packing(self) -> tuple[int, int]:
        """One code per weight."""
        return 1, 1

    @property
    def group_size(self) -> int:
        """No groups."""
        return 0

    @property
    def row_step(self) -> int:
        """Rows are independent."""
        return 1

    @property
    def is_elementwise(self) -> bool:
        """Only for one scale per tensor."""
        return self.geometry == "tensor"

    def whole(self, amax: float) -> Scales:
        """Return amax / 127, shape [], where it is that of the whole weight."""
        import numpy as np

        return Scales(nonzero(np.array(amax, np.float32), LARGEST)) if self.needs_range else Scales()

    def of_block(self, block: NDArray[Any], whole: Scales) -> Scales:
        """Return the scales of some rows."""
        import numpy as np

        if self.geometry == "tensor":
            return whole
        if whole.weight is not None:
            return Scales(np.full(len(block), whole.weight, np.float32))
        return Scales(nonzero(np.abs(block).max(axis=1), LARGEST))

    def encode(self, block: NDArray[Any], scales: Scales, dtype: str) -> NDArray[Any]:
        """Return int8 codes."""
        import numpy as np

        quotient = block / _wide(scales)
        np.rint(quotient, out=quotient)
        codes: NDArray[Any] = np.clip(quotient, -LARGEST - 1, LARGEST, out=quotient).astype(np.int8)
        return codes

    def decode(self, codes: NDArray[Any], scales: Scales) -> NDArray[Any]:
        """Return code * scale."""
        import numpy as np

        product: NDArray[Any] = codes.astype(np.float32) * _wide(scales)
        return product

    def bound(self, block: NDArray[Any], scales: Scales) -> NDArray[Any]:
        """Return half a scale, with room for rounding in float32."""
        import numpy as np

        bound: NDArray[Any] = _wide(scales) / 2 + np.abs(block) * np.float32(2**-20)
        return bound


def _wide(scales: Scales) -> NDArray[Any]:
    """Return the scales so that they broadcast over [rows, in]."""
    assert scales.weight is not None
    return scales.weight[:, None] if scales.weight.ndim else scales.weight
