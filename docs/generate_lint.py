"""Writes the rules of docs/lint.md from the registry: python docs/generate_lint.py"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trtbuild.repo.lint.findings import Rule
from trtbuild.repo.lint.rules import RULES, SECTIONS

PAGE = Path(__file__).with_name("lint.md")
_BEGIN, _END = "<!-- rules: generated -->", "<!-- rules: end -->"


def page() -> str:
    """Return the whole page with its rules as the registry has them."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    after = rest.partition(_END)[2]
    return f"{before}{_BEGIN}\n\n" + "\n".join(_lines()) + f"\n{_END}{after}"


def _lines() -> Iterator[str]:
    yield "| Rule | | Finds |"
    yield "|---|---|---|"
    for name, rule in RULES.items():
        yield f"| [`{name}`](#{name}) | {rule.severity} | {rule.finds.replace('|', chr(92) + '|')} |"
    for title, modules in SECTIONS.items():
        yield from ("", f"## {title}", "")
        for module in modules:
            for name, rule in module.RULES.items():
                yield from _rule(name, rule)


def _rule(name: str, rule: Rule) -> Iterator[str]:
    release = " Needs to know the release of TensorRT-LLM." if rule.needs_release else ""
    yield from (f"### {name}", "", f"*{rule.severity}*: {rule.finds}.{release}", "", rule.why, "", rule.mend, "")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
