"""A checkpoint folder and its source as models that run layer by layer, the checkpoint's rounding of inputs and KV cache included.

The only module here that knows what a checkpoint reader offers.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trtbuild.checkpoint import Checkpoint
from trtbuild.quant.inputs import InputRounding
from trtbuild.reference.simulate import round_kv_cache, round_linear_inputs
from trtbuild.streaming.model import LayerModel, Tensors
from trtbuild.unified_checkpoint import UnifiedCheckpoint

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor, nn

#: What the attention of a layer is called in the models of transformers.
_ATTENTION = ("self_attn", "attn", "attention", "self_attention")


def checkpoint_tensors(checkpoint: Checkpoint | UnifiedCheckpoint) -> Tensors:
    """Return what yields the tensors of one layer, decoded, or (None) those outside of layers; memory: one of them at a time."""

    def tensors(layer: int | None) -> Generator[tuple[str, NDArray[Any]], None, None]:
        yield from _only(checkpoint, -1 if layer is None else layer).hf_tensors()

    return tensors


def _only(checkpoint: Checkpoint | UnifiedCheckpoint, layer: int) -> Checkpoint | UnifiedCheckpoint:
    """Return the checkpoint with a layout that lists nothing but the tensors of a layer; -1 for those outside of layers."""
    if isinstance(checkpoint, Checkpoint):
        layout = copy.copy(checkpoint.layout)
        layout.__dict__["slots"] = tuple(slot for slot in layout.slots if slot.layer == layer)
        return replace(checkpoint, layout=layout)
    unified = copy.copy(checkpoint.unified)
    found = {place: weights for place, weights in unified.by_slot.items() if place[0] == layer}
    unified.__dict__["weights"] = tuple(weight for weights in found.values() for weight in weights)
    return replace(checkpoint, unified=unified)


class QuantizedModel:
    """A checkpoint as a model that runs layer by layer, with the scheme's arithmetic simulated as the reference target does."""

    def __init__(self, checkpoint: Checkpoint | UnifiedCheckpoint, *, dtype: str, device: str) -> None:
        self._model = LayerModel(checkpoint.hf_config(), checkpoint_tensors(checkpoint), dtype=dtype, device=device)
        self._rounding = Rounding.of(checkpoint)

    def embed(self, rows: Sequence[tuple[int, ...]]) -> Iterator[Tensor]:
        """See `LayerModel.embed`."""
        return self._model.embed(rows)

    @contextmanager
    def layer(self, index: int) -> Iterator[nn.Module]:
        """See `LayerModel.layer`; a layer can be entered once, since its rounding stays in place."""
        with self._model.layer(index) as module:
            self._rounding.apply(module, self._model.layer_name(index), index)
            yield module

    def run(self, index: int, hidden: Tensor) -> Tensor:
        """See `LayerModel.run`."""
        return self._model.run(index, hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """See `LayerModel.logits`."""
        return self._model.logits(hidden)


@dataclass(frozen=True, slots=True)
class Rounding:
    """What the kernels round while the model runs.

    Attributes:
        inputs: Hugging Face module -> how its input is rounded.
        kv_cache_quant_algo: None when the cache keeps the model's dtype.
        kv_scales: one per layer.
    """

    inputs: Mapping[str, InputRounding]
    kv_cache_quant_algo: str | None
    kv_scales: tuple[float, ...]

    @classmethod
    def of(cls, checkpoint: Checkpoint | UnifiedCheckpoint) -> Rounding:
        """Return what a checkpoint asks for."""
        return cls(checkpoint.input_roundings(), checkpoint.kv_cache_quant_algo, tuple(checkpoint.kv_scales() or ()))

    def apply(self, layer: nn.Module, name: str, index: int) -> None:
        """Have one layer round. layer: changed in place, by forward hooks; name: "model.layers.0"."""
        inside = {module: given for module, given in self.inputs.items() if module.startswith(f"{name}.")}
        if inside:
            round_linear_inputs(_Named(layer, name), inside)
        if self.kv_cache_quant_algo is not None:
            attention = [module for path, module in layer.named_modules() if path.rpartition(".")[2] in _ATTENTION]
            round_kv_cache(attention, [self.kv_scales[index]], self.kv_cache_quant_algo)


class _Named:
    """A layer that calls its modules by their names in the whole model."""

    def __init__(self, layer: nn.Module, name: str) -> None:
        self._layer, self._name = layer, name

    def named_modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield (full name, module)."""
        return ((f"{self._name}.{path}", module) for path, module in self._layer.named_modules() if path)
