"""What a conversion will write, from config.json and safetensors headers alone.

Every mistake that can be seen from there is an error here, before a byte of weights is read. Knows how much and where;
not how to do it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from trtbuild.arch.registry import resolve
from trtbuild.arch.rules import ArchSpec
from trtbuild.convert.fit import check_fit, choose_group_size, unmatched
from trtbuild.convert.guesses import guesses
from trtbuild.convert.opening import KnownRanges, OpenedSource
from trtbuild.convert.source_check import canonical, check_tensors, first_names, refuse_converted, resolve_dtype
from trtbuild.dims import ModelDims
from trtbuild.dtypes import SIZES, TO_CONFIG
from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.layout import Layout, Part, Slot
from trtbuild.names import GROUP_SIZES, GROUPED, SmoothQuantMode
from trtbuild.parallel import Parallel
from trtbuild.quant.kv_cache import KV_CACHE_FORMATS
from trtbuild.quant.scheme import QuantScheme, SchemeOptions, load_scheme
from trtbuild.rank_config import rank_quantization
from trtbuild.rope import Rope
from trtbuild.source import SourceCheckpoint

if TYPE_CHECKING:
    from trtbuild.quant.stats import CalibrationStats


@dataclass(frozen=True, slots=True)
class ConversionOptions:
    """What the user asked for; names as on the command line.

    Attributes:
        group_size: of the schemes with groups; None: the larger one that fits.
        exclude: patterns of Hugging Face modules that stay unquantized.
        overrides: (pattern of Hugging Face modules, scheme), the first that matches counts; after `exclude`.
        layouts: what will be written: "ranks", "unified" or both.
        serving_tp_size: how the server will cut a unified folder.
    """

    quantization: str = "none"
    kv_cache: str = "auto"
    dtype: str = "auto"
    parallel: Parallel = field(default_factory=Parallel)
    group_size: int | None = None
    smoothquant_alpha: float = 0.5
    smoothquant_mode: SmoothQuantMode = "per_channel"
    act_order: bool = False
    exclude: tuple[str, ...] = ()
    overrides: tuple[tuple[str, str], ...] = ()
    allow_unverified: bool = False
    layouts: tuple[str, ...] = ("ranks",)
    serving_tp_size: int = 1

    def scheme_options(self, group_size: int) -> SchemeOptions:
        """Return what the scheme is made with."""
        return SchemeOptions(group_size, self.smoothquant_alpha, self.smoothquant_mode, self.act_order)


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """The complete conversion: a layout, and a source that has every tensor it needs.

    Attributes:
        known: ranges of a quantized source whose weights are kept as they are.
    """

    source: SourceCheckpoint
    layout: Layout
    options: ConversionOptions
    warnings: tuple[str, ...]
    known: KnownRanges | None = None

    @property
    def dims(self) -> ModelDims:
        """Dimensions of the model."""
        return self.layout.dims

    @property
    def needs_calibration(self) -> bool:
        """Whether the model must be run on sample texts first."""
        return self.needs_search or (self._needs_ranges and self.known_stats is None)

    @property
    def needs_search(self) -> bool:
        """Whether recipes must be found on sample texts."""
        return any(scheme.search for scheme in self.layout.schemes)

    @property
    def _needs_ranges(self) -> bool:
        schemes = self.layout.schemes
        return any(scheme.needs_activations for scheme in schemes) or self.layout.kv_format is not None

    @property
    def recipe_bytes(self) -> int:
        """Bytes that recipes take on the disk until the conversion is through: scales, and GPTQ's codes."""
        total = 0
        for slot in self.layout.slots:
            scheme = self.layout.scheme_of(slot)
            if scheme and scheme.search and scheme.search.group_size:
                weights = sum(math.prod(part.shape) for part in slot.parts)
                total += 4 * weights // scheme.search.group_size + (weights if scheme.search.kind == "gptq" else 0)
        return total

    def row_step(self, slot: Slot) -> int:
        """Return the multiple of rows at which blocks of a slot's parts must begin."""
        scheme = self.layout.scheme_of(slot)
        forms = (scheme.ranks, scheme.unified) if scheme else ()
        return math.lcm(*(form.codec.row_step for form in forms if form and form.codec))

    @property
    def known_stats(self) -> CalibrationStats | None:
        """All ranges that are needed, where a quantized source brings them along."""
        if self.known is None:
            return None
        modules = [part.module for slot in self.layout.slots if slot.rule.quantizable for part in slot.parts]
        return self.known.stats(modules, self.dims.num_layers, needs_kv=self.layout.kv_format is not None)

    def part_bytes(self, part: Part) -> int:
        """Return the bytes of a part as the source holds it."""
        return math.prod(part.shape) * SIZES[self.source.tensors[part.source].dtype]

    @property
    def read_bytes(self) -> int:
        """Bytes of the files that are read, as they lie there; what is used twice (the embedding of a tied head) counts once."""
        total = 0
        for part in dict.fromkeys(replace(part, expert=None) for part in self.layout.parts):
            tensor = self.source.tensors[part.source]
            total += tensor.nbytes * math.prod(part.shape) // max(math.prod(tensor.shape), 1)
        return total

    @property
    def rows_bytes(self) -> int:
        """Bytes of all rows that are worked on for rank files, each use counted, as they are read: what progress is measured in."""
        return sum(self.part_bytes(part) for part in self.layout.parts)

    @property
    def write_bytes(self) -> int:
        """Bytes of all tensors of all ranks."""
        return sum(map(self.layout.rank_bytes, self.layout.parallel.ranks()))

    def config(self) -> dict[str, Any]:
        """Return TensorRT-LLM's config.json (checkpoint specification 1.2 to 1.6)."""
        dims, layout, parallel = self.dims, self.layout, self.layout.parallel
        return {
            "architecture": dims.architecture,
            "model_type": dims.model_type,
            "dtype": TO_CONFIG[layout.dtype],
            "logits_dtype": "float32",
            "num_hidden_layers": dims.num_layers,
            "num_attention_heads": dims.num_attention_heads,
            "num_key_value_heads": dims.num_kv_heads,
            "hidden_size": dims.hidden_size,
            "head_size": dims.head_dim,
            "intermediate_size": dims.intermediate_size,
            "vocab_size": parallel.padded_vocab(dims.vocab_size),
            "max_position_embeddings": dims.max_position_embeddings,
            "hidden_act": dims.hidden_act,
            "norm_epsilon": dims.norm_epsilon,
            **_rotary(dims.rope),
            "tie_word_embeddings": dims.tie_word_embeddings,
            "use_parallel_embedding": parallel.vocab_embedding or parallel.hidden_embedding,
            "embedding_sharding_dim": int(parallel.hidden_embedding),
            **layout.arch.config_fields(dims, self.source.config),
            "mapping": {
                "world_size": parallel.world_size,
                "tp_size": parallel.tp_size,
                "pp_size": parallel.pp_size,
                **(
                    {"moe_tp_size": parallel.moe_tp_size, "moe_ep_size": parallel.moe_ep_size}
                    if dims.num_experts
                    else {}
                ),
            },
            "quantization": {
                **rank_quantization(layout),
                "kv_cache_quant_algo": layout.kv_format.quant_algo if layout.kv_format else None,
            },
            **({"trtbuild": {"vocab_size": dims.vocab_size}} if parallel.vocab_multiple > 1 else {}),
        }

    def to_json(self, *, tensors: bool) -> dict[str, Any]:
        """Return the plan as plain data; `tensors` adds every tensor of every rank."""
        parallel = self.layout.parallel
        ranks = []
        for rank in parallel.ranks():
            listed = self.layout.tensors(rank)
            layers = parallel.layers(self.dims.num_layers, rank.pp_rank)
            entry: dict[str, Any] = {
                "rank": rank.index,
                "tp_rank": rank.tp_rank,
                "pp_rank": rank.pp_rank,
                "layers": [layers[0], layers[-1]],
                "num_tensors": len(listed),
                "bytes": self.layout.rank_bytes(rank),
            }
            if tensors:
                entry["tensors"] = [
                    {"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape), "bytes": tensor.nbytes}
                    for tensor in sorted(listed, key=lambda tensor: tensor.name)
                ]
            ranks.append(entry)
        return {
            "source": str(self.source.path),
            "architecture": self.dims.architecture,
            "quantization": self.layout.scheme.name,
            "kv_cache": self.options.kv_cache,
            "dtype": TO_CONFIG[self.layout.dtype],
            "calibration_needed": self.needs_calibration,
            "read_bytes": self.read_bytes,
            "write_bytes": sum(rank["bytes"] for rank in ranks),
            "ranks": ranks,
            "config": self.config(),
            "warnings": list(self.warnings),
        }


def plan_conversion(opened: OpenedSource, options: ConversionOptions, *, layers: int | None = None) -> ConversionPlan:
    """Plan a conversion.

    Args:
        opened: the model.
        options: what the user asked for.
        layers: convert only so many layers, for trials; the source is checked whole.

    Raises:
        TrtbuildError: the model cannot be converted like this; the message says why and what would work.
    """
    source = opened.source
    where = str(source.path / "config.json")
    refuse_converted(source.config, where)
    architecture, arch = resolve(source.config, where=where)
    dims = arch.read_dims(source.config, architecture, where)
    if dims.num_layers > len(source.tensors):
        raise TrtbuildError(
            f"{where}: num_hidden_layers={dims.num_layers}, but the folder holds {len(source.tensors)} tensors in all",
            hint="config.json and the weights do not belong together",
        )
    parallel = _parallel(options.parallel, arch, dims)
    source = replace(source, tensors=canonical(source, arch))
    layout = Layout(
        arch=arch,
        dims=dims,
        parallel=parallel,
        scheme=load_scheme(options.quantization, options.scheme_options(options.group_size or GROUP_SIZES[-1])),
        kv_format=KV_CACHE_FORMATS[options.kv_cache],
        dtype=resolve_dtype(options.dtype, dims, source),
        overrides=_overrides(options, options.group_size or GROUP_SIZES[-1]),
    )
    layout = (
        _keep(layout, options, opened) if opened.known and opened.known.recipes else choose_group_size(layout, options)
    )
    vocab_multiple = layout.vocab_multiple
    layout = replace(layout, parallel=replace(parallel, vocab_multiple=vocab_multiple))
    if parallel.hidden_embedding and dims.vocab_size % vocab_multiple:
        raise UsageError(
            f"--embedding hidden: the vocabulary of {dims.vocab_size} is padded to a multiple of {vocab_multiple} for this scheme, "
            "which an embedding cut over the hidden size is not",
            hint="use --embedding vocab",
        )
    check_tensors(source, layout)
    check_fit(layout, options)
    if layers is not None:
        layout = _first_layers(layout, layers)
    notes = (*opened.notes, *source.notes, *guesses(source.config, dims), *_warnings(layout, options))
    return ConversionPlan(source, layout, options, notes, opened.known)


def _overrides(options: ConversionOptions, group_size: int) -> tuple[tuple[str, QuantScheme], ...]:
    chosen = options.scheme_options(group_size)
    named = (*((pattern, "none") for pattern in options.exclude), *options.overrides)
    return tuple((pattern, load_scheme(name, chosen)) for pattern, name in named)


def _keep(layout: Layout, options: ConversionOptions, opened: OpenedSource) -> Layout:
    """Return the layout of a source whose INT4 codes are kept: its group size, and nothing to search.

    Raises:
        UsageError: a linear that is to be quantized is not quantized in the source.
    """
    assert opened.known is not None
    assert opened.known.recipes is not None
    assert opened.known.group_size is not None
    scheme = load_scheme(options.quantization, options.scheme_options(opened.known.group_size))
    layout = replace(layout, scheme=replace(scheme, search=None))
    modules = [
        part.module
        for slot in layout.slots
        if (found := layout.scheme_of(slot)) and found.group_size
        for part in slot.parts
    ]
    plain = [module for module in modules if not opened.known.recipes.has(module, "weight_scale")]
    if plain:
        raise UsageError(
            f"{opened.source.path} is quantized, but these linears of it are not: {first_names(plain)}",
            hint="add --exclude for each of them (patterns are allowed), or --dequantize to quantize everything again",
        )
    return layout


def _first_layers(layout: Layout, layers: int) -> Layout:
    if layers > layout.dims.num_layers:
        raise UsageError(
            f"--layers {layers}: the model has {layout.dims.num_layers} layers", hint="give fewer, or leave it out"
        )
    shorter = replace(layout, dims=replace(layout.dims, num_layers=layers))
    shorter.parallel.check(shorter.dims)
    return shorter


def _rotary(rope: Rope | None) -> dict[str, Any]:
    if rope is None:
        return {}
    return {
        "position_embedding_type": "rope_gpt_neox",
        "rotary_base": rope.theta,
        "rotary_scaling": dict(rope.scaling) if rope.scaling else None,
    }


def _parallel(asked: Parallel, arch: ArchSpec, dims: ModelDims) -> Parallel:
    """Return how the model will be cut.

    Raises:
        UsageError: it cannot be cut as asked.
    """
    asked.check(dims)
    if asked.pp_size > 1 and not arch.has_pipeline:
        raise UsageError(
            f"{dims.architecture} has no pipeline parallelism in TensorRT-LLM, pp={asked.pp_size} was asked for",
            hint="use --pp 1 and a larger --tp",
        )
    if asked.hidden_embedding:
        _check_hidden_embedding(asked, arch, dims)
    return replace(asked, vocab_embedding=asked.vocab_embedding or (arch.shards_embedding and asked.tp_size > 1))


def _check_hidden_embedding(asked: Parallel, arch: ArchSpec, dims: ModelDims) -> None:
    """Raise UsageError unless the embedding can be cut over the hidden size."""
    positions = [rule.target for rule in arch.rules if rule.stage == "first" and "vocab_embedding" not in rule.target]
    problem = ""
    if arch.shards_embedding:
        problem = f"{dims.architecture} needs the embedding cut over the vocabulary"
    elif positions:
        problem = f"{dims.architecture} adds {positions[0]} to it, and how that is cut is not known"
    elif dims.hidden_size % asked.tp_size:
        problem = f"hidden_size={dims.hidden_size} cannot be split over tp={asked.tp_size}"
    if problem:
        raise UsageError(f"--embedding hidden: {problem}", hint="use --embedding vocab or replicated")


def _warnings(layout: Layout, options: ConversionOptions) -> Iterator[str]:
    """Say what will be done beyond what was asked, and what the kernels may not take."""
    overriding = tuple(pattern for pattern, _ in options.overrides)
    for pattern in unmatched(layout, exclude=options.exclude, override=overriding):
        yield f"the pattern {pattern} matches no module of {layout.dims.architecture} that it could apply to"
    used = {scheme.name for slot in layout.slots if (scheme := layout.scheme_of(slot))}
    if layout.scheme.name not in used:
        yield f"no linear is quantized with {layout.scheme.name}: the patterns name all of them"
    for scheme in layout.schemes:
        if scheme.name in used and scheme.caution:
            yield scheme.caution
    sizes = {scheme.group_size for scheme in layout.schemes if scheme.name in GROUPED}
    if sizes and options.group_size is None:
        yield f"the group size is {max(sizes)}: the largest that fits this model at tp={layout.parallel.tp_size}"
    heads, vocab, tp_size = layout.dims.num_kv_heads, layout.dims.vocab_size, layout.parallel.tp_size
    for slot in layout.slots:
        scheme = layout.scheme_of(slot)
        if scheme and slot.layer == 0:
            yield from scheme.warnings(slot.module, layout.local_shape(slot, 0)[-2:])
    if layout.parallel.vocab_embedding and not options.parallel.vocab_embedding:
        yield f"the embedding is cut over the vocabulary: {layout.dims.architecture} needs that with tp={tp_size}"
    if layout.arch.unverified and tp_size > 1:
        yield f"unverified: {layout.arch.unverified}"
    if heads < tp_size:
        yield f"each of the {heads} kv heads is held by {tp_size // heads} ranks, since tp={tp_size}"
    if layout.parallel.vocab_multiple > 1 and vocab % layout.parallel.vocab_multiple:
        padded = layout.parallel.padded_vocab(vocab)
        yield f"the vocabulary of {vocab} is padded with zero rows to {padded}, as NVIDIA's exporter does for AWQ models"
    elif vocab % tp_size:
        yield f"the vocabulary of {vocab} is padded with zero rows to {-(-vocab // tp_size) * tp_size}, since tp={tp_size}"
    if layout.kv_format and layout.kv_format.floor >= 1:
        yield f"KV cache scales are not written below {layout.kv_format.floor} (the loader's recommended practice)"
