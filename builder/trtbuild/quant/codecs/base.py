"""What a number format of weights must be able to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: What a scale belongs to: the whole weight, each output row, each group of inputs of a row, each square block, or each input column.
Geometry = Literal["tensor", "rows", "groups", "blocks", "columns"]
#: Smallest normal float32: the range of an all-zero tensor, so that its scale is positive.
TINY = 1.1754943508222875e-38


@dataclass(frozen=True, slots=True)
class Scales:
    """The scales of some rows of a weight.

    Attributes:
        weight: of the codec's geometry: [] (tensor), [rows], [rows, in / group] or [row blocks, 1, column blocks, 1].
        second: [], a scale of the whole weight beside it; None in formats without.
    """

    weight: NDArray[Any] | None = None
    second: NDArray[Any] | None = None


class Codec(Protocol):
    """A number format. Weights are seen as [out, in] float32; blocks are some of their rows.

    Attributes:
        packing: weights that share a stored element, along rows and along columns.
        geometry: of `Scales.weight`.
        group_size: weights of a row that share a scale; 0 unless the geometry is "groups", the side of a block for "blocks".
        row_step: blocks must begin at multiples of so many rows.
        needs_range: whether the largest absolute value of the whole weight must be known first.
        is_elementwise: whether a code depends on its own value and the range alone, not on where the value is.
    """

    @property
    def packing(self) -> tuple[int, int]: ...
    @property
    def geometry(self) -> Geometry: ...
    @property
    def group_size(self) -> int: ...
    @property
    def row_step(self) -> int: ...
    @property
    def needs_range(self) -> bool: ...
    @property
    def is_elementwise(self) -> bool: ...

    def whole(self, amax: float) -> Scales:
        """Return what the range of the whole weight decides; nothing unless `needs_range`."""
        ...

    def of_block(self, block: NDArray[Any], whole: Scales) -> Scales:
        """Return the scales of some rows."""
        ...

    def encode(self, block: NDArray[Any], scales: Scales, dtype: str) -> NDArray[Any]:
        """Return packed codes. dtype: safetensors dtype of the model."""
        ...

    def decode(self, codes: NDArray[Any], scales: Scales) -> NDArray[Any]:
        """Return the numbers that packed codes stand for, float32 [rows, in]."""
        ...

    def bound(self, block: NDArray[Any], scales: Scales) -> NDArray[Any]:
        """Return how far a decoded value may be from the original, for nearest codes; same shape as the block."""
        ...


def per_group(scale: NDArray[Any], columns: int) -> NDArray[Any]:
    """Return [rows, groups] scales as [rows, columns]."""
    import numpy as np

    wide: NDArray[Any] = np.repeat(scale, columns // scale.shape[1], axis=1)
    return wide


def nonzero(amax: NDArray[Any], limit: float) -> NDArray[Any]:
    """Return amax / limit in float32, 1.0 where amax is zero: such values are all zero, and any positive scale will do."""
    import numpy as np

    with np.errstate(under="ignore"):
        scale = (amax / np.float32(limit)).astype(np.float32)
    result: NDArray[Any] = np.where(scale > 0, scale, np.float32(1))
    return result
