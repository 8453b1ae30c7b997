"""One thing that is wrong with a deployment. Knows nothing of deployments."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trtbuild.errors import UsageError


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, with the value seen, and what to do."""

    message: str
    hint: str


def require_none(faults: Iterable[Fault]) -> None:
    """Raise UsageError that names all faults, unless there are none."""
    found = list(faults)
    if found:
        hints = dict.fromkeys(fault.hint for fault in found)
        raise UsageError("; ".join(fault.message for fault in found), hint="; ".join(hints))
