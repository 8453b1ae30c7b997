"""The rank-file layout: every tensor of every rank, from dims and options alone.

Writing (`convert/`) and reading (`checkpoint.py`) both go by it, so that what is read back is what was meant to be written.
Knows names, dtypes and shapes; opens no file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from trtbuild.arch.rules import ArchSpec, Shape, WeightRule
from trtbuild.dims import ModelDims
from trtbuild.dtypes import SIZES
from trtbuild.parallel import Parallel, Rank
from trtbuild.quant.kv_cache import KV_SCALE_NAMES, KvCacheFormat
from trtbuild.quant.scheme import QuantScheme
from trtbuild.shard import Replicate, Shard, local_shape


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a rank file; dtype is the safetensors name."""

    name: str
    dtype: str
    shape: Shape

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * SIZES[self.dtype]


@dataclass(frozen=True, slots=True)
class Slot:
    """One rule applied to one layer.

    Attributes:
        target: name in the rank files, with the layer number local to the stage.
        layer: global layer number, -1 outside of layers.
        sources: Hugging Face names of the parts.
        shapes: full shape of each part.
        shard: the rule's, with the choice for the embedding applied.
        pp_rank: the stage that holds it.
    """

    rule: WeightRule
    target: str
    layer: int
    sources: tuple[str, ...]
    shapes: tuple[Shape, ...]
    shard: Shard
    pp_rank: int

    @property
    def module(self) -> str:
        """Target module: the name without its last component."""
        return self.target.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class Layout:
    """Everything that decides names, dtypes and shapes in the rank files.

    Attributes:
        dtype: safetensors dtype of unquantized tensors.
        kv_format: None when the KV cache keeps the model's dtype.
    """

    arch: ArchSpec
    dims: ModelDims
    parallel: Parallel
    scheme: QuantScheme
    kv_format: KvCacheFormat | None
    dtype: str

    def slots(self) -> Iterator[Slot]:
        """Yield every target tensor in the order in which models are stored: embedding, layers, head."""
        dims, parallel = self.dims, self.parallel
        rules = [rule for rule in self.arch.rules if rule.when(dims)]
        for layer in range(-1, dims.num_layers + 1):
            stage = "first" if layer < 0 else "last" if layer == dims.num_layers else "layer"
            pp_rank = {"first": 0, "last": parallel.pp_size - 1}.get(stage)
            if pp_rank is None:
                pp_rank = parallel.stage_of(dims.num_layers, layer)
            local = layer - parallel.layers(dims.num_layers, pp_rank).start
            for rule in rules:
                if rule.stage == stage:
                    yield Slot(
                        rule=rule,
                        target=rule.target.format(layer=local),
                        layer=layer if stage == "layer" else -1,
                        sources=tuple(name.format(layer=layer) for name in rule.sources),
                        shapes=rule.shapes(dims),
                        shard=rule.shard if stage != "first" or parallel.vocab_embedding else Replicate(),
                        pp_rank=pp_rank,
                    )

    def is_quantized(self, slot: Slot) -> bool:
        """Say whether the file holds codes of the scheme for this slot, instead of plain weights."""
        return slot.rule.quantizable and self.scheme.weight_dtype is not None

    def tensors(self, rank: Rank) -> Iterator[StoredTensor]:
        """Yield every tensor of a rank file."""
        for slot in self.slots():
            if slot.pp_rank != rank.pp_rank:
                continue
            quantized = self.is_quantized(slot)
            shape = local_shape(slot.shard, slot.shapes, self.dims, self.parallel.tp_size, rank.tp_rank)
            yield StoredTensor(
                slot.target, (self.scheme.weight_dtype or self.dtype) if quantized else self.dtype, shape
            )
            for scale in self.scheme.scale_tensors if quantized else ():
                yield StoredTensor(f"{slot.module}.{scale.suffix}", scale.dtype, scale.shape)
        for local in range(len(self.parallel.layers(self.dims.num_layers, rank.pp_rank)) if self.kv_format else 0):
            for name in KV_SCALE_NAMES:
                yield StoredTensor(f"transformer.layers.{local}.attention.{name}", "F32", (1,))
