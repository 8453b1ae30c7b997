"""The table of number formats, targets and GPUs, as data and as text.

Printed by `trtbuild architectures --gpus`; docs/gpus.md holds the same table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trtbuild.gpus import GPUS
from trtbuild.hardware import FAMILIES, KV_CACHE, SCHEME, Kind, State, Verdict, verdict

_KINDS = (SCHEME, KV_CACHE)
_WORDS: dict[State, str] = {"supported": "yes", "impossible": "no", "undocumented": "maybe"}


def data() -> dict[str, Any]:
    """Return GPU name -> SM number, and a verdict for every format, target and SM."""
    formats = [
        {"kind": kind.word, "name": name, "target": target, "sm": sm, "state": cell.state, "why": cell.why}
        for kind, name, target in _lines()
        for sm in _numbers()
        for cell in [verdict(kind, name, target=target, sm=sm)]
    ]
    return {"gpus": GPUS, "formats": formats}


def rows() -> tuple[list[str], list[list[str]], list[str]]:
    """Return header, cells and reasons; a cell that is not "yes" ends with the number of its reason."""
    reasons: dict[str, int] = {}

    def word(cell: Verdict) -> str:
        if not cell.why:
            return _WORDS[cell.state]
        return f"{_WORDS[cell.state]} ({reasons.setdefault(cell.why, len(reasons) + 1)})"

    header = ["format", "target", *(f"sm{'/'.join(map(str, sms))}" for sms in FAMILIES.values())]
    cells = [
        [
            name if kind is SCHEME else f"{kind.word} {name}",
            target,
            *(word(verdict(kind, name, target=target, sm=sms[0])) for sms in FAMILIES.values()),
        ]
        for kind, name, target in _lines()
    ]
    return header, cells, list(reasons)


def names() -> list[str]:
    """Return one line per SM number with the GPUs that have it."""
    return [f"sm{sm}: {', '.join(name for name, number in GPUS.items() if number == sm)}" for sm in _numbers()]


def markdown() -> str:
    """Return the table, the reasons and the names in Markdown."""
    header, cells, reasons = rows()
    lines = [header, ["---"] * len(header), *cells]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    numbered = "".join(f"{number}. {reason}.\n" for number, reason in enumerate(reasons, start=1))
    listed = "".join(f"* {line}\n" for line in names())
    return f"{table}\n{numbered}\n{listed}"


def _lines() -> Iterator[tuple[Kind, str, str]]:
    for kind in _KINDS:
        for name, targets in kind.table.items():
            for target in targets:
                yield kind, name, target


def _numbers() -> list[int]:
    return [sm for sms in FAMILIES.values() for sm in sms]
