"""How a model is cut over ranks: sizes, rank numbers, layer ranges, and which sizes fit a model.

Rank arithmetic: tensorrt_llm/mapping.py (checkpoint specification 1.3): rank = pp_rank * tp_size + tp_rank. Layer ranges as
`tensor_split` (3.4): the first `num_layers mod pp_size` stages hold one layer more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trtbuild.dims import ModelDims
from trtbuild.errors import UsageError

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
    """Tensor, pipeline and expert parallel sizes.

    Attributes:
        moe_ep_size: over how many groups of ranks the experts of a layer are dealt out; divides tp_size.
        vocab_embedding: whether the embedding is cut over the vocabulary instead of kept whole on every rank.
        hidden_embedding: whether it is cut over the hidden size instead; not both.
        vocab_multiple: embedding and head get zero rows up to a multiple of it, before they are cut.
    """

    tp_size: int = 1
    pp_size: int = 1
    moe_ep_size: int = 1
    vocab_embedding: bool = False
    hidden_embedding: bool = False
    vocab_multiple: int = 1

    def __post_init__(self) -> None:
        for name in ("tp_size", "pp_size", "moe_ep_size"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}={getattr(self, name)} is not a positive number", hint="use 1 or more")

    @property
    def moe_tp_size(self) -> int:
        """Over how many ranks each expert is cut."""
        return self.tp_size // self.moe_ep_size

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.tp_size * self.pp_size

    def padded_vocab(self, vocab_size: int) -> int:
        """Return the rows of embedding and head together with the padding that does not come from cutting."""
        return -(-vocab_size // self.vocab_multiple) * self.vocab_multiple

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

    def check_experts(self) -> None:
        """Raise UsageError unless experts can be dealt out among the tensor-parallel ranks."""
        if self.tp_size % self.moe_ep_size:
            raise UsageError(
                f"moe_ep_size={self.moe_ep_size} does not divide tp_size={self.tp_size}",
                hint="experts are dealt out among the tensor-parallel ranks: tp_size = moe_tp_size * moe_ep_size",
            )

    def check(self, dims: ModelDims) -> None:
        """Raise UsageError, with the sizes that would work, unless the model can be cut this way."""
        if self.moe_ep_size > 1 and not dims.num_experts:
            raise UsageError(f"moe_ep_size={self.moe_ep_size}: {dims.architecture} has no experts", hint="use --ep 1")
        self.check_experts()
        rules = _rules(dims, self.moe_ep_size)
        broken = [
            text.format(tp=self.tp_size, moe_tp=self.moe_tp_size) for text, holds in rules if not holds(self.tp_size)
        ]
        if broken:
            valid = [
                tp
                for tp in range(1, min(dims.num_attention_heads, _MOST_LISTED) + 1)
                if tp % self.moe_ep_size == 0 and all(holds(tp) for _, holds in rules)
            ]
            with_ep = f" with ep={self.moe_ep_size}" if self.moe_ep_size > 1 else ""
            raise UsageError(
                "; ".join(broken),
                hint=f"valid tp sizes for this model{with_ep}: {', '.join(map(str, valid)) or 'none'}",
            )
        if self.pp_size > dims.num_layers:
            raise UsageError(
                f"num_layers={dims.num_layers} cannot fill pp={self.pp_size} stages",
                hint=f"use --pp {dims.num_layers} at most",
            )


def _rules(dims: ModelDims, moe_ep: int) -> tuple[tuple[str, Callable[[int], bool]], ...]:
    """Return (message, predicate of tp) of everything that must divide."""
    heads, kv_heads, experts = dims.num_attention_heads, dims.num_kv_heads, dims.num_experts
    rules: list[tuple[str, Callable[[int], bool]]] = [
        (f"num_attention_heads={heads} cannot be split over tp={{tp}}", lambda tp: heads % tp == 0),
        (
            f"num_kv_heads={kv_heads} cannot be split over tp={{tp}} (tp must divide {kv_heads}, or {kv_heads} divide tp)",
            lambda tp: kv_heads % tp == 0 or tp % kv_heads == 0,
        ),
    ]
    widths = {"intermediate_size": 0 if experts else dims.intermediate_size}
    widths["shared_expert_intermediate_size"] = dims.shared_expert_intermediate_size
    for name, width in widths.items():
        if width:
            rules.append((f"{name}={width} cannot be split over tp={{tp}}", lambda tp, width=width: width % tp == 0))  # type: ignore[misc]  # the default binds this turn's width
    if experts:
        width = dims.moe_intermediate_size
        rules.append((f"num_experts={experts} cannot be split over ep={moe_ep}", lambda tp: experts % moe_ep == 0))
        rules.append(
            (
                f"moe_intermediate_size={width} cannot be split over moe_tp={{moe_tp}}",
                lambda tp: width % (tp // moe_ep or 1) == 0,
            )
        )
    return tuple(rules)
