"""How a model is cut over ranks: sizes, rank numbers, layer ranges, and which sizes fit a model.

Rank arithmetic: tensorrt_llm/mapping.py (checkpoint specification 1.3): rank = pp_rank * tp_size + tp_rank. Layer ranges as
`tensor_split` (3.4): the first `num_layers mod pp_size` stages hold one layer more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trtbuild.dims import ModelDims
from trtbuild.errors import TrtbuildError, UsageError

#: Sizes beyond this are not listed as alternatives.
_MOST_LISTED = 1024


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank file: its number, its tensor-parallel slice and its pipeline stage."""

    index: int
    tp_rank: int
    pp_rank: int


@dataclass(frozen=True, slots=True)
class Parallel:
    """Tensor and pipeline parallel sizes.

    Attributes:
        vocab_embedding: whether the embedding is cut over the vocabulary instead of kept whole on every rank.
    """

    tp_size: int = 1
    pp_size: int = 1
    vocab_embedding: bool = False

    def __post_init__(self) -> None:
        for name in ("tp_size", "pp_size"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}={getattr(self, name)} is not a positive number", hint="use 1 or more")

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.tp_size * self.pp_size

    def ranks(self) -> Iterator[Rank]:
        """Yield all ranks in file order."""
        for index in range(self.world_size):
            yield Rank(index, index % self.tp_size, index // self.tp_size)

    def layers(self, num_layers: int, pp_rank: int) -> range:
        """Return the global numbers of the layers of a stage."""
        base, extra = divmod(num_layers, self.pp_size)
        start = pp_rank * base + min(pp_rank, extra)
        return range(start, start + base + (pp_rank < extra))

    def stage_of(self, num_layers: int, layer: int) -> int:
        """Return the stage that holds a global layer number."""
        return next(stage for stage in range(self.pp_size) if layer in self.layers(num_layers, stage))

    def check(self, dims: ModelDims) -> None:
        """Raise TrtbuildError, with the sizes that would work, unless the model can be cut this way."""
        rules = _rules(dims)
        broken = [text.format(tp=self.tp_size) for text, holds in rules if not holds(self.tp_size)]
        if broken:
            valid = [
                tp
                for tp in range(1, min(dims.num_attention_heads, _MOST_LISTED) + 1)
                if all(holds(tp) for _, holds in rules)
            ]
            raise TrtbuildError("; ".join(broken), hint=f"valid tp sizes for this model: {', '.join(map(str, valid))}")
        if self.pp_size > dims.num_layers:
            raise TrtbuildError(
                f"num_layers={dims.num_layers} cannot fill pp={self.pp_size} stages",
                hint=f"use --pp {dims.num_layers} at most",
            )


def _rules(dims: ModelDims):  # type: ignore[no-untyped-def]  # a table of (message, predicate), typed by its one user
    heads, kv_heads, width = dims.num_attention_heads, dims.num_kv_heads, dims.intermediate_size
    return (
        (f"num_attention_heads={heads} cannot be split over tp={{tp}}", lambda tp: heads % tp == 0),
        (
            f"num_kv_heads={kv_heads} cannot be split over tp={{tp}} (tp must divide {kv_heads}, or {kv_heads} divide tp)",
            lambda tp: kv_heads % tp == 0 or tp % kv_heads == 0,
        ),
        (f"intermediate_size={width} cannot be split over tp={{tp}}", lambda tp: width % tp == 0),
    )
