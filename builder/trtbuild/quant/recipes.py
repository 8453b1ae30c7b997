"""What calibration decided about single linears, beyond ranges: smoothing factors, clipped scales, codes. Kept in files, read as needed.

One safetensors file per decoder layer, so that an interrupted calibration goes on with the next layer and a conversion reads no more than
the linear it works on. Knows neither torch nor layouts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trtbuild.safetensors_file import TensorInfo, TensorReader, read_header

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FILE, _FILES = "recipes-layer-{layer:05}.safetensors", "recipes-layer-*.safetensors"


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
    def open(cls, folder: Path) -> Recipes:
        """Open the files of a folder; none when there is no such folder.

        Raises:
            TrtbuildError: a file is damaged.
        """
        found: dict[str, TensorInfo] = {}
        for file in sorted(folder.glob(_FILES)):
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


def file_of(folder: Path, layer: int) -> Path:
    """Return the file that holds the recipes of a layer."""
    return folder / _FILE.format(layer=layer)


def write_layer(folder: Path, layer: int, recipes: Mapping[str, Recipe]) -> None:
    """Write the recipes of a layer, atomically.

    Args:
        folder: where to.
        layer: its number.
        recipes: Hugging Face module ("model.layers.0.mlp.down_proj") -> recipe.
    """
    import numpy as np
    from safetensors.numpy import save

    from trtbuild.output import write_atomically

    # Strided arrays must be copied first: safetensors 0.8.0 writes wrong bytes for them.
    arrays = {
        f"{module}.{name}": np.ascontiguousarray(value)
        for module, recipe in sorted(recipes.items())
        for name in _FIELDS
        if (value := getattr(recipe, name)) is not None
    }
    write_atomically(file_of(folder, layer), save(arrays))
