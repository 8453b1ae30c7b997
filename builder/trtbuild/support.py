"""What can be converted to what: one row per architecture, from the registries alone.

Printed by `trtbuild architectures`; docs/architectures.md holds the same table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trtbuild.arch.registry import ARCHITECTURES, lookup
from trtbuild.arch.sized import SIZED_ONLY
from trtbuild.convert.unified_plan import SERVED
from trtbuild.names import LAYOUTS, QUANTIZATIONS, SMOOTHQUANT_MODES, TARGETS
from trtbuild.quant.scheme import SchemeOptions, load_scheme
from trtbuild.quant.unified import unified_schemes
from trtbuild.reference.support import STATIC_BATCHES

#: In the order of `QuantScheme.has_experts`.
LAYOUT_NAMES = ("ranks", "unified")
_RANKED = tuple(name for name in QUANTIZATIONS if load_scheme(name).ranks)
#: Target -> schemes its layout has a form for.
_SCHEMES: dict[str, tuple[str, ...]] = {
    "tensorrt": _RANKED,
    "pytorch": tuple(unified_schemes()),
    "reference": _RANKED,
}
assert set(_SCHEMES) == set(TARGETS)


@dataclass(frozen=True, slots=True)
class Support:
    """One architecture.

    Attributes:
        architecture: Hugging Face architecture.
        model_type: Hugging Face model type, "" for one that is only sized.
        schemes: target -> schemes; empty where the target does not take the architecture.
        batching: how the reference target serves it: "continuous", "static" or "".
        notes: limits.
    """

    architecture: str
    model_type: str
    schemes: dict[str, tuple[str, ...]]
    batching: str
    notes: tuple[str, ...]


def support() -> Iterator[Support]:
    """Yield the rows: first what is converted, in the order of the registry, then what is only sized."""
    for architecture in ARCHITECTURES:
        arch = lookup(architecture, where="")
        notes = [] if arch.has_pipeline else ["pp 1 only"]
        notes += [] if architecture in SERVED else ["TensorRT-LLM 1.2's PyTorch backend has no such model"]
        notes += [f"unverified: {arch.unverified}"] if arch.unverified else []
        notes += ["embedding always cut with tp"] if arch.shards_embedding else []
        has_experts = any(rule.is_per_expert for rule in arch.rules)
        if not (arch.has_smoothquant_layers or has_experts):
            notes += ["int8_smoothquant in mode per_channel only"]
        batching = "static" if arch.model_type in STATIC_BATCHES else "continuous"
        schemes = {target: _schemes(target, has_experts=has_experts) for target in TARGETS}
        yield Support(architecture, arch.model_type, schemes, batching, tuple(notes))
    for architecture, reason in SIZED_ONLY.items():
        yield Support(architecture, "", dict.fromkeys(TARGETS, ()), "", (f"`plan` only: {reason}",))


def _schemes(target: str, *, has_experts: bool) -> tuple[str, ...]:
    """Return the schemes of a target that all linears of an architecture can have."""
    number = tuple(LAYOUT_NAMES).index(LAYOUTS[target])
    return tuple(name for name in _SCHEMES[target] if not has_experts or load_scheme(name).has_experts[number])


def _words(schemes: tuple[str, ...], target: str) -> str:
    """Word a set of schemes by what is missing from all that the target has a form for."""
    missing = [name for name in _SCHEMES[target] if name not in schemes]
    if not schemes:
        return "-"
    return f"all but {', '.join(missing)}" if missing else "all"


def forms() -> tuple[list[str], list[list[str]]]:
    """Return header and cells of the table of schemes: what each target has a form for."""
    marks = [[name, *("yes" if name in _SCHEMES[target] else "-" for target in TARGETS)] for name in QUANTIZATIONS]
    return ["scheme", *TARGETS], marks


def modes() -> tuple[list[str], list[list[str]]]:
    """Return header and cells of the table of SmoothQuant's modes: what TensorRT-LLM calls them, and which targets have a form."""
    cells = []
    for mode, algorithm in SMOOTHQUANT_MODES.items():
        scheme = load_scheme("int8_smoothquant", SchemeOptions(smoothquant_mode=mode))
        has_form = {"ranks": bool(scheme.ranks), "unified": bool(scheme.unified and not scheme.unified.unverified)}
        cells.append([mode, algorithm, *("yes" if has_form[LAYOUTS[target]] else "-" for target in TARGETS)])
    return ["int8_smoothquant mode", "algorithm", *TARGETS], cells


def rows() -> tuple[list[str], list[list[str]]]:
    """Return header and cells of the table as text."""
    header = ["architecture", *TARGETS, "reference batches", "notes"]
    cells = []
    for each in support():
        schemes = [_words(each.schemes[target], target) for target in TARGETS]
        cells.append([each.architecture, *schemes, each.batching or "-", "; ".join(each.notes)])
    return header, cells


def markdown() -> str:
    """Return all tables in Markdown."""
    return "\n".join(_table(*table) for table in (forms(), modes(), rows()))


def _table(header: list[str], cells: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *cells]
    return "".join(f"| {' | '.join(cell or ' ' for cell in line)} |\n" for line in lines)
