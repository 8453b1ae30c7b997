"""The tensors of a conversion's source, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trtbuild.rank_config import hf_config
from trtbuild.safetensors_file import TensorReader, num_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedModel

    from trtbuild.convert.plan import ConversionPlan
    from trtbuild.streaming.model import LayerModel, Tensors


def source_tensors(plan: ConversionPlan) -> Tensors:
    """Return what yields the tensors of a layer, or (None) those outside of layers: exactly those that the conversion uses.

    One tensor at a time is in memory, whole, in the dtype of the source.
    """
    names: dict[int, dict[str, None]] = {}
    for slot in plan.layout.slots:
        names.setdefault(slot.layer, {}).update(dict.fromkeys(slot.sources))

    def tensors(layer: int | None) -> Iterator[tuple[str, NDArray[Any]]]:
        with TensorReader() as reader:
            for name in names.get(-1 if layer is None else layer, ()):
                tensor = plan.source.tensors[name]
                yield name, tensor.read_rows(reader, 0, num_rows(tensor.shape)).reshape(tensor.shape)

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
