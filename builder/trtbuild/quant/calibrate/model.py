"""Builds the transformers model of a source, reading one tensor at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from trtbuild.convert.plan import ConversionPlan
from trtbuild.rank_config import hf_config
from trtbuild.safetensors_file import TensorReader, num_rows


def load_source_model(plan: ConversionPlan, *, dtype: str) -> Any:
    """Return the model in evaluation mode.

    Args:
        plan: its source is read: exactly the tensors that the conversion uses.
        dtype: "float32", "float16" or "bfloat16".
    """
    from trtbuild.torch_model import empty_model, fill

    # The config as it is read back from what is written: one spelling, and as many layers as are converted.
    model = empty_model(hf_config(plan.config()), dtype)
    fill(model, _tensors(plan))
    return model


def _tensors(plan: ConversionPlan) -> Iterator[tuple[str, NDArray[Any]]]:
    names = dict.fromkeys(name for slot in plan.layout.slots for name in slot.sources)
    with TensorReader() as reader:
        for name in names:
            tensor = plan.source.tensors[name]
            yield name, tensor.read_rows(reader, 0, num_rows(tensor.shape)).reshape(tensor.shape)
