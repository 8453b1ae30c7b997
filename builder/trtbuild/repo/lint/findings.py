"""What a lint rule reports."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        rule: id of the rule, e.g. "ensemble-unknown-tensor".
        severity: an error stops the server or breaks requests; a warning is likely a mistake.
        file: relative to the repository.
        message: what is wrong, with the value seen.
        fix: what to do.
    """

    rule: str
    severity: Severity
    file: str
    message: str
    fix: str

    def as_json(self) -> dict[str, str]:
        """Return the finding as plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Problem:
    """A finding before it knows its rule: what one rule yields."""

    file: str
    message: str
    fix: str
