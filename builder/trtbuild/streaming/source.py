"""The tensors of a conversion's source, layer by layer."""

from __future__ import annotations

from collections.abc import Generator
from math import prod
from typing import TYPE_CHECKING, Any

from trtbuild.dtypes import SIZES
from trtbuild.rank_config import hf_config
from trtbuild.safetensors_file import SourceTensor, TensorInfo, TensorReader, num_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedModel

    from trtbuild.convert.plan import ConversionPlan
    from trtbuild.streaming.model import LayerModel, Tensors
    from trtbuild.torch_model import Values


class _Stored:
    """A tensor of the source along its first axis."""

    def __init__(self, tensor: SourceTensor, reader: TensorReader) -> None:
        self._tensor, self._reader = tensor, reader
        self.shape = tensor.shape
        self.nbytes = prod(tensor.shape) * SIZES[tensor.dtype]
        self._rows = num_rows(tensor.shape) // max(len(self), 1)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        start, stop, _ = rows.indices(len(self))
        found = self._tensor.read_rows(self._reader, start * self._rows, stop * self._rows)
        return found.reshape(stop - start, *self.shape[1:])


def source_tensors(plan: ConversionPlan) -> Tensors:
    """Return what yields the tensors of a layer, or (None) those outside of layers: exactly those that the conversion uses.

    What lies in a file as it is comes as `RowArray`: no more is in memory than is asked for. A tensor that is computed comes whole, one at
    a time, in the dtype of the source.
    """
    names: dict[int, dict[str, None]] = {}
    for slot in plan.layout.slots:
        names.setdefault(slot.layer, {}).update(dict.fromkeys(slot.sources))

    def tensors(layer: int | None) -> Generator[tuple[str, Values], None, None]:
        with TensorReader() as reader:
            for name in names.get(-1 if layer is None else layer, ()):
                tensor = plan.source.tensors[name]
                stored = _Stored(tensor, reader)
                yield name, stored if isinstance(tensor, TensorInfo) else stored[0 : len(stored)]

    return tensors


def whole_source_model(plan: ConversionPlan, *, dtype: str) -> PreTrainedModel:
    """Return the source of a conversion as a model that is in memory as a whole; see `source_model`."""
    from trtbuild.torch_model import empty_model, fill

    model, tensors = empty_model(hf_config(plan.config()), dtype), source_tensors(plan)
    fill(model, (each for layer in (None, *range(plan.dims.num_layers)) for each in tensors(layer)))
    return model


def source_model(plan: ConversionPlan, *, dtype: str, device: str = "cpu") -> LayerModel:
    """Return the source of a conversion as a model that runs layer by layer.

    Args:
        plan: its source is read.
        dtype: "float32", "float16" or "bfloat16".
        device: "cpu" or "cuda".
    """
    from trtbuild.streaming.model import LayerModel

    # The config as it is read back from what is written: one spelling, and as many layers as are converted.
    return LayerModel(hf_config(plan.config()), source_tensors(plan), dtype=dtype, device=device)
