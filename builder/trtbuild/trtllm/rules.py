"""What a rule about jobs is, and how a table of them is applied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from trtbuild.errors import UsageError, Way
from trtbuild.targets.base import Job


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        source: where it is written down.
        applies: whether a job breaks it, or must know of it.
        text: what is wrong, with the values seen.
        hint: what to do in any case; empty for a note.
        ways: what may help; see `errors.Way`.
    """

    source: str
    applies: Callable[[Job], bool]
    text: Callable[[Job], str]
    hint: Callable[[Job], str] | str = ""
    ways: tuple[Way, ...] = ()


def check_rules(job: Job, errors: Iterable[Rule], notes: Iterable[Rule] = ()) -> list[str]:
    """Return the notes that apply.

    Raises:
        UsageError: a rule is broken; all that are broken are named.
    """
    broken = list(_applying(job, errors))
    if broken:
        hints = [rule.hint if isinstance(rule.hint, str) else rule.hint(job) for rule in broken]
        raise UsageError(
            "; ".join(rule.text(job) for rule in broken),
            hint="; ".join(filter(None, dict.fromkeys(hints))),
            ways=[way for rule in broken for way in rule.ways],
        )
    return [rule.text(job) for rule in _applying(job, notes)]


def _applying(job: Job, rules: Iterable[Rule]) -> Iterator[Rule]:
    return (rule for rule in rules if rule.applies(job))
