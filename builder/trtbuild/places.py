"""Where a Hugging Face tensor goes in the transformers model: some models keep several tensors in one parameter.

Checkpoints keep one tensor per expert and old names; transformers 5 models stack experts and rename a few modules
(transformers/conversion_mapping.py). Knows names only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """A part of a parameter.

    Attributes:
        parameter: its name in the model.
        expert: index of the leading axis, None for a parameter without experts.
        half: which half of the rows, None for all of them.
    """

    parameter: str
    expert: int | None = None
    half: int | None = None

    def index(self, shape: tuple[int, ...]) -> tuple[int | slice, ...]:
        """Return the index into a parameter of this shape."""
        if self.expert is None:
            return ()
        if self.half is None:
            return (self.expert,)
        rows = shape[1] // 2
        return self.expert, slice(self.half * rows, (self.half + 1) * rows)


_EXPERT = re.compile(r"^(?P<layer>.*)\.(?:block_sparse_moe|mlp)\.experts\.(?P<expert>\d+)\.(?P<linear>\w+)\.weight$")
#: Linear of an expert -> parameter of the stacked experts, and which half of its rows.
_LINEARS: dict[str, tuple[str, int | None]] = {
    "w1": ("gate_up_proj", 0), "gate_proj": ("gate_up_proj", 0),
    "w3": ("gate_up_proj", 1), "up_proj": ("gate_up_proj", 1),
    "w2": ("down_proj", None), "down_proj": ("down_proj", None),
}  # fmt: skip
_RENAMED = ((".block_sparse_moe.", ".mlp."), ("embed_out.", "lm_head."))


def place_of(name: str) -> Place:
    """Return where the tensor of a checkpoint goes."""
    if found := _EXPERT.match(name):
        parameter, half = _LINEARS[found["linear"]]
        return Place(f"{found['layer']}.mlp.experts.{parameter}", int(found["expert"]), half)
    for old, new in _RENAMED:
        name = name.replace(old, new)
    return Place(name)
