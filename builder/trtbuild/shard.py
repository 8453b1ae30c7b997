"""How a tensor is cut over tensor-parallel ranks, and how the pieces make the whole again.

A target tensor may be the fusion of several parts (q, k and v). A `Shard` maps a part's full shape to the range of one axis that
a rank holds; a rank's tensor is its pieces of all parts, one below the other. Knows no names and no files.
Source of the rules: checkpoint specification 3.1 and 3.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from trtbuild.dims import ModelDims
from trtbuild.errors import TrtbuildError


@dataclass(frozen=True, slots=True)
class Cut:
    """A contiguous range of one axis: indices [start, stop) of the part, then `pad` zero indices.

    Attributes:
        axis: the axis that is cut (0 = rows).
        stop: exclusive; equals start when this rank holds padding only.
        pad: zero rows appended so that all ranks have equal shapes.
    """

    axis: int
    start: int
    stop: int
    pad: int = 0

    @property
    def size(self) -> int:
        """Length of the axis on the rank."""
        return self.stop - self.start + self.pad


class Shard(Protocol):
    """A rule for one target tensor."""

    def cut(self, part: int, shape: tuple[int, ...], dims: ModelDims, tp_size: int, tp_rank: int) -> Cut:
        """Return what `tp_rank` holds of part number `part`, whose full shape is `shape`."""
        ...


@dataclass(frozen=True, slots=True)
class Replicate:
    """Every rank holds the whole tensor."""

    def cut(self, part: int, shape: tuple[int, ...], dims: ModelDims, tp_size: int, tp_rank: int) -> Cut:
        """Return the whole of axis 0."""
        return Cut(0, 0, shape[0])


@dataclass(frozen=True, slots=True)
class Split:
    """Equal consecutive pieces along one axis. [out, in]: axis 0 is column-parallel, axis 1 row-parallel."""

    axis: int

    def cut(self, part: int, shape: tuple[int, ...], dims: ModelDims, tp_size: int, tp_rank: int) -> Cut:
        """Return piece number tp_rank.

        Raises:
            TrtbuildError: the axis does not divide.
        """
        size, rest = divmod(shape[self.axis], tp_size)
        if rest:
            raise TrtbuildError(
                f"axis {self.axis} of shape {list(shape)} cannot be split over tp={tp_size}", hint="use another --tp"
            )
        return Cut(self.axis, tp_rank * size, (tp_rank + 1) * size)


@dataclass(frozen=True, slots=True)
class SplitVocab:
    """Rows, zero-padded to a multiple of tp_size: ceil(rows / tp_size) on every rank."""

    def cut(self, part: int, shape: tuple[int, ...], dims: ModelDims, tp_size: int, tp_rank: int) -> Cut:
        """Return the rank's rows; the last ranks may hold zero rows of padding."""
        size = -(-shape[0] // tp_size)
        start, stop = min(tp_rank * size, shape[0]), min((tp_rank + 1) * size, shape[0])
        return Cut(0, start, stop, size - (stop - start))


@dataclass(frozen=True, slots=True)
class SplitQKV:
    """Parts q, k, v: each by heads, then one below the other.

    With num_kv_heads < tp_size every kv head is held by tp_size / num_kv_heads consecutive ranks.
    """

    def cut(self, part: int, shape: tuple[int, ...], dims: ModelDims, tp_size: int, tp_rank: int) -> Cut:
        """Return the rows of the rank's heads."""
        heads = dims.num_attention_heads if part == 0 else dims.num_kv_heads
        local = max(heads // tp_size, 1)
        first = tp_rank * heads // tp_size
        return Cut(0, first * dims.head_dim, (first + local) * dims.head_dim)


def local_shape(
    shard: Shard, shapes: tuple[tuple[int, ...], ...], dims: ModelDims, tp_size: int, tp_rank: int
) -> tuple[int, ...]:
    """Return the shape of a rank's tensor: its pieces of all parts, stacked along axis 0."""
    pieces = []
    for part, shape in enumerate(shapes):
        cut = shard.cut(part, shape, dims, tp_size, tp_rank)
        pieces.append(shape[: cut.axis] + (cut.size,) + shape[cut.axis + 1 :])
    rows = sum(piece[0] for piece in pieces)
    return (rows, *pieces[0][1:])
