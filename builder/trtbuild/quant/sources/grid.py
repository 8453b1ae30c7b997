"""Scales and zero points: which stored number belongs to which weight, and the checks on both. Knows no format."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trtbuild.errors import TrtbuildError
from trtbuild.quant.sources.coding import SCALE, Coding
from trtbuild.safetensors_file import TensorInfo, TensorReader

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Grid:
    """A matrix of numbers laid over a weight: number (r, c) covers a tile of it.

    Attributes:
        info: the stored tensor, seen as the [items, items] matrix that `coding` reads.
        tile: (rows, columns) of the weight under one number.
        shape: (rows, columns) of the grid.
        coding: how the numbers are stored.
        column_index: int32 [in], the grid column of each weight column, where that is not c // tile columns.
    """

    info: TensorInfo
    tile: tuple[int, int]
    shape: tuple[int, int]
    coding: Coding
    column_index: TensorInfo | None = None

    def read(self, reader: TensorReader, start: int, stop: int, width: int) -> NDArray[np.float32]:
        """Return the number of each weight of rows [start, stop): [rows, width], or [rows, 1] when a row has but one.

        Raises:
            TrtbuildError: the column index leaves the grid.
        """
        import numpy as np

        first = start // self.tile[0]
        stored = self.coding.read(reader, self.info, first, max(-(-stop // self.tile[0]), first))
        rows: NDArray[np.float32] = stored[np.arange(start, stop) // self.tile[0] - first]
        if self.shape[1] == 1:
            return rows
        if self.column_index is None:
            columns = np.arange(width, dtype=np.int32) // self.tile[1]
        else:
            columns = read_index(reader, self.column_index, self.shape[1])
        values: NDArray[np.float32] = rows[:, columns]
        return values


def lay_grid(
    info: TensorInfo,
    weight: tuple[int, int],
    tile: tuple[int, int],
    *,
    coding: Coding = SCALE,
    column_index: TensorInfo | None = None,
) -> Grid:
    """Return the grid of a scale or zero-point tensor over a weight, after checking its shape; reads nothing.

    Axes of length one do not matter: [out], [out, 1] and [1, out] are all one number per row.

    Args:
        info: the stored tensor.
        weight: [out, in].
        tile: (rows, columns) of the weight under one number; the last tile of an axis may be cut off.
        coding: how the numbers are stored.
        column_index: int32 [in], see `Grid`.

    Raises:
        TrtbuildError: another dtype or shape than this tile needs.
    """
    require_dtype(info, coding.dtypes)
    shape = -(-weight[0] // tile[0]), -(-weight[1] // tile[1])
    items = -(-shape[0] // coding.pack[0]), -(-shape[1] // coding.pack[1])
    if [size for size in info.shape if size != 1] != [size for size in items if size != 1]:
        raise TrtbuildError(
            f"{info.path}: {info.name} has shape {list(info.shape)}; a weight of {list(weight)} with one number per "
            f"{list(tile)} needs {list(items)}",
            hint="the tensor and the declared group or block size do not belong together; export or download the model again",
        )
    return Grid(replace(info, shape=items), tile, shape, coding, column_index)


def divide_groups(info: TensorInfo, weight: tuple[int, int], group_size: int) -> tuple[int, int]:
    """Return the tile of one row and one group; -1 means the whole row.

    Raises:
        TrtbuildError: the group size does not divide the inputs.
    """
    size = weight[1] if group_size == -1 else group_size
    if size < 1 or weight[1] % size:
        raise TrtbuildError(
            f"{info.path}: {info.name} stands for a weight of {list(weight)}, whose {weight[1]} inputs are not a multiple of "
            f"the declared group_size {group_size}",
            hint="group_size has to divide the inputs; check it in the quantization config of the folder",
        )
    return 1, size


def require_dtype(info: TensorInfo, dtypes: tuple[str, ...]) -> None:
    """Raise TrtbuildError when a tensor has none of the dtypes."""
    if info.dtype not in dtypes:
        raise TrtbuildError(
            f"{info.path}: {info.name} is {info.dtype}, expected {' or '.join(dtypes)}",
            hint="the tensors do not fit the declared quantization; export or download the model again",
        )


def require_shape(info: TensorInfo, shape: tuple[int, ...]) -> None:
    """Raise TrtbuildError when a tensor has another shape."""
    if info.shape != shape:
        raise TrtbuildError(
            f"{info.path}: {info.name} has shape {list(info.shape)}, expected {list(shape)}",
            hint="the tensors do not fit the declared quantization; export or download the model again",
        )


def require_matrix(info: TensorInfo) -> tuple[int, int]:
    """Return the two sides of a stored matrix.

    Raises:
        TrtbuildError: another number of axes, or an empty one.
    """
    if len(info.shape) != 2 or 0 in info.shape:
        raise TrtbuildError(
            f"{info.path}: {info.name} has shape {list(info.shape)}, expected two axes that are not empty",
            hint="only quantized matrices are read; experts have to be stored one by one",
        )
    return info.shape[0], info.shape[1]


def require_length(info: TensorInfo, length: int) -> None:
    """Raise TrtbuildError unless a tensor holds so many numbers along one axis."""
    if [size for size in info.shape if size != 1] != [size for size in (length,) if size != 1]:
        require_shape(info, (length,))


def read_index(reader: TensorReader, info: TensorInfo, groups: int) -> NDArray[np.int32]:
    """Return the group of each input, int32 [in].

    Raises:
        TrtbuildError: a group that does not exist.
    """
    index: NDArray[np.int32] = reader.read(info)
    if index.min() < 0 or index.max() >= groups:
        raise TrtbuildError(
            f"{info.path}: {info.name} names group {index.min() if index.min() < 0 else index.max()}; "
            f"there are {groups} groups, counted from 0",
            hint="the file is damaged; export or download the model again",
        )
    return index


def check_scales(scale: NDArray[np.float32], codes: NDArray[np.float32], *, info: TensorInfo) -> None:
    """Refuse scales that are not finite and positive; zero is allowed over codes that are all zero.

    Args:
        scale: [rows, columns] or [rows, 1].
        codes: [rows, columns], zero points already subtracted.
        info: the scale tensor, for the message.

    Raises:
        TrtbuildError: such a scale; the message shows it.
    """
    import numpy as np

    bad = ~(np.isfinite(scale) & (scale >= 0))
    if not bad.any():
        zero = scale == 0
        if not zero.any():
            return
        bad = zero & (codes != 0)
    if bad.any():
        seen = np.broadcast_to(scale, bad.shape)[bad][0]
        raise TrtbuildError(
            f"{info.path}: {info.name} holds the scale {seen}",
            hint="scales have to be finite and positive (zero only over weights that are all zero); the file is damaged",
        )


def check_values(values: NDArray[np.float32], *, info: TensorInfo) -> None:
    """Raise TrtbuildError when a dequantized weight is not finite, as with a NaN code or an overflowing product."""
    import numpy as np

    if not np.isfinite(values).all():
        raise TrtbuildError(
            f"{info.path}: {info.name} yields {values[~np.isfinite(values)][0]}", hint="the file is damaged"
        )
