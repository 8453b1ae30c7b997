"""Reads the parts of target tensors in row blocks, checks them and finds their ranges.

Knows views of fused and transposed sources, and the bit patterns of floats. Knows no ranks and no schemes.
Memory bound: `BlockSource.cache_bytes` for a group that fits into it, else a few row blocks.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtbuild.dtypes import FLOATS, SIZES
from trtbuild.errors import TrtbuildError
from trtbuild.layout import Part
from trtbuild.safetensors_file import SourceTensor, TensorReader, num_rows

#: Bits of each float format: its integer type, all bits but the sign, and the smallest pattern that is not a finite number.
_BITS: dict[str, tuple[type[np.unsignedinteger[Any]], int, int]] = {
    "F16": (np.uint16, 0x7FFF, 0x7C00),
    "BF16": (np.uint16, 0x7FFF, 0x7F80),
    "F32": (np.uint32, 0x7FFFFFFF, 0x7F800000),
}
#: A transposed source is read in blocks of this many times the usual size: every block needs a pass over the whole of it.
_TRANSPOSED_BLOCKS = 8


def magnitude_bits(block: NDArray[Any], dtype: str) -> int:
    """Return the bit pattern of the largest absolute value of a block; NaN and infinity are above every number."""
    integer, mask, _ = _BITS[dtype]
    return int((block.view(integer) & integer(mask)).max(initial=0))


def is_finite(pattern: int, dtype: str) -> bool:
    """Say whether a pattern of `magnitude_bits` is that of a finite number."""
    return pattern < _BITS[dtype][2]


def value_of(pattern: int, block: NDArray[Any], dtype: str) -> float:
    """Return the number of a pattern of `magnitude_bits`."""
    integer = _BITS[dtype][0]
    return float(np.array([pattern], dtype=integer).view(block.dtype)[0])


class BlockSource:
    """The parts of some slots, to be gone through as often as needed; read once if they are small enough to keep.

    Args:
        tensors: Hugging Face name -> source tensor.
        reader: shared by all.
        parts: everything that will be asked for.
        block_bytes: source bytes of one row block.
        cache_bytes: source bytes that may be kept.
        row_step: blocks begin at multiples of so many rows.
    """

    def __init__(
        self,
        tensors: Mapping[str, SourceTensor],
        reader: TensorReader,
        parts: Sequence[Part],
        *,
        block_bytes: int,
        cache_bytes: int,
        row_step: int = 1,
    ) -> None:
        self._tensors = tensors
        self._reader = reader
        self._block_bytes = block_bytes
        self._row_step = row_step
        self._kept: dict[Part, list[tuple[int, NDArray[Any]]]] = {}
        self._may_keep = sum(math.prod(part.shape) * SIZES[tensors[part.source].dtype] for part in parts) <= cache_bytes
        self._peaks: dict[Part, float] = {}
        #: Part -> SHA-256 of its rows, of all parts that were gone through.
        self.digests: dict[Part, str] = {}

    @property
    def reader(self) -> TensorReader:
        """What the parts are read with."""
        return self._reader

    def dtype(self, part: Part) -> str:
        """Return the safetensors dtype of a part's blocks."""
        return self._tensors[part.source].dtype

    def blocks(self, part: Part) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield (first row, rows) until the part is through; all values are finite.

        Raises:
            TrtbuildError: a value is NaN or infinite, or the file cannot be read.
        """
        if part in self._kept:
            yield from self._kept[part]
            return
        tensor = self._tensors[part.source]
        kept, peak, digest = [], 0.0, hashlib.sha256()
        for start, block in self._read(tensor, part):
            peak = max(peak, _require_finite(block, tensor))
            if part not in self.digests:
                digest.update(np.ascontiguousarray(block).view(np.uint8).data)
            if self._may_keep:
                kept.append((start, block))
            yield start, block
        self._peaks[part] = peak
        self.digests.setdefault(part, digest.hexdigest())
        if self._may_keep:
            self._kept[part] = kept

    def amax(self, part: Part) -> float:
        """Return the largest absolute value of a part."""
        if part not in self._peaks:
            for _ in self.blocks(part):
                pass
        return self._peaks[part]

    def _read(self, tensor: SourceTensor, part: Part) -> Iterator[tuple[int, NDArray[Any]]]:
        rows = num_rows(part.shape)
        # What the rows take in memory: those of a quantized source are many times what lies in the file.
        row_bytes = max(math.prod(tensor.shape[1:][-1:]) * SIZES[tensor.dtype], 1)
        view = part.view
        if view is not None and view.is_transposed:
            column_bytes = max(tensor.shape[0] * SIZES[tensor.dtype], 1)
            step = self._whole_steps(self._block_bytes * _TRANSPOSED_BLOCKS // column_bytes)
            for start in range(0, rows, step):
                yield start, self._columns(tensor, view.start + start, view.start + min(start + step, rows), row_bytes)
            return
        step = self._whole_steps(self._block_bytes // row_bytes)
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            if view is None:
                yield start, tensor.read_rows(self._reader, start, stop)
            else:
                pieces = [tensor.read_rows(self._reader, *span) for span in view.ranges(start, stop)]
                yield start, pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _whole_steps(self, rows: int) -> int:
        return max(rows // self._row_step, 1) * self._row_step

    def _columns(self, tensor: SourceTensor, start: int, stop: int, row_bytes: int) -> NDArray[Any]:
        """Return columns [start, stop) of a source as rows; memory: those columns and one block."""
        rows = num_rows(tensor.shape)
        step = max(self._block_bytes // row_bytes, 1)
        whole: NDArray[Any] | None = None
        for first in range(0, rows, step):
            block = tensor.read_rows(self._reader, first, min(first + step, rows))
            if whole is None:
                whole = np.empty((stop - start, rows), dtype=block.dtype)
            whole[:, first : first + len(block)] = block[:, start:stop].T
        assert whole is not None, tensor.name
        return whole


def _require_finite(block: NDArray[Any], tensor: SourceTensor) -> float:
    """Return the largest absolute value of a block."""
    assert tensor.dtype in FLOATS, tensor.dtype
    pattern = magnitude_bits(block, tensor.dtype)
    if not is_finite(pattern, tensor.dtype):
        bad = int(np.count_nonzero(~np.isfinite(block.astype(np.float32))))
        raise TrtbuildError(
            f"{tensor.path}: tensor {tensor.name} holds {bad} values that are NaN or infinite",
            hint="the checkpoint is damaged; use another copy",
        )
    return value_of(pattern, block, tensor.dtype)
