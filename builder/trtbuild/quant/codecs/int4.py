"""INT4 in groups of inputs, two output rows to a byte.

Source: checkpoint specification 2.9 and 2.10, unified specification 2.7 (modelopt/torch/export/quant_utils.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtbuild.quant.codecs.base import Geometry, Scales, nonzero, per_group
from trtbuild.quant.codecs.fp8 import E4M3_MAX, scale_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Largest code that a scale is made for; the smallest code is -8.
LARGEST = 7


@dataclass(frozen=True, slots=True)
class Int4Codec:
    """real = code * scale, scale = amax of the group / 7 (1.0 for zeros), code = float32 quotient, half to even, clamped to [-8, 7].

    A byte holds two output rows: the even one in its low nibble, two's complement.
    Error bound: |w - code * scale| <= scale / 2; with a clipped scale, what lies beyond 7 scales on top.

    Attributes:
        has_second: W4A8: beside the group scales, amax of the whole weight / 448; it takes no part in the codes.
    """

    group_size: int
    has_second: bool = False

    @property
    def packing(self) -> tuple[int, int]:
        """Two rows to a byte."""
        return 2, 1

    @property
    def geometry(self) -> Geometry:
        """A scale per group of inputs."""
        return "groups"

    @property
    def row_step(self) -> int:
        """Pairs of rows must not be torn."""
        return 2

    @property
    def needs_range(self) -> bool:
        """For the second scale."""
        return self.has_second

    @property
    def is_elementwise(self) -> bool:
        """A code depends on its group."""
        return False

    def whole(self, amax: float) -> Scales:
        """Return the second scale."""
        return Scales(second=scale_of(amax, E4M3_MAX)) if self.has_second else Scales()

    def of_block(self, block: NDArray[Any], whole: Scales) -> Scales:
        """Return amax / 7 of each group, [rows, in / group_size]."""
        import numpy as np

        groups = block.reshape(block.shape[0], -1, self.group_size)
        amax = np.maximum(groups.max(axis=2), -groups.min(axis=2))
        return Scales(nonzero(amax, LARGEST), whole.second)

    def encode(self, block: NDArray[Any], scales: Scales, dtype: str) -> NDArray[Any]:
        """Return bytes, uint8 [rows / 2, in]."""
        import numpy as np

        assert scales.weight is not None
        groups = block.reshape(block.shape[0], -1, self.group_size)
        quotient = groups / scales.weight[:, :, None]
        np.rint(quotient, out=quotient)
        np.clip(quotient, -LARGEST - 1, LARGEST, out=quotient)
        return pack_rows(quotient.astype(np.int8).reshape(block.shape))

    def decode(self, codes: NDArray[Any], scales: Scales) -> NDArray[Any]:
        """Return code * scale."""
        import numpy as np

        assert scales.weight is not None
        values = unpack_rows(codes).astype(np.float32)
        values *= per_group(scales.weight, values.shape[1])
        return values

    def bound(self, block: NDArray[Any], scales: Scales) -> NDArray[Any]:
        """Return half a scale, or what lies beyond the largest code, with room for rounding in float32."""
        import numpy as np

        assert scales.weight is not None
        scale = per_group(scales.weight, block.shape[1])
        bound: NDArray[Any] = np.maximum(scale / 2, np.abs(block) - LARGEST * scale) * np.float32(1 + 2**-18) + np.abs(
            block
        ) * np.float32(2**-20)
        return bound


def pack_rows(codes: NDArray[Any]) -> NDArray[Any]:
    """Return int8 codes [rows, in] of -8 to 7 as uint8 [rows / 2, in]."""
    import numpy as np

    raw = codes.view(np.uint8)
    packed: NDArray[Any] = (raw[0::2] & 15) | (raw[1::2] << 4)
    return packed


def unpack_rows(packed: NDArray[Any]) -> NDArray[Any]:
    """Return bytes [rows / 2, in] as int8 codes [rows, in]."""
    import numpy as np

    signed = packed.view(np.int8)
    codes = np.empty((2 * packed.shape[0], *packed.shape[1:]), dtype=np.int8)
    np.right_shift(np.left_shift(signed, 4), 4, out=codes[0::2])
    np.right_shift(signed, 4, out=codes[1::2])
    return codes
