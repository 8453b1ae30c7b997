"""Whether a scheme fits a model and how it is cut: group sizes, alignment, experts, exclusions. All of it is known from config.json.

Source of the rules: checkpoint specification 2.9, 2.14, 2.15 and 4.6, unified specification 2.10 and 3.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from trtbuild.errors import TrtbuildError, UsageError, Way
from trtbuild.layout import Layout, Slot
from trtbuild.names import GROUP_SIZES, GROUPED
from trtbuild.quant.scheme import QuantScheme, load_scheme

if TYPE_CHECKING:
    from trtbuild.convert.plan import ConversionOptions

#: Problems listed before the rest is only counted.
_LISTED = 4
_MOST_TP = 64
#: Architectures whose MoE block may have an entry of its own in quant_cfg.json (1.4.3).
_MIXED_EXPERTS = ("MixtralForCausalLM",)


def check_fit(layout: Layout, options: ConversionOptions) -> None:
    """Raise unless every linear can have its scheme; the message names linears, numbers, and what would work.

    Raises:
        UsageError: a linear does not fit, the scheme has no form for what is to be written, or it needs `--allow-unverified`.
    """
    _check_forms(layout, options)
    _refuse_nothing(layout)
    _refuse_head(layout, options)
    _check_overrides(layout)
    _check_mixture(layout, options)
    _check_layers(layout, options)
    problems = _worded(problem for slot in layout.slots for problem in _problems(layout, slot, options))
    if problems:
        more = f"; and {len(problems) - _LISTED} more reasons" if len(problems) > _LISTED else ""
        raise UsageError(
            f"{layout.scheme.name} does not fit: {'; '.join(problems[:_LISTED])}{more}",
            hint="--exclude the linears named",
            ways=_ways_out(layout, options),
        )


def _refuse_nothing(layout: Layout) -> None:
    """Refuse a scheme of which the patterns leave no linear: the checkpoint would be called quantized and be plain."""
    linears = [part.module for slot in layout.slots if slot.rule.quantizable for part in slot.parts]
    if layout.scheme.name == "none" or {layout.scheme_for(module).name for module in linears} != {"none"}:
        return
    raise UsageError(
        f"quantization '{layout.scheme.name}' has nothing to quantize: the patterns exclude every linear ({len(linears)} of {len(linears)})",
        hint="exclude fewer",
        ways=[
            Way(
                "use --quantization none",
                {"quantization.scheme": "none", "quantization.exclude": [], "quantization.overrides": {}},
            )
        ],
    )


def _check_forms(layout: Layout, options: ConversionOptions) -> None:
    for scheme in layout.schemes:
        if "ranks" in options.layouts and scheme.ranks is None:
            raise UsageError(
                f"quantization '{scheme.name}' has no form that TensorRT engines load",
                ways=[
                    Way("use --target pytorch", {"target": "pytorch"}),
                    Way("use --quantization fp8", {"quantization.scheme": "fp8"}),
                ],
            )
        doubts = [scheme.unverified]
        doubts += [scheme.unified.unverified] if "unified" in options.layouts and scheme.unified else []
        for doubt in filter(None, doubts):
            if not options.allow_unverified:
                from trtbuild.hardware import NEAREST  # for the message only

                raise UsageError(
                    f"{scheme.name}: {doubt}",
                    ways=[
                        Way(
                            "--allow-unverified writes it all the same; try it on your GPU before you rely on it",
                            {"quantization.allow_unverified": True},
                        ),
                        Way(f"{scheme.name} itself works with --target tensorrt", {"target": "tensorrt"}),
                        *(
                            Way(f"the nearest is --quantization {name}", {"quantization.scheme": name}, "format")
                            for name in NEAREST[scheme.name]
                        ),
                    ],
                )


def _check_overrides(layout: Layout) -> None:
    """Linears that are read as one matrix, or share an input multiplier, must be quantized alike."""
    if not layout.overrides:
        return
    by_group: dict[tuple[int, str], dict[str, list[str]]] = {}
    for slot in layout.slots:
        for part in slot.parts if slot.rule.quantizable else ():
            group = by_group.setdefault((slot.layer, slot.rule.scale_group or slot.target), {})
            group.setdefault(layout.scheme_for(part.module).name, []).append(part.module)
    for schemes in by_group.values():
        if len(schemes) > 1:
            mixed = "; ".join(f"{name}: {', '.join(sorted(set(modules))[:3])}" for name, modules in schemes.items())
            raise UsageError(
                f"linears that the kernels read as one are to be quantized differently ({mixed})",
                hint="name all of them, or none",
            )
    by_name: dict[str, set[str]] = {}
    for slot in layout.slots:
        if scheme := layout.scheme_of(slot):
            by_name.setdefault(slot.module, set()).add(scheme.name)
    clash = [name for name, found in by_name.items() if len(found) > 1]
    if clash:
        raise UsageError(
            f"{clash[0]} is quantized differently in two pipeline stages ({', '.join(sorted(by_name[clash[0]]))}); layers are numbered "
            "from 0 in each stage, and the config cannot tell them apart",
            hint="use --pp 1, or treat the same layers of every stage alike",
        )


def _check_mixture(layout: Layout, options: ConversionOptions) -> None:
    """Refuse mixtures that the loaders cannot read (checkpoint specification 1.4.3)."""
    used = {scheme for slot in layout.slots if (scheme := layout.scheme_of(slot)) and scheme.name != "none"}
    if len(used) < 2 and not layout.is_mixed:
        return
    by_loader = [scheme.name for scheme in used if scheme.ranks and scheme.ranks.loaded]
    if by_loader:
        raise UsageError(
            f"{by_loader[0]} is quantized by the loader, all linears alike, and cannot be mixed with others",
            hint="use int4_awq, int8_smoothquant or fp8 for these linears",
        )
    if "ranks" in options.layouts and layout.dims.num_experts and layout.dims.architecture not in _MIXED_EXPERTS:
        raise UsageError(
            f"TensorRT engines load mixed precision with experts for {' and '.join(_MIXED_EXPERTS)} only, not {layout.dims.architecture}",
            hint="use one scheme, with --exclude",
            ways=[Way("use --target pytorch", {"target": "pytorch"})],
        )


def _check_layers(layout: Layout, options: ConversionOptions) -> None:
    """Refuse forms for which the loader replaces whole layers where it has no such layers, or where some are to stay as they are."""
    replacing = [scheme for scheme in layout.schemes if scheme.ranks and scheme.ranks.replaces_layers]
    if not replacing:
        return
    mode, architecture = options.smoothquant_mode, layout.dims.architecture
    if not layout.arch.has_smoothquant_layers:
        raise UsageError(
            f"smoothquant_mode {mode}: TensorRT-LLM's SmoothQuant layers do not fit {architecture}",
            ways=[
                Way("--smoothquant-mode per_channel works", {"quantization.smoothquant_mode": "per_channel"}, "scheme"),
                Way(
                    "--quantization fp8 works; no SmoothQuant has experts",
                    {"quantization.scheme": "fp8", "quantization.smoothquant_mode": "per_channel"},
                    "scheme",
                ),
            ],
        )
    others = [
        f"{part.module} ({layout.scheme_for(part.module).name})"
        for slot in layout.slots
        if slot.rule.quantizable and layout.scheme_of(slot) not in replacing
        for part in slot.parts
    ]
    if others:
        raise UsageError(
            f"smoothquant_mode {mode} is for all linears of a model: the loader replaces every layer and looks at no exclusions; "
            f"{len(others)} linears are to be different, the first is {others[0]}",
            hint="use --smoothquant-mode per_channel, or leave out --exclude and --override",
        )


def _refuse_head(layout: Layout, options: ConversionOptions) -> None:
    """Raise UsageError where the head is given a scheme by name: neither loader has a form for it beside these schemes (unified 2.1)."""
    linears = {part.module for slot in layout.slots if slot.rule.quantizable for part in slot.parts}
    for pattern, scheme in options.overrides:
        if (
            fnmatchcase("lm_head", pattern)
            and scheme != "none"
            and not any(fnmatchcase(name, pattern) for name in linears)
        ):
            raise UsageError(
                f"--override {pattern}={scheme}: the head is never quantized; it keeps the model's dtype in every scheme",
                hint="leave the override out",
            )


def unmatched(layout: Layout, *, exclude: tuple[str, ...], override: tuple[str, ...]) -> list[str]:
    """Return the patterns that match nothing: exclusions may name any module with a weight, overrides only linears that have a scheme."""
    linears = {part.module for slot in layout.slots if slot.rule.quantizable for part in slot.parts}
    modules = {part.module for slot in layout.slots for part in slot.parts} | {"lm_head"}
    return [
        pattern
        for patterns, names in ((exclude, modules), (override, linears))
        for pattern in patterns
        if not any(fnmatchcase(name, pattern) for name in names)
    ]


def _worded(problems: Iterable[tuple[str, str]]) -> list[str]:
    """Return a sentence for each reason, with the first linear that has it and the number of the others: layers are alike."""
    linears: dict[str, list[str]] = {}
    for reason, module in problems:
        linears.setdefault(reason, []).append(module)
    return [
        reason.format(names[0] + (f" (and {len(names) - 1} more)" if len(names) > 1 else ""))
        for reason, names in linears.items()
    ]


def _problems(layout: Layout, slot: Slot, options: ConversionOptions) -> Iterator[tuple[str, str]]:
    """Yield why a linear does not fit, with {} for its name, and its name."""
    scheme = layout.scheme_of(slot)
    if scheme is None:
        return
    for (name, form), has_experts in zip(
        (("ranks", scheme.ranks), ("unified", scheme.unified)), scheme.has_experts, strict=True
    ):
        if name not in options.layouts or form is None or form.codec is None:
            continue
        if slot.rule.is_per_expert and not has_experts:
            what = "TensorRT engines load" if name == "ranks" else "TensorRT-LLM's PyTorch backend loads"
            yield f"{what} no {scheme.name} experts: {{}}", slot.parts[0].module
            continue
        whole = layout.parallel.moe_tp_size if slot.rule.is_per_expert else layout.parallel.tp_size
        tp_size = whole if name == "ranks" else options.serving_tp_size
        for reason in _shape_problems(layout, slot, scheme, tp_size, is_ranks=name == "ranks"):
            yield reason, slot.parts[0].module


def _shape_problems(layout: Layout, slot: Slot, scheme: QuantScheme, tp_size: int, *, is_ranks: bool) -> Iterator[str]:
    _, columns = slot.parts[0].shape
    codec = scheme.ranks.codec if is_ranks and scheme.ranks else scheme.unified.codec if scheme.unified else None
    assert codec is not None
    is_cut = any(piece.cut.axis for piece in layout.pieces(slot, 0)) if is_ranks else _is_row_parallel(layout, slot)
    inside = columns // tp_size if is_cut else columns
    group = codec.group_size if codec.geometry == "groups" else 1
    if group == 1 and codec.packing == (1, 1):
        return  # what has no groups can be cut wherever the model can
    if columns % group or inside % group or (is_cut and columns % tp_size):
        yield f"{{}} has {columns} inputs, {inside} per rank at tp={tp_size}, not a multiple of the group size {group}"
        return
    packed_rows, packed_columns = codec.packing
    rows = [piece.cut.rows(slot.parts[piece.number].shape) for piece in layout.pieces(slot, 0)]
    if any(count % packed_rows for count in rows) or inside % packed_columns:
        yield f"{{}} has an odd number of outputs on a rank ({rows}), and two share a byte"
        return
    need = scheme.needs_multiple * tp_size
    outputs = sum(rows) // max(len(layout.local_experts(slot, 0)), 1) * (1 if is_cut else tp_size)
    if is_ranks and scheme.needs_multiple > 1 and (columns % need or outputs % need):
        yield f"{{}} is [{outputs}, {columns}], and the loader wants multiples of {need} at tp={tp_size}"


def _is_row_parallel(layout: Layout, slot: Slot) -> bool:
    """Say whether the server will cut the inputs of a linear: asked with two ranks, whatever the folder is made for."""
    cuts = slot.shard.cut(0, slot.parts[0].shape, layout.dims, replace(layout.parallel, tp_size=1), 0)
    return bool(cuts.axis)


def choose_group_size(layout: Layout, options: ConversionOptions) -> Layout:
    """Return the layout with the largest group size that fits, unless one was asked for or none does."""
    if options.group_size is not None or not any(scheme.name in GROUPED for scheme in layout.schemes):
        return layout
    for size in sorted(GROUP_SIZES, reverse=True):
        other = _with_group_size(layout, options, size)
        if not any(scheme.unverified for scheme in other.schemes) and _fits(other, options, layout.parallel.tp_size):
            return other
    return layout


def _with_group_size(layout: Layout, options: ConversionOptions, size: int) -> Layout:
    chosen = options.scheme_options(size)
    overrides = tuple((pattern, load_scheme(scheme.name, chosen)) for pattern, scheme in layout.overrides)
    return replace(layout, scheme=load_scheme(layout.scheme.name, chosen), overrides=overrides)


def _ways_out(layout: Layout, options: ConversionOptions) -> list[Way]:
    """Return what may fit: another group size, other tp sizes, another scheme."""
    sizes = GROUP_SIZES if any(scheme.name in GROUPED for scheme in layout.schemes) else ()
    ways = [
        Way(f"--group-size {size} fits", {"quantization.group_size": size}, "size")
        for size in sizes
        if _fits(_with_group_size(layout, options, size), options, layout.parallel.tp_size)
    ]
    if ways:
        return ways
    now = layout.parallel.tp_size
    fitting = [tp for tp in range(1, _MOST_TP + 1) if tp != now and _fits(layout, options, tp)]
    nearest = sorted(sorted(fitting, key=lambda tp: abs(tp - now))[:_LISTED])
    ways = [Way(f"--tp {tp} fits", {"parallel.tp_size": tp}) for tp in nearest]
    return [*ways, Way("use --quantization fp8", {"quantization.scheme": "fp8"})]


def _fits(layout: Layout, options: ConversionOptions, tp_size: int) -> bool:
    """Say whether a model fits its scheme with a tp size."""
    try:
        parallel = replace(layout.parallel, tp_size=tp_size)
        parallel.check(layout.dims)
        other = replace(layout, parallel=parallel)
        asked = replace(options, serving_tp_size=tp_size)
        return not any(True for slot in other.slots[: _few(other)] for _ in _problems(other, slot, asked))
    except TrtbuildError:
        return False


def _few(layout: Layout) -> int:
    """Return the number of slots up to the end of the first layer: the others are like it."""
    return next((number for number, slot in enumerate(layout.slots) if slot.layer == 1), len(layout.slots))
