"""One line of a memory estimate: a name, bytes, who decided it, and the formula in words. Knows nothing of models."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

#: Who decided a value: trtbuild.yaml, a default, the model, a rule over other values, or a limit of the engine or server.
Origin = Literal["user", "default", "model", "rule", "engine limit"]
#: exact: counted; estimate: a formula with a stated error; measured: a number out of a published log.
Ground = Literal["exact", "estimate", "measured"]


@dataclass(frozen=True)
class Line:
    """Bytes that something takes on one GPU.

    Attributes:
        name: what takes them.
        nbytes: how many.
        origin: who decided the size.
        formula: how they come about, in words.
        ground: how sure they are.
    """

    name: str
    nbytes: int
    origin: Origin
    formula: str
    ground: Ground = "estimate"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "name": self.name,
            "bytes": self.nbytes,
            "origin": self.origin,
            "formula": self.formula,
            "ground": self.ground,
        }


def total(lines: Iterable[Line]) -> int:
    """Return the bytes of several lines."""
    return sum(line.nbytes for line in lines)
