"""INT4 weights of a quantized folder kept as they are: their scales are used again, so that encoding gives the same codes.

Only what the INT4 form of TensorRT-LLM can hold: symmetric codes, groups of neighbouring inputs (checkpoint specification 2.9 and 2.11).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtbuild.errors import UsageError
from trtbuild.names import GROUP_SIZES
from trtbuild.quant.sources.column_major import ColumnMajorWeight
from trtbuild.quant.sources.result import QuantizedSource
from trtbuild.quant.sources.row_major import RowMajorWeight
from trtbuild.safetensors_file import TensorReader

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Algorithm of a reader whose weights may be kept -> what to tell the user.
NOTES: dict[str, str] = {
    "W4A16_AWQ": "",
    "W4A16": "unverified: compressed-tensors codes and scales in the form of an AWQ checkpoint, input multipliers one",
    "W4A16_GPTQ": "unverified: GPTQ codes and scales in the form of an AWQ checkpoint, input multipliers one",
}
_WAY_OUT = "add --dequantize to quantize the dequantized weights again, or use the unquantized model"


@dataclass(frozen=True, slots=True)
class KeptRecipes:
    """Recipes (`quant/recipes.py`) that give back the codes of a quantized folder.

    Attributes:
        weights: module -> its weight.
    """

    weights: Mapping[str, RowMajorWeight | ColumnMajorWeight]

    def has(self, module: str, field: str) -> bool:
        """Say whether a field of a recipe is known."""
        return field == "weight_scale" and module in self.weights

    def rows(self, module: str, field: str, spans: Iterable[tuple[int, int]], reader: TensorReader) -> NDArray[Any]:
        """Return the scales of some rows, float32 [rows, groups]."""
        import numpy as np

        scales = np.concatenate([self.weights[module].group_scales(reader, *span) for span in spans])
        return np.where(scales > 0, scales, np.float32(1))  # a zero is read over zero codes only

    def of_group(self, modules: Sequence[str], reader: TensorReader) -> NDArray[Any] | None:
        """Return the multiplier of the input that some linears share, [in] float32; None for ones."""
        import numpy as np

        info = getattr(self.weights.get(modules[0]), "pre_quant_scale", None)
        return reader.read(info).astype(np.float32) if info else None


def keep_int4(found: QuantizedSource) -> KeptRecipes:
    """Return recipes that keep the weights of a folder; reads zero points and group indices, no codes.

    Raises:
        UsageError: they cannot be kept; the message says why.
    """
    where = found.source.path
    if found.group_size not in GROUP_SIZES:
        raise UsageError(
            f"{where} has groups of {found.group_size}; the kernels know {' and '.join(map(str, GROUP_SIZES))}",
            hint=_WAY_OUT,
        )
    weights = {
        name.removesuffix(".weight"): tensor
        for name, tensor in found.source.tensors.items()
        if isinstance(tensor, RowMajorWeight | ColumnMajorWeight)
    }
    with TensorReader() as reader:
        for module, weight in weights.items():
            if problem := weight.why_not_kept(reader):
                raise UsageError(f"{where}: {module} cannot be kept: {problem}", hint=_WAY_OUT)
    return KeptRecipes(weights)
