"""What calibration decided about single linears, beyond ranges: smoothing factors, clipped scales, codes. Kept in files, read as needed.

One safetensors file per linear, written as soon as it is known; an interrupted calibration goes on with the next layer, and a conversion
reads no more than the rows it works on. Knows neither torch nor layouts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trtbuild.safetensors_file import TensorInfo, TensorReader, read_header

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FILE = "recipes-layer-{layer:05}-{module}.safetensors"


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """How the numbers of a recipe are found.

    Attributes:
        kind: "awq", "gptq" or "smooth" (SmoothQuant): a name of `quant/search`.
        group_size: inputs that share a weight scale; 0 for one scale per output channel.
        alpha: exponent of SmoothQuant; not used by the others.
        act_order: GPTQ rounds the columns of large inputs first.
        is_divisor: SmoothQuant's kernel divides inputs: the reciprocal of the multiplier is a value of the model's dtype, not the multiplier.
        is_per_tensor: weights of 8 bits have one scale instead of one per output channel; read where a search feeds on quantized layers.
    """

    kind: str
    group_size: int = 0
    alpha: float = 0.5
    act_order: bool = False
    is_divisor: bool = False
    is_per_tensor: bool = False


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one linear is to be quantized; rows are those of the Hugging Face weight seen as [out, in].

    Attributes:
        pre_quant_scale: [in] float32, a value of the model's dtype or the reciprocal of one: the kernel multiplies inputs by it, and the
            weight is divided by it before it is rounded. Equal for all linears of a scale group (for experts: of all experts of the layer).
        weight_scale: [out, in / group_size] or [out] float32, real = code * scale; None: amax / largest code of the divided weight.
        codes: [out, in] int8, already rounded; None: the nearest code.
        input_amax: [1] float32, range of the smoothed input; None: that of the observed input times the multiplier.
    """

    pre_quant_scale: NDArray[Any] | None = None
    weight_scale: NDArray[Any] | None = None
    codes: NDArray[Any] | None = None
    input_amax: NDArray[Any] | None = None


_FIELDS = ("pre_quant_scale", "weight_scale", "codes", "input_amax")


class RecipeBook(Protocol):
    """Where recipes are looked up."""

    def has(self, module: str, field: str) -> bool:
        """Say whether a field of a recipe is known."""
        ...

    def rows(self, module: str, field: str, spans: Iterable[tuple[int, int]], reader: TensorReader) -> NDArray[Any]:
        """Return rows [start, stop) of each span of a field, one below the other."""
        ...

    def of_group(self, modules: Sequence[str], reader: TensorReader) -> NDArray[Any] | None:
        """Return the input multiplier that the linears of a scale group share, [in] float32; None for ones."""
        ...


@dataclass(frozen=True)
class Recipes:
    """The recipes of a model.

    Attributes:
        tensors: "<Hugging Face module>.<field of Recipe>" -> where it lies.
    """

    tensors: Mapping[str, TensorInfo] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, layer: int | None = None) -> Recipes:
        """Open the files of a folder, of one layer or of all; none when there is no such folder.

        Raises:
            TrtbuildError: a file is damaged.
        """
        found: dict[str, TensorInfo] = {}
        for file in sorted(folder.glob(recipe_pattern(layer))):
            found.update(read_header(file))
        return cls(found)

    def has(self, module: str, field: str) -> bool:
        """Say whether a field of a recipe is known."""
        return f"{module}.{field}" in self.tensors

    def rows(self, module: str, field: str, spans: Iterable[tuple[int, int]], reader: TensorReader) -> NDArray[Any]:
        """Return some rows of a field of a recipe, as it was written."""
        import numpy as np

        info = self.tensors[f"{module}.{field}"]
        pieces = [reader.read_rows(info, *span) for span in spans]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def of_group(self, modules: Sequence[str], reader: TensorReader) -> NDArray[Any] | None:
        """Return the input multiplier that the linears of a scale group share, [in] float32; None for ones."""
        info = self.tensors.get(f"{modules[0]}.pre_quant_scale")
        return reader.read(info) if info else None


def recipe_pattern(layer: int | None = None) -> str:
    """Return what matches the names of the files that hold the recipes of a layer, or of all."""
    return f"recipes-layer-{'*' if layer is None else f'{layer:05}'}-*.safetensors"


def write_recipes(folder: Path, layer: int, recipes: Iterable[tuple[str, Recipe]]) -> None:
    """Write recipes of a layer, each as it comes, atomically. Memory: that of one recipe, once.

    Args:
        folder: where to.
        layer: its number.
        recipes: Hugging Face module ("model.layers.0.mlp.down_proj") and recipe.
    """
    import numpy as np

    from trtbuild.output import write_atomically
    from trtbuild.safetensors_file import encoded

    for module, recipe in recipes:
        arrays = {
            f"{module}.{name}": np.ascontiguousarray(value)
            for name in _FIELDS
            if (value := getattr(recipe, name)) is not None
        }
        write_atomically(folder / _FILE.format(layer=layer, module=module), encoded(arrays))
