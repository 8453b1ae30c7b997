"""How an argument of the LLM API is described: its type, its values, and the releases that have it.

Knows no argument and compares no versions: `Release.within` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from trtbuild.trtllm.versions import Evidence, Release, Span

#: Whether a release has an argument; unclear where the sources that were read lie on both sides of it.
State = Literal["present", "unclear", "absent"]
Kind = Literal["bool", "int", "number", "text", "list of int", "list of text", "mapping", "any", "section"]


@dataclass(frozen=True, slots=True)
class Life:
    """When an argument, or a value of one, exists.

    Attributes:
        span: releases that have it for sure.
        unclear: releases between two copies of the source that differ.
    """

    span: Span
    unclear: Span | None = None

    def state(self, release: Release) -> State:
        """Return whether a release has it."""
        if release.within(self.span):
            return "present"
        return "unclear" if self.unclear is not None and release.within(self.unclear) else "absent"


_BOTH = "source of 1.1, 1.2 and 1.4 candidates"
EVER = Life(Span(None, None, "known", _BOTH))
SINCE_1_1 = Life(
    Span("1.1.0", None, "inferred", "read in source of 1.1 or later"),
    Span(None, "1.1.0", "inferred", "not read in source of 1.0"),
)
SINCE_1_2 = Life(
    Span("1.2.0", None, "inferred", "read in 1.2-era source"),
    Span(None, "1.2.0", "inferred", "not read in older source"),
)
NEW_IN_1_1 = Life(Span("1.1.0", None, "inferred", "the 1.0 copy has no such value"))
NEW_IN_1_2 = Life(Span("1.2.0", None, "inferred", "calendar of renames: 1.2"))
SINCE_1_3 = Life(
    Span("1.3.0rc0", None, "inferred", "calendar of renames: 1.3"), Span("1.2.0", "1.3.0rc0", "inferred", "")
)
NEWEST = Life(
    Span("1.4.0rc0", None, "inferred", "in newest source, not in 1.2-era source"),
    Span("1.3.0rc2", "1.4.0rc0", "inferred", "between the two copies"),
)
#: Documented by the beginning of its name only.
BY_PREFIX = Life(
    Span("99.0.0", None, "inferred", "named by its beginning only, for mid 2026"),
    Span("1.3.0rc2", None, "inferred", "newest source"),
)
RC4 = Life(Span("1.4.0rc4", None, "known", "documentation of 1.4.0rc4"))
ONLY_1_0 = Life(Span(None, "1.1.0", "inferred", "the 1.0 copy; replaced in 1.1"))
UNTIL_1_2 = Life(Span(None, "1.2.0", "inferred", "older source; another name in 1.2-era source"))
UNTIL_1_3 = Life(
    Span(None, "1.3.0rc0", "inferred", "calendar of removals: 1.3"), Span("1.3.0rc0", "1.4.0rc0", "inferred", "")
)
ONLY_1_2 = Life(
    Span("1.2.0", "1.3.0rc0", "inferred", "1.2-era source only"), Span("1.3.0rc0", "1.4.0rc0", "inferred", "")
)
UNTIL_RC21 = Life(Span(None, "1.3.0rc21", "known", "release notes of the removal of engines"))
SAMPLER = Life(Span("1.1.0", "1.3.0rc21", "inferred", "field tables of 1.1 to 1.3"))


@dataclass(frozen=True, slots=True)
class Value:
    """One allowed value of a text argument."""

    name: str
    life: Life = EVER


@dataclass(frozen=True, slots=True)
class Arg:
    """One argument.

    Attributes:
        kind: what may be written; null is always allowed where `nullable`.
        values: the allowed texts; empty: any text.
        low, high: bounds of a number, both included.
        default: in words, for people.
        section: for kind "section": the table of what is inside.
        life: the releases that have it.
        renamed_to: what it is called in releases after its life.
        refused: why it cannot be given although TensorRT-LLM has it; empty: it can.
        note: what its user should know.
    """

    kind: Kind
    values: tuple[Value, ...] = ()
    low: float | None = None
    high: float | None = None
    default: str = ""
    section: str = ""
    nullable: bool = True
    life: Life = EVER
    renamed_to: str = ""
    refused: str = ""
    note: str = ""

    @property
    def evidence(self) -> Evidence:
        """Whether the life was read or concluded."""
        return self.life.span.evidence

    def allowed(self, release: Release) -> tuple[str, ...]:
        """Return the texts that a release takes; empty when any text goes."""
        return tuple(value.name for value in self.values if value.life.state(release) != "absent")

    def problem(self, value: Any, release: Release) -> str:
        """Return what is wrong with a value, worded as "is ...", or nothing."""
        if value is None:
            return "" if self.nullable else "is null"
        if not _IS[self.kind](value):
            return f"is {type(value).__name__}, need {_WORDS[self.kind]}"
        if self.kind in ("int", "number") and not (
            (self.low is None or value >= self.low) and (self.high is None or value <= self.high)
        ):
            return f"is out of range, need {_bounds(self.low, self.high)}"
        allowed = self.allowed(release)
        texts = value if self.kind == "list of text" else [value] if self.kind == "text" else []
        wrong = [text for text in texts if self.values and not any(_matches(name, text) for name in allowed)]
        return f"is not allowed in TensorRT-LLM {release}: use {', '.join(allowed)}" if wrong else ""


def _matches(name: str, given: str) -> bool:
    return given.startswith(name[:-1]) if name.endswith("*") else given == name


def row_of(table: Mapping[str, Arg], key: str) -> Arg | None:
    """Return the row of a key; a row may be named by the beginning of its name, with a star."""
    return table.get(key) or next(
        (arg for name, arg in table.items() if name.endswith("*") and _matches(name, key)), None
    )


def _bounds(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return f"{low:g} or more" if low is not None else f"at most {high:g}"
    return f"{low:g} to {high:g}"


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_IS: dict[Kind, Any] = {
    "bool": lambda value: isinstance(value, bool),
    "int": _is_int,
    "number": lambda value: _is_int(value) or isinstance(value, float),
    "text": lambda value: isinstance(value, str),
    "list of int": lambda value: isinstance(value, list) and all(map(_is_int, value)),
    "list of text": lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
    "mapping": lambda value: isinstance(value, dict),
    "section": lambda value: isinstance(value, dict),
    "any": lambda value: True,
}
_WORDS: dict[Kind, str] = {
    "bool": "true or false", "int": "a whole number", "number": "a number", "text": "a text", "list of int": "a list of whole numbers",
    "list of text": "a list of texts", "mapping": "a mapping", "section": "a mapping", "any": "anything",
}  # fmt: skip


def flag(default: str = "false", life: Life = EVER, **more: Any) -> Arg:
    """Return a boolean argument."""
    return Arg("bool", default=default, life=life, nullable=False, **more)


def integer(default: str = "", low: float | None = None, high: float | None = None, life: Life = EVER, **more: Any) -> Arg:  # fmt: skip
    """Return a whole number."""
    return Arg("int", low=low, high=high, default=default, life=life, **more)


def number(default: str = "", low: float | None = None, high: float | None = None, life: Life = EVER, **more: Any) -> Arg:  # fmt: skip
    """Return a number."""
    return Arg("number", low=low, high=high, default=default, life=life, **more)


def text(*values: str | Value, default: str = "", life: Life = EVER, **more: Any) -> Arg:
    """Return a text, one of some values if any are named."""
    return Arg("text", values=_values(values), default=default, life=life, **more)


def numbers(default: str = "", life: Life = EVER, **more: Any) -> Arg:
    """Return a list of whole numbers."""
    return Arg("list of int", default=default, life=life, **more)


def texts(*values: str | Value, default: str = "", life: Life = EVER, **more: Any) -> Arg:
    """Return a list of texts."""
    return Arg("list of text", values=_values(values), default=default, life=life, **more)


def mapping(life: Life = EVER, **more: Any) -> Arg:
    """Return a mapping whose keys are not checked."""
    return Arg("mapping", life=life, **more)


def anything(life: Life = EVER, **more: Any) -> Arg:
    """Return an argument whose type was not read."""
    return Arg("any", life=life, **more)


def section(name: str, life: Life = EVER, **more: Any) -> Arg:
    """Return a nested object with a table of its own."""
    return Arg("section", section=name, life=life, **more)


def in_(life: Life, **args: Arg) -> dict[str, Arg]:
    """Return arguments that all have the same life."""
    return {name: replace(arg, life=life) for name, arg in args.items()}


def _values(values: tuple[str | Value, ...]) -> tuple[Value, ...]:
    return tuple(Value(value) if isinstance(value, str) else value for value in values)
