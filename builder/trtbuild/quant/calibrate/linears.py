"""The quantizable linears of a decoder layer: their names in the source, and where transformers keeps their weights."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtbuild.places import Place, place_of
from trtbuild.quant.recipes import SearchSettings

if TYPE_CHECKING:
    from trtbuild.convert.plan import ConversionPlan


@dataclass(frozen=True, slots=True)
class SourceLinear:
    """A linear of the source.

    Attributes:
        module: its Hugging Face name; several parts of a fused source are one linear.
        place: of its weight in the whole model.
    """

    module: str
    place: Place

    def weight(self, layer: Any, prefix: str) -> Any:
        """Return a view of its weight as [out, in].

        Args:
            layer: the decoder layer, filled.
            prefix: the layer's name in the whole model, with a dot.
        """
        from transformers.pytorch_utils import Conv1D

        name = self.place.parameter.removeprefix(prefix)
        parameter = layer.get_parameter(name)
        if isinstance(layer.get_submodule(name.rpartition(".")[0]), Conv1D):
            return parameter.T  # GPT-2 keeps [in, out]
        return parameter[self.place.index(tuple(parameter.shape))]


@dataclass(frozen=True, slots=True)
class LinearGroup:
    """Linears of a layer that share scales; all but the last linears of experts have one input.

    Attributes:
        search: how their recipes are found, None when only ranges are needed.
    """

    linears: tuple[SourceLinear, ...]
    search: SearchSettings | None


def has_own_inputs(group: LinearGroup) -> bool:
    """Say whether each linear of a group has an input of its own: the last linears of experts, which read what the expert itself made."""
    place = group.linears[0].place
    return place.expert is not None and place.half is None


def linear_groups(plan: ConversionPlan, layer: int) -> list[LinearGroup]:
    """Return the groups of a layer, in the order of the layout."""
    found: dict[str, dict[str, SourceLinear]] = defaultdict(dict)
    settings: dict[str, SearchSettings | None] = {}
    for slot in plan.layout.slots:
        if slot.layer != layer or not slot.rule.quantizable:
            continue
        group = slot.rule.scale_group or slot.module
        scheme = plan.layout.scheme_of(slot)
        settings[group] = scheme.search if scheme else None
        for part in slot.parts:
            found[group][part.module] = SourceLinear(part.module, place_of(part.source))
    return [LinearGroup(tuple(linears.values()), settings[group]) for group, linears in found.items()]
