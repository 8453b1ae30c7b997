"""The rank-file layout: every tensor of every rank, from dims and options alone.

Writing (`convert/`) and reading (`checkpoint.py`) both go by it, so that what is read back is what was meant to be written.
Knows names, dtypes and shapes; opens no file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

from trtbuild.arch.rules import ArchSpec, Shape, View, WeightRule
from trtbuild.dims import ModelDims
from trtbuild.dtypes import SIZES
from trtbuild.parallel import Parallel, Rank
from trtbuild.quant.kv_cache import KV_SCALE_NAMES, KvCacheFormat
from trtbuild.quant.scheme import MODEL_DTYPE, Form, QuantScheme, ScaleTensor
from trtbuild.shard import Cut, Replicate, Shard, Split, SplitVocab, WholeVocab


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
class Part:
    """A source of a target tensor: a whole Hugging Face tensor or some rows of one.

    Attributes:
        source: Hugging Face name.
        shape: [rows, in] or [rows] as the target holds it.
        view: where the rows lie in the source, None for all of it.
        expert: number of the expert it belongs to, None outside of experts.
    """

    source: str
    shape: Shape
    view: View | None
    expert: int | None

    @property
    def source_shape(self) -> Shape:
        """Full shape of the source tensor."""
        return self.view.source_shape if self.view else self.shape

    @property
    def label(self) -> str:
        """The source, with the first row where the part is not all of it."""
        return f"{self.source}[{self.view.start}]" if self.view else self.source

    @property
    def module(self) -> str:
        """Hugging Face module of the source."""
        return self.source.removesuffix(".weight")


@dataclass(frozen=True, slots=True)
class Piece:
    """What one rank holds of one part.

    Attributes:
        number: of the part in its slot.
        cut: the range of the part.
        row: first row of the rank's tensor that comes from it; a tensor of experts counts the rows of all its experts.
    """

    number: int
    cut: Cut
    row: int


@dataclass(frozen=True, slots=True)
class Slot:
    """One rule applied to one layer.

    Attributes:
        target: name in the rank files, with the layer number local to the stage.
        layer: global layer number, -1 outside of layers.
        parts: where it comes from.
        shard: the rule's, with the choice for the embedding applied.
        pp_rank: the stage that holds it.
    """

    rule: WeightRule
    target: str
    layer: int
    parts: tuple[Part, ...]
    shard: Shard
    pp_rank: int

    @property
    def module(self) -> str:
        """Target module: the name without its last component."""
        return self.target.rpartition(".")[0]

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the source tensors, each once."""
        return tuple(dict.fromkeys(part.source for part in self.parts))


