"""Whether two runs were of the same work: only then is one of them faster."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtbuild_client.load.outcomes import Mark
from trtbuild_client.load.result import Stored
from trtbuild_client.load.table import NONE

#: What must be equal: where it is in a result, key, and what it is called. A key that a result lacks is not looked at.
_EQUAL = (
    ("endpoint", "api", "API"),
    ("endpoint", "model", "model"),
    ("load", "streamed", "streaming"),
    ("load", "kind", "kind of load"),
    ("load", "concurrency", "concurrency"),
    ("load", "process", "arrivals"),
    ("load", "rate", "rate"),
    ("load", "end_rate", "last rate"),
    ("load", "burstiness", "burstiness"),
    ("load", "dataset", "prompts"),
)
#: Columns of lengths: means of both runs must agree.
_LENGTHS = {"planned_tokens": "tokens of a prompt", "max_tokens": "tokens asked for"}
#: Means agree within this share, or within so many standard errors of their difference where lengths are drawn.
_SHARE, _ERRORS = 0.05, 3.0


def differences(a: Stored, b: Stored) -> list[str]:
    """Return in what the work of two runs differs, for people; nothing when it is the same."""
    return [*_unequal(a, b), *_unlike(a, b)]


def _unequal(a: Stored, b: Stored) -> Iterator[str]:
    for part, key, name in _EQUAL:
        sides = [_part(each, part).get(key) for each in (a, b)]
        if None not in sides and sides[0] != sides[1]:
            yield f"{name}: {_said(sides[0])} and {_said(sides[1])}"


def _part(run: Stored, name: str) -> dict[str, Any]:
    return run.endpoint if name == "endpoint" else run.summary["load"]


def _said(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _unlike(a: Stored, b: Stored) -> Iterator[str]:
    for column, name in _LENGTHS.items():
        sides = [_lengths(each, column) for each in (a, b)]
        if not all(len(each) for each in sides):
            continue
        means = [float(each.mean()) for each in sides]
        error = math.sqrt(sum(float(each.var()) / len(each) for each in sides))
        if abs(means[0] - means[1]) > max(_SHARE * max(means), _ERRORS * error):
            yield f"{name}: {means[0]:.4g} and {means[1]:.4g} on average"


def _lengths(run: Stored, column: str) -> NDArray[np.int64]:
    """Return the known values of the requests that were not warm-up."""
    values, marks = (np.array(run.table.columns[name], np.int64) for name in (column, "marks"))
    kept: NDArray[np.int64] = values[(values != NONE) & (marks & Mark.WARMUP == 0)]
    return kept
