"""What a quantization scheme must be able to say and do. Knows no model names and no files.

A scheme works on one linear at a time, in float32, whole or in row blocks: first the ranges of a scale group are found, then `scales`
turns them into the tensors that are stored beside the weight, then `encode` turns each block of rows into codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from trtbuild.names import QUANTIZATIONS
from trtbuild.quant.recipes import SearchSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Modules the loader must leave alone, written out whenever a scheme writes quantized tensors (checkpoint specification 1.4.2).
EXCLUDE_MODULES = (
    "*lm_head",
    "*router",
    "*vocab_embedding",
    "*position_embedding",
    "*block_embedding",
    "*shared_expert_gate",
)


@dataclass(frozen=True, slots=True)
class ScaleTensor:
    """A tensor stored beside a quantized weight: suffix, safetensors dtype and shape; the same on all ranks.

    Attributes:
        is_per_expert: whether a weight of stacked experts has one for each, along a leading axis.
    """

    suffix: str
    dtype: str
    shape: tuple[int, ...]
    is_per_expert: bool = True


class QuantScheme(Protocol):
    """A number format for the weights (and inputs) of linears.

    Attributes:
        name: what a user types.
        quant_algo: TensorRT-LLM's name, None when nothing is quantized.
        weight_dtype: safetensors dtype of the stored codes, None when the weight stays in the model's dtype.
        scale_tensors: what is stored beside each weight.
        needs_activations: whether input ranges must be calibrated.
        is_elementwise: whether a code depends on its own value and the scales alone, not on where the value is.
        search: how recipes are found on calibration data; None for schemes that need no more than ranges.
    """

    name: str
    quant_algo: str | None
    weight_dtype: str | None
    scale_tensors: tuple[ScaleTensor, ...]
    needs_activations: bool
    is_elementwise: bool
    search: SearchSettings | None

    def config(self) -> dict[str, Any]:
        """Return the entries of `quantization` in config.json besides the KV cache's."""
        ...

    def warnings(self, module: str, local_shape: tuple[int, ...]) -> list[str]:
        """Say what the kernels will not like about a rank's weight [out, in]."""
        ...

    def scales(self, *, weight_amax: float, input_amax: float | None) -> dict[str, NDArray[Any]]:
        """Return suffix -> tensor for the ranges of a scale group."""
        ...

    def encode(self, block: NDArray[Any], scales: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return the codes of some rows. block: [rows, in], float32."""
        ...

    def bound(self, block: NDArray[Any], scales: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return how far a decoded value may be from the original. block: [rows, in], float32, original; result of the same shape."""
        ...

    def decode(self, weight: NDArray[Any], scales: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return what a kernel multiplies with. weight: [out, in] as stored; result [out, in], float32."""
        ...


def load_scheme(name: str) -> QuantScheme:
    """Return the scheme of an available name (`spec.py` refuses the others)."""
    entry = QUANTIZATIONS[name]
    assert entry is not None, name
    module, _, attribute = entry.partition(":")
    scheme: QuantScheme = getattr(import_module(module), attribute)()
    return scheme


def scheme_of_algo(quant_algo: str | None) -> QuantScheme | None:
    """Return the scheme whose checkpoints say `quant_algo`, or None when no available scheme writes it."""
    schemes = (load_scheme(name) for name, entry in QUANTIZATIONS.items() if entry)
    return next((scheme for scheme in schemes if scheme.quant_algo == quant_algo), None)