@dataclass(frozen=True)
class Layout:
    """Everything that decides names, dtypes and shapes in the rank files.

    Attributes:
        scheme: of all linears that no override names.
        dtype: safetensors dtype of unquantized tensors.
        kv_format: None when the KV cache keeps the model's dtype.
        overrides: (pattern of Hugging Face modules, scheme), the first that matches counts.
    """

    arch: ArchSpec
    dims: ModelDims
    parallel: Parallel
    scheme: QuantScheme
    kv_format: KvCacheFormat | None
    dtype: str
    overrides: tuple[tuple[str, QuantScheme], ...] = ()

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """Every target tensor in the order in which models are stored: embedding, layers, head."""
        return tuple(self._slots())

    @property
    def parts(self) -> list[Part]:
        """Everything that is read for rank files, in storage order; the embedding of a tied head twice."""
        return [part for slot in self.slots for part in slot.parts]

    def _slots(self) -> Iterator[Slot]:
        dims, parallel = self.dims, self.parallel
        rules = [(rule, self._shard(rule), _shapes(rule, dims)) for rule in self.arch.rules if rule.when(dims)]
        for layer in range(-1, dims.num_layers + 1):
            stage = "first" if layer < 0 else "last" if layer == dims.num_layers else "layer"
            pp_rank = {"first": 0, "last": parallel.pp_size - 1}.get(stage)
            if pp_rank is None:
                pp_rank = parallel.stage_of(dims.num_layers, layer)
            local = layer - parallel.layers(dims.num_layers, pp_rank).start
            for rule, shard, shapes in rules:
                if rule.stage == stage:
                    yield Slot(
                        rule=rule,
                        target=rule.target.format(layer=local),
                        layer=layer if stage == "layer" else -1,
                        parts=tuple(_parts(rule, shapes, dims, layer)),
                        shard=shard,
                        pp_rank=pp_rank,
                    )

    def _shard(self, rule: WeightRule) -> Shard:
        if rule.stage != "first" or self.parallel.vocab_embedding:
            return rule.shard
        if not isinstance(rule.shard, SplitVocab):
            return Replicate()
        return Split(1) if self.parallel.hidden_embedding else WholeVocab()

    def scheme_of(self, slot: Slot) -> QuantScheme | None:
        """Return the scheme of a slot's linear, None for a tensor that no scheme applies to."""
        return self.scheme_for(slot.parts[0].module) if slot.rule.quantizable else None

    def scheme_for(self, module: str) -> QuantScheme:
        """Return the scheme of a quantizable linear by its Hugging Face name."""
        for pattern, scheme in self.overrides:
            if fnmatchcase(module, pattern):
                return scheme
        return self.scheme

    @property
    def schemes(self) -> tuple[QuantScheme, ...]:
        """All schemes that a linear may have, each once."""
        return tuple(dict.fromkeys((self.scheme, *(scheme for _, scheme in self.overrides))))

    @cached_property
    def is_mixed(self) -> bool:
        """Whether linears are quantized in several ways, or others than the config's one algorithm says."""
        used = {self.scheme_of(slot) for slot in self.slots if slot.rule.quantizable}
        coded = {scheme for scheme in used if scheme and (scheme.ranks or scheme.unified or Form()).codec}
        return len(coded) > 1 or (bool(coded) and self.scheme not in coded)

    @property
    def vocab_multiple(self) -> int:
        """What the vocabulary is padded to a multiple of: as ModelOpt's exporter, by the form of the first linear that has codes."""
        forms = (self.form_of(slot) for slot in self.slots)
        return next((form.vocab_multiple for form in forms if form and form.codec), 1)

    def form_of(self, slot: Slot) -> Form | None:
        """Return how a slot's linear lies in the rank files, None for a tensor that no scheme applies to."""
        scheme = self.scheme_of(slot)
        return scheme.ranks.of_linear(slot.module) if scheme and scheme.ranks else None

    @cached_property
    def _grouped(self) -> dict[tuple[int, str], Slot]:
        """(layer, scale group) -> its first linear."""
        found: dict[tuple[int, str], Slot] = {}
        for slot in self.slots:
            if slot.rule.quantizable:
                found.setdefault((slot.layer, slot.rule.scale_group), slot)
        return found

    @cached_property
    def _norms(self) -> dict[tuple[int, str], tuple[Slot, ...]]:
        """(layer, scale group) -> what makes up the norm in front of it."""
        found: dict[tuple[int, str], tuple[Slot, ...]] = {}
        for slot in self.slots:
            if slot.rule.feeds:
                place = (slot.layer, slot.rule.feeds)
                found[place] = (*found.get(place, ()), slot)
        return found

    def norm_of(self, slot: Slot) -> tuple[Slot, ...]:
        """Return weight and, where there is one, bias of the norm whose output a linear reads and nothing else does."""
        return self._norms.get((slot.layer, slot.rule.scale_group), ())

    def behind(self, norm: Slot) -> Slot | None:
        """Return the first linear that reads a norm's output, None unless linears alone read it."""
        return self._grouped.get((norm.layer, norm.rule.feeds)) if norm.rule.feeds else None

    def folded(self, norm: Slot) -> Slot | None:
        """Return a linear whose input multiplier is in the norm that rank files hold."""
        slot = self.behind(norm)
        form = self.form_of(slot) if slot else None
        return slot if form and form.folds_norms else None

    def scales(self, slot: Slot) -> list[tuple[ScaleTensor, str]]:
        """Return what is stored beside the weight of a slot, with its name; what belongs to a norm comes with the first linear behind it."""
        form, found = self.form_of(slot), []
        for scale in form.scales if form else ():
            if scale.owner == "linear":
                found.append((scale, f"{slot.module}.{scale.suffix}"))
            elif scale.owner == "block":
                found.append((scale, f"{slot.module.rpartition('.')[0]}.{scale.suffix}"))
            elif slot == self._grouped[slot.layer, slot.rule.scale_group]:
                found.append((scale, f"{self.norm_of(slot)[0].module}.{scale.suffix}"))
        return found

    def is_quantized(self, slot: Slot) -> bool:
        """Say whether the file holds codes of a scheme for this slot, instead of plain weights."""
        form = self.form_of(slot)
        return form is not None and form.codec is not None

    def stored_dtype(self, slot: Slot) -> str:
        """Return the safetensors dtype of a slot's tensor."""
        form = self.form_of(slot)
        return form.dtype if form and form.codec else slot.rule.dtype or self.dtype

    def pieces(self, slot: Slot, tp_rank: int) -> list[Piece]:
        """Return what a tensor-parallel rank holds of each part, in the order of its tensor."""
        found, row = [], 0
        for number, part in enumerate(slot.parts):
            cut = slot.shard.cut(number, part.shape, self.dims, self.parallel, tp_rank)
            if cut.size:
                found.append(Piece(number, cut, row))
                row += cut.rows(part.shape)
        return found

    def local_experts(self, slot: Slot, tp_rank: int) -> list[int]:
        """Return the numbers of the experts that a rank holds of a slot, none for a slot without experts."""
        numbers = [slot.parts[piece.number].expert for piece in self.pieces(slot, tp_rank)]
        return list(dict.fromkeys(number for number in numbers if number is not None))

    def local_shape(self, slot: Slot, tp_rank: int) -> Shape:
        """Return the shape of a rank's tensor, before several weights are packed into one element: its pieces of all parts below one another, under an axis of experts if it has them."""
        key = (slot.rule.target, tp_rank)
        if key not in self._local_shapes:
            self._local_shapes[key] = self._local_shape(slot, tp_rank)
        return self._local_shapes[key]

    @cached_property
    def _local_shapes(self) -> dict[tuple[str, int], Shape]:
        # Layers are alike, so a rule has one shape for all of them.
        return {}

    def _local_shape(self, slot: Slot, tp_rank: int) -> Shape:
        pieces = self.pieces(slot, tp_rank)
        rows = sum(piece.cut.rows(slot.parts[piece.number].shape) for piece in pieces)
        first, shape = pieces[0].cut, slot.parts[pieces[0].number].shape
        columns = (first.size,) if first.axis else shape[1:]
        if not slot.rule.is_per_expert:
            return (rows, *columns)
        experts = len(self.local_experts(slot, tp_rank))
        return (experts, rows // experts, *columns)

    @cached_property
    def _stages(self) -> tuple[tuple[StoredTensor, ...], ...]:
        # Cut evenly, with padding where it must be: the tensor-parallel ranks of a stage have the same names and shapes.
        return tuple(tuple(self._tensors(pp_rank)) for pp_rank in range(self.parallel.pp_size))

    @cached_property
    def _stage_bytes(self) -> tuple[int, ...]:
        return tuple(sum(tensor.nbytes for tensor in tensors) for tensors in self._stages)

    def tensors(self, rank: Rank) -> tuple[StoredTensor, ...]:
        """Return every tensor of a rank file."""
        return self._stages[rank.pp_rank]

    def rank_bytes(self, rank: Rank) -> int:
        """Return the bytes of all tensors of a rank file."""
        return self._stage_bytes[rank.pp_rank]

    def stored(self, slot: Slot, tp_rank: int) -> Iterator[StoredTensor]:
        """Yield what a rank stores for a slot: the tensor, and its scales."""
        shape, form = self.local_shape(slot, tp_rank), self.form_of(slot)
        if form is None or form.codec is None:
            yield StoredTensor(slot.target, self.stored_dtype(slot), shape)
            return
        (*experts, rows, columns), (packed_rows, packed_columns) = shape, form.codec.packing
        yield StoredTensor(slot.target, form.dtype, (*experts, rows // packed_rows, columns // packed_columns))
        for scale, name in self.scales(slot):
            axes = experts if scale.is_per_expert else ()
            dtype = self.dtype if scale.dtype == MODEL_DTYPE else scale.dtype
            own = scale.shape(rows, columns, form.codec.group_size)
            yield StoredTensor(name, dtype, (*axes, *own))

    def _tensors(self, pp_rank: int) -> Iterator[StoredTensor]:
        for slot in self.slots:
            if slot.pp_rank == pp_rank:
                yield from self.stored(slot, tp_rank=0)
        for local in range(len(self.parallel.layers(self.dims.num_layers, pp_rank)) if self.kv_format else 0):
            for name in KV_SCALE_NAMES:
                yield StoredTensor(f"transformer.layers.{local}.attention.{name}", "F32", (1,))


def _shapes(rule: WeightRule, dims: ModelDims) -> tuple[tuple[str, Shape, View | None], ...]:
    """Return (source name, shape, view) of the parts of a rule; the same for every layer."""
    shapes = rule.shapes(dims)
    views = rule.views(dims) if rule.views else (None,) * len(shapes)
    return tuple(zip(rule.sources, shapes, views, strict=True))


def _parts(
    rule: WeightRule, shapes: tuple[tuple[str, Shape, View | None], ...], dims: ModelDims, layer: int
) -> Iterator[Part]:
    for expert in range(dims.num_experts) if rule.is_per_expert else (None,):
        for source, shape, view in shapes:
            yield Part(source.format(layer=layer, expert=expert), shape, view, expert)
