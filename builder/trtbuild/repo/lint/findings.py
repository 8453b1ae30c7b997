"""What a lint rule is, and what it reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from trtbuild.repo.lint.repository import Repository

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of a text that is safe: what the server does with it stays what it would do, or it begins to load.

    Attributes:
        start: offset of the first character to replace.
        end: offset behind the last.
        text: what takes their place.
        does: what it does, for people.
    """

    start: int
    end: int
    text: str
    does: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        rule: id of the rule, e.g. "ensemble-tensor".
        severity: an error stops the server or breaks requests; a warning is likely a mistake, or could only be concluded.
        file: relative to the repository.
        message: what is wrong, with the value seen.
        fix: what to do.
        line: where in the file, from 1; 0 when it is no particular line.
        edit: a change that mends it, None when a person has to.
    """

    rule: str
    severity: Severity
    file: str
    message: str
    fix: str
    line: int = 0
    edit: Edit | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the finding as plain data."""
        plain = asdict(self)
        plain["fixable"] = plain.pop("edit") is not None
        return plain

    @property
    def place(self) -> str:
        """The file, with the line where there is one."""
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Problem:
    """A finding before it knows its rule: what one rule yields. `severity` differs from the rule's where the case is less sure."""

    file: str
    message: str
    fix: str
    line: int = 0
    edit: Edit | None = None
    severity: Severity | None = None


Check = Callable[["Repository"], Iterator[Problem]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule.

    Attributes:
        severity: of what it finds, unless a problem says otherwise.
        check: yields what is wrong; never raises, never writes.
        finds: what it finds, in one line.
        why: what happens when it is not mended, and how that is known.
        mend: what to do.
        needs_release: whether it says nothing unless the release of TensorRT-LLM is known.
    """

    severity: Severity
    check: Check
    finds: str
    why: str
    mend: str
    needs_release: bool = False
