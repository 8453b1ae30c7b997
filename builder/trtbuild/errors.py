"""Errors raised on purpose. Knows exit codes; knows nothing about how an error is printed.

A message says what failed and the value seen; the hint says what is allowed and what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any


class TrtbuildError(Exception):
    """A failure the user can act on; ends the command with `exit_code` and no traceback.

    Args:
        message: what failed, with the value seen.
        hint: what is allowed and what to do; printed on a line of its own.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


#: Hint where none of the ways works.
_NOTHING = "of what comes nearest nothing works here: use another model, GPU or release"


@dataclass(frozen=True, slots=True)
class Way:
    """A change with which a request may be possible.

    Attributes:
        words: the change as the user makes it, e.g. "--quantization fp8".
        settings: dotted keys of trtbuild.yaml -> values, as a program makes it.
        kind: of several of one kind the first that works is named.
    """

    words: str
    settings: Mapping[str, Any]
    kind: str = ""


class UsageError(TrtbuildError):
    """The request itself is wrong: an unknown key, an impossible option, a missing argument (exit code 2).

    Args:
        message: what failed, with the value seen.
        hint: what helps in any case.
        ways: changes that may help; who knows the whole request tries them (`trtbuild.ways`) before they are named.
    """

    exit_code = 2

    def __init__(self, message: str, *, hint: str = "", ways: Iterable[Way] = ()) -> None:
        self.ways = tuple(ways)
        self._always = hint
        super().__init__(message, hint=_joined(self.ways, hint))

    def keeping(self, works: Callable[[Way], bool]) -> UsageError:
        """Return the error with those of its ways that work, the first of each kind."""
        kept = _firsts(self.ways, works)
        return UsageError(self.message, hint=self._always if kept or self._always else _NOTHING, ways=kept)


def _firsts(ways: Iterable[Way], works: Callable[[Way], bool]) -> list[Way]:
    kept: list[Way] = []
    for way in ways:
        if not any(way.kind and other.kind == way.kind for other in kept) and works(way):
            kept.append(way)
    return kept


def _joined(ways: Iterable[Way], hint: str) -> str:
    named = [way.words for way in _firsts(ways, lambda way: True)]
    return "; ".join(filter(None, (*dict.fromkeys(named), hint)))


class Lacking(TrtbuildError):
    """The work needs something beside its inputs, a package or a tokenizer, that is not here; a plan says so behind its sizes."""


class CheckFailed(TrtbuildError):
    """A check did its work and found something (exit code 3)."""

    exit_code = 3


class ToolFailed(TrtbuildError):
    """A program that trtbuild needs is missing or failed; what was made before it is good, and the same command can go on from there."""
