"""Which rules to apply: names and patterns such as `ensemble-*`, chosen and left out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from fnmatch import fnmatchcase

from trtbuild.errors import UsageError
from trtbuild.repo.lint.findings import Rule
from trtbuild.repo.lint.rules import PAGE, RULES


def choose(select: Iterable[str] = (), ignore: Iterable[str] = ()) -> frozenset[str]:
    """Return the ids of the rules that are selected (all, when none is named) and not ignored.

    Args:
        select: ids or patterns, also several with commas between them.
        ignore: the same.

    Raises:
        UsageError: one fits no rule.
    """
    chosen = _expand(select)
    return (chosen or frozenset(RULES)) - _expand(ignore)


def find_rule(name: str) -> Rule:
    """Return a rule.

    Raises:
        UsageError: there is none of that id.
    """
    if name not in RULES:
        raise _unknown(name)
    return RULES[name]


def explain(name: str) -> str:
    """Return what there is to say about a rule, as lines of text.

    Raises:
        UsageError: there is none of that id.
    """
    rule = find_rule(name)
    release = ["Says nothing unless the release of TensorRT-LLM is known."] if rule.needs_release else []
    return "\n".join([f"{name} ({rule.severity}): finds {rule.finds}.", "", rule.why, *release, "", rule.mend, "", f"{PAGE}#{name}"])  # fmt: skip


def _expand(patterns: Iterable[str]) -> frozenset[str]:
    found: set[str] = set()
    for pattern in (part.strip() for text in patterns for part in text.split(",")):
        matching = {name for name in RULES if fnmatchcase(name, pattern)}
        if not matching:
            raise _unknown(pattern)
        found |= matching
    return frozenset(found)


def _unknown(name: str) -> UsageError:
    near = difflib.get_close_matches(name, RULES, n=3, cutoff=0.5)
    return UsageError(
        f"there is no lint rule '{name}'", hint=f"near: {', '.join(near)}" if near else f"all are in {PAGE}"
    )
