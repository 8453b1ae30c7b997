"""Do the ranks of a stage hold the same, where each holds the whole? A reader takes one of them, a server runs on all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from trtbuild.checkpoint import Checkpoint
from trtbuild.errors import CheckFailed
from trtbuild.parallel import Rank
from trtbuild.safetensors_file import TensorReader

#: Of the tensors that differ, the message lists so many.
_LISTED = 5


def require_agreement(checkpoint: Checkpoint) -> None:
    """Compare what every tensor-parallel rank holds a copy of: norms, scales of whole tensors, an embedding that is not cut.

    Memory: a block of one tensor at a time.

    Raises:
        CheckFailed: a copy differs from that of the first rank of its stage.
    """
    with TensorReader() as reader:
        different = [
            f"{name} of rank {rank.index}"
            for rank, name in _copies(checkpoint)
            if reader.digest(checkpoint.tensors[rank.index][name])
            != reader.digest(checkpoint.tensors[rank.index - rank.tp_rank][name])
        ]
    if different:
        more = f" and {len(different) - _LISTED} more" if len(different) > _LISTED else ""
        raise CheckFailed(
            f"{checkpoint.path}: ranks of one stage hold different copies: {', '.join(different[:_LISTED])}{more}",
            hint="the rank files are damaged or from different conversions; convert the model again",
        )


def _copies(checkpoint: Checkpoint) -> Iterator[tuple[Rank, str]]:
    """Yield (rank, tensor) for every copy but the first: tensors whose shape is that of an uncut model."""
    layout = checkpoint.layout
    uncut = replace(layout, parallel=replace(layout.parallel, tp_size=1, moe_ep_size=1))
    shapes = [{each.name: each.shape for each in uncut.tensors(stage)} for stage in uncut.parallel.ranks()]
    for rank in layout.parallel.ranks():
        for tensor in layout.tensors(rank) if rank.tp_rank else ():
            if shapes[rank.pp_rank].get(tensor.name) == tensor.shape:
                yield rank, tensor.name
