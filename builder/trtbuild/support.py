"""What can be converted to what: one row per architecture, from the registries alone.

Printed by `trtbuild architectures`; docs/architectures.md holds the same table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trtbuild.arch.registry import ARCHITECTURES, lookup
from trtbuild.arch.sized import SIZED_ONLY
from trtbuild.convert.unified_plan import SERVED
from trtbuild.names import QUANTIZATIONS, TARGETS, available
from trtbuild.quant.scheme import load_scheme
from trtbuild.quant.unified import unified_schemes
from trtbuild.reference.support import STATIC_BATCHES

_RANKED = tuple(name for name in available(QUANTIZATIONS) if load_scheme(name).ranks)
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
        batching = "static" if arch.model_type in STATIC_BATCHES else "continuous"
        yield Support(architecture, arch.model_type, dict(_SCHEMES), batching, tuple(notes))
    for architecture, reason in SIZED_ONLY.items():
        yield Support(architecture, "", dict.fromkeys(TARGETS, ()), "", (f"`plan` only: {reason}",))


def rows() -> tuple[list[str], list[list[str]]]:
    """Return header and cells of the table as text."""
    header = ["architecture", *TARGETS, "reference batches", "notes"]
    cells = []
    for each in support():
        schemes = [", ".join(each.schemes[target]) or "-" for target in TARGETS]
        cells.append([each.architecture, *schemes, each.batching or "-", "; ".join(each.notes)])
    return header, cells


def markdown() -> str:
    """Return the table in Markdown."""
    header, cells = rows()
    lines = [header, ["---"] * len(header), *cells]
    return "".join(f"| {' | '.join(cell or ' ' for cell in line)} |\n" for line in lines)
