"""How a tensor is cut over tensor-parallel ranks, and how the pieces make the whole again.

A target tensor may be the fusion of several parts (q, k and v). A `Shard` maps a part's full shape to the range of one axis that
a rank holds; a rank's tensor is its pieces of all parts, one below the other. Knows no names and no files.
Source of the rules: checkpoint specification 3.1 and 3.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from trtbuild.dims import ModelDims
from trtbuild.errors import UsageError
from trtbuild.parallel import Parallel


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

    def rows(self, shape: tuple[int, ...]) -> int:
        """Return how many rows of the rank's tensor come from a part of this full shape."""
        return shape[0] if self.axis else self.size


#: What a rank holds of a part that belongs to other ranks altogether.
NOTHING = Cut(0, 0, 0)


class Shard(Protocol):
    """A rule for one target tensor."""

    def cut(self, part: int, shape: tuple[int, ...], dims: ModelDims, parallel: Parallel, tp_rank: int) -> Cut:
        """Return what `tp_rank` holds of part number `part`, whose full shape is `shape`."""
        ...


@dataclass(frozen=True, slots=True)
class Replicate:
    """Every rank holds the whole tensor."""

    def cut(self, part: int, shape: tuple[int, ...], dims: ModelDims, parallel: Parallel, tp_rank: int) -> Cut:
        """Return the whole of axis 0."""
        return Cut(0, 0, shape[0])


@dataclass(frozen=True, slots=True)
class Split:
    """Equal consecutive pieces along one axis. [out, in]: axis 0 is column-parallel, axis 1 row-parallel."""

    axis: int

    def cut(self, part: int, shape: tuple[int, ...], dims: ModelDims, parallel: Parallel, tp_rank: int) -> Cut:
        """Return piece number tp_rank.

        Raises:
            UsageError: the axis does not divide.
        """
        return _even(self.axis, shape, parallel.tp_size, tp_rank, "tp")


@dataclass(frozen=True, slots=True)
class WholeVocab:
    """Every rank holds all rows, zero-padded to a multiple of `vocab_multiple`."""

    def cut(self, part: int, shape: tuple[int, ...], dims: ModelDims, parallel: Parallel, tp_rank: int) -> Cut:
        """Return the whole of axis 0 and its padding."""
        return Cut(0, 0, shape[0], parallel.padded_vocab(shape[0]) - shape[0])


@dataclass(frozen=True, slots=True)
class SplitVocab:
    """Rows, zero-padded to a multiple of `vocab_multiple` and of tp_size: ceil(rows / tp_size) on every rank."""

    def cut(self, part: int, shape: tuple[int, ...], dims: ModelDims, parallel: Parallel, tp_rank: int) -> Cut:
        """Return the rank's rows; the last ranks may hold zero rows of padding."""
        size = -(-parallel.padded_vocab(shape[0]) // parallel.tp_size)
        start, stop = min(tp_rank * size, shape[0]), min((tp_rank + 1) * size, shape[0])
        return Cut(0, start, stop, size - (stop - start))


@dataclass(frozen=True, slots=True)
class SplitQKV:
    """Parts q, k, v: each by heads, then one below the other.

    With num_kv_heads < tp_size every kv head is held by tp_size / num_kv_heads consecutive ranks.
    """

    def cut(self, part: int, shape: tuple[int, ...], dims: ModelDims, parallel: Parallel, tp_rank: int) -> Cut:
        """Return the rows of the rank's heads."""
        heads = dims.num_attention_heads if part == 0 else dims.num_kv_heads
        local = max(heads // parallel.tp_size, 1)
        first = tp_rank * heads // parallel.tp_size
        return Cut(0, first * dims.head_dim, (first + local) * dims.head_dim)


@dataclass(frozen=True, slots=True)
class SplitExperts:
    """Parts of expert 0, of expert 1, ...: whole experts by expert parallelism, each cut by MoE tensor parallelism.

    Source: checkpoint specification 1.3 and 3.5: moe_ep_rank = tp_rank mod moe_ep, moe_tp_rank = tp_rank div moe_ep, and a rank
    owns consecutive experts.

    Attributes:
        axis: the axis of a part that MoE tensor parallelism cuts.
        parts_per_expert: how many consecutive parts belong to one expert.
    """

    axis: int
    parts_per_expert: int

    def cut(self, part: int, shape: tuple[int, ...], dims: ModelDims, parallel: Parallel, tp_rank: int) -> Cut:
        """Return the rank's slice of an expert it owns, nothing of the others.

        Raises:
            UsageError: the axis does not divide.
        """
        moe_tp_rank, moe_ep_rank = divmod(tp_rank, parallel.moe_ep_size)
        local = dims.num_experts // parallel.moe_ep_size
        if part // self.parts_per_expert // local != moe_ep_rank:
            return NOTHING
        return _even(self.axis, shape, parallel.moe_tp_size, moe_tp_rank, "moe_tp")


def _even(axis: int, shape: tuple[int, ...], count: int, index: int, what: str) -> Cut:
    size, rest = divmod(shape[axis], count)
    if rest:
        raise UsageError(
            f"axis {axis} of shape {list(shape)} cannot be split over {what}={count}", hint="use another --tp"
        )
    return Cut(axis, index * size, (index + 1) * size)
