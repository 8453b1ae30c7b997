"""How recipes are found on calibration data: a table of methods by the names of `SearchSettings.kind`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from trtbuild.quant.recipes import Recipe
    from trtbuild.quant.search.group import ScaleGroup

#: Which layer's output feeds the next layer while a model is calibrated: the original one's, or the quantized one's.
Feed = Literal["original", "quantized"]


@dataclass(frozen=True, slots=True)
class Search:
    """A method.

    Attributes:
        entry: "module:function" of what makes recipes.
        needs_moments: whether it needs means and second moments of the inputs, besides their ranges.
    """

    entry: str
    needs_moments: bool

    def run(self, group: ScaleGroup) -> Iterator[tuple[str, Recipe]]:
        """Yield Hugging Face module and recipe of all linears of a scale group, one after the other; the second moments are used up."""
        module, _, attribute = self.entry.partition(":")
        function: Callable[[ScaleGroup], Iterator[tuple[str, Recipe]]] = getattr(import_module(module), attribute)
        return function(group)


SEARCHES: dict[str, Search] = {
    "awq": Search("trtbuild.quant.search.awq:search", needs_moments=True),
    "gptq": Search("trtbuild.quant.search.gptq:search", needs_moments=True),
    "smooth": Search("trtbuild.quant.search.smooth:search", needs_moments=False),
}
