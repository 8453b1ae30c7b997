"""Writes the tables of docs/engines.md from the code: python docs/generate_engine_options.py"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from trtbuild.trtllm.build_failures import FAILURES
from trtbuild.trtllm.build_options import CALLER, ELSEWHERE, FIXED, OPTIONS
from trtbuild.trtllm.versions import FEATURES, RELEASES, Feature

PAGE = Path(__file__).with_name("engines.md")
_BEGIN, _END = "<!-- {name}: generated -->", "<!-- {name}: end -->"


def page() -> str:
    """Return the whole page with its tables as the code has them."""
    text = PAGE.read_text(encoding="utf-8")
    for name, rows in {
        "options": _options(),
        "elsewhere": _elsewhere(),
        "releases": _releases(),
        "failures": _failures(),
    }.items():
        begin, end = _BEGIN.format(name=name), _END.format(name=name)
        before, _, rest = text.partition(begin)
        after = rest.partition(end)[2]
        text = f"{before}{begin}\n" + "".join(f"{row}\n" for row in rows) + f"{end}{after}"
    return text


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    head = list(head)
    return [_row(head), "|" + "---|" * len(head), *map(_row, rows)]


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _options() -> list[str]:
    def span(option: object) -> str:
        feature = getattr(option, "needs", None)
        return f"from {FEATURES[feature].since}" if feature else "all"

    places = {CALLER: "(trtbuild)", FIXED: "(always the same)"}
    return _table(
        ("option", "kind", "field", "releases", "evidence"),
        (
            (
                f"`--{option.name}`",
                option.kind,
                places.get(option.place, f"`{option.place}`"),
                span(option),
                option.evidence,
            )
            for option in OPTIONS
        ),
    )


def _elsewhere() -> list[str]:
    return _table(("field", "who reads it"), ((f"`{field}`", reader) for field, reader in ELSEWHERE.items()))


def _releases() -> list[str]:
    return _table(
        ("release", "TensorRT", "CUDA", "newest container", "driver", "evidence"),
        (
            (
                release.name, release.tensorrt, release.cuda, release.container.tag if release.container else "none known",
                release.container.driver if release.container else "", release.evidence,
            )
            for release in RELEASES
            if release.has(Feature.ENGINE)
        ),
    )  # fmt: skip


def _failures() -> list[str]:
    return _table(("cause", "what to do", "source"), ((each.cause, each.remedy, each.source) for each in FAILURES))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
