"""The highest rate that meets objectives: a bisection whose every point is measured until it is decided. Pure: whoever measures is given.

At a point, each objective asks that at most a share of values is above its limit. The share is looked at after 100, 200, 400 ... requests
with an interval that allows for neighbours being alike (a queue that is long stays long for a while) and for looking several times (each
look gets an equal part of the error, Bonferroni). A point ends when the interval lies on one side for every objective, or one objective is
missed, or the requests are used up: then the estimate decides, and the result says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trtbuild_client.errors import InvalidRequest
from trtbuild_client.load.intervals import share_bounds

Verdict = Literal["met", "missed", "open"]
_FIRST_LOOK = 100
_BATCHES = 20
#: The first share of the requests of a point is left out: the queue is still filling.
_SKIPPED = 0.1
#: How long a point must be, in the length for which neighbours are alike, and where the sum over it is cut.
_MIN_SPANS, _WINDOW = 50, 5
#: A share above the limit that is an overload and no burst.
_OVERLOADED = 0.5
_GROWTH = 2.0
#: Doublings or halvings before the search gives up.
_MAX_STEPS = 24


@dataclass(frozen=True)
class Sample:
    """What requests say about one objective, in the order in which they were due.

    Attributes:
        bad: values above the limit of each request; a failed request has all its values above it.
        weight: values of each request.
        level: a typical value of each request, for how long neighbours stay alike.
        allowed: share that may be above.
        name: of the objective.
    """

    bad: NDArray[np.float64]
    weight: NDArray[np.float64]
    level: NDArray[np.float64]
    allowed: float
    name: str = ""


@dataclass(frozen=True, slots=True)
class Share:
    """The share of values above a limit, with its interval."""

    name: str
    estimate: float
    low: float
    high: float
    allowed: float

    @property
    def verdict(self) -> Verdict:
        """Whether the interval decides."""
        return "met" if self.high <= self.allowed else "missed" if self.low > self.allowed else "open"


@dataclass(frozen=True, slots=True)
class Point:
    """One rate.

    Attributes:
        is_decided: by its interval, not only by its estimate.
    """

    rate: float
    is_met: bool
    is_decided: bool
    requests: int
    shares: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the search found: the objectives are met at `low` and missed at `high`, requests per second.

    Attributes:
        low: 0 when no rate that was tried met them.
        high: infinite when none that was tried missed them.
    """

    low: float
    high: float
    points: tuple[Point, ...]
    objectives: tuple[str, ...]
    stopped_because: str

    def text(self) -> str:
        """Return the answer as a sentence."""
        goal = " and ".join(self.objectives)
        if self.low == 0:
            return f"not even {self.high:.3g} requests/s meet {goal}"
        if math.isinf(self.high):
            return f"holds at least {self.low:.3g} requests/s at {goal}: {self.stopped_because}"
        open_ = sum(not each.is_decided for each in self.points)
        doubt = f"; {open_} of {len(self.points)} rates were decided by their estimate only" if open_ else ""
        return f"holds {self.low:.3g}-{self.high:.3g} requests/s at {goal} ({self.stopped_because}{doubt})"

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "low_requests_per_s": self.low,
            "high_requests_per_s": None if math.isinf(self.high) else self.high,
            "objectives": list(self.objectives),
            "stopped_because": self.stopped_because,
            "points": [
                {
                    "rate": each.rate,
                    "met": each.is_met,
                    "decided": each.is_decided,
                    "requests": each.requests,
                    "shares": [
                        {"objective": s.name, "above": s.estimate, "low": s.low, "high": s.high, "allowed": s.allowed}
                        for s in each.shares
                    ],
                }
                for each in self.points
            ],
        }


def looks(requests: int) -> list[int]:
    """Return after how many requests a point of at most so many is looked at."""
    numbers = []
    number = _FIRST_LOOK
    while number < requests:
        numbers.append(number)
        number *= 2
    return [*numbers, requests]


def share_of(sample: Sample, confidence: float) -> Share:
    """Return the share above the limit, with an interval for requests that resemble their neighbours."""
    skipped = round(len(sample.bad) * _SKIPPED)
    bad, weight = sample.bad[skipped:], sample.weight[skipped:]
    total = float(weight.sum())
    if total <= 0:
        return Share(sample.name, 0.0, 0.0, 1.0, sample.allowed)
    estimate = float(bad.sum()) / total
    alike = alike_for(sample.level[skipped:])
    effective = min(_effective(bad, weight, estimate, total), len(bad) / alike)
    low, high = share_bounds(estimate * effective, effective, confidence)
    if len(bad) < _MIN_SPANS * alike:  # not seen for long enough: a queue begins empty, and one burst is no overload
        low, high = (low if estimate > _OVERLOADED else 0.0), 1.0
    return Share(sample.name, estimate, low, high, sample.allowed)


def alike_for(level: NDArray[np.float64]) -> float:
    """Return for how many requests neighbours stay alike, at least 1: the integrated autocorrelation time of the ranks.

    The sum is cut where its length is 5 times its value (Sokal, Monte Carlo Methods in Statistical Mechanics, 1996, section 3; it is
    reliable for series of 50 times that length).
    """
    n = len(level)
    if n < 2:
        return 1.0
    _, position, number = np.unique(level, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(number) - number / 2)[position]  # equal values share the middle of their ranks
    ranks -= ranks.mean()
    if not ranks.any():
        return 1.0
    spectrum = np.fft.rfft(ranks, 2 * n)
    correlation = np.fft.irfft(spectrum * np.conj(spectrum))[:n]
    sums = 2 * np.cumsum(correlation / correlation[0]) - 1
    window = np.flatnonzero(np.arange(n) >= _WINDOW * sums)
    return float(max(1.0, sums[window[0]] if len(window) else n))


def _effective(bad: NDArray[np.float64], weight: NDArray[np.float64], estimate: float, total: float) -> float:
    """Return how many independent values say as much about the share; at most as many as there are requests."""
    batches = min(_BATCHES, len(bad) // 5)
    if batches < 2:
        return float(min(len(bad), 1))
    if not 0 < estimate < 1:
        return float(len(bad))
    residual = np.array([part.sum() for part in np.array_split(bad - estimate * weight, batches)])
    variance = batches / (batches - 1) * float((residual**2).sum()) / total**2
    # Few batches know their own variance badly: Student's t instead of the normal quantile, as a factor on the variance.
    variance *= (1 + 1.0 / (batches - 1)) ** 2
    plain = estimate * (1 - estimate)
    return float(min(len(bad), max(1.0, plain / variance))) if variance > 0 else float(len(bad))


def judge(samples: Sequence[Sample], *, rate: float, number_of_looks: int, error: float, is_last: bool) -> Point | None:
    """Return the point if it is decided, or if this is its last look; else None.

    Args:
        samples: of each objective.
        rate: of the point.
        number_of_looks: among which the error is divided.
        error: probability of a wrong decision at a point.
        is_last: no more requests follow.
    """
    confidence = 1 - error / number_of_looks
    shares = tuple(share_of(each, confidence) for each in samples)
    verdicts = [each.verdict for each in shares]
    requests = max((len(each.bad) for each in samples), default=0)
    if "missed" in verdicts:
        return Point(rate, is_met=False, is_decided=True, requests=requests, shares=shares)
    if all(verdict == "met" for verdict in verdicts):
        return Point(rate, is_met=True, is_decided=True, requests=requests, shares=shares)
    if not is_last:
        return None
    is_met = all(each.estimate <= each.allowed for each in shares)
    return Point(rate, is_met=is_met, is_decided=False, requests=requests, shares=shares)


def search(
    measure: Callable[[float], Point],
    *,
    start: float,
    objectives: Sequence[str],
    tolerance: float = 0.05,
    max_points: int = 40,
) -> Capacity:
    """Return the capacity.

    The rate is doubled until it is missed (or halved until it is met), then the span is halved on a logarithmic scale until it is within
    `tolerance`.

    Args:
        measure: decides one rate.
        start: first rate, requests per second.
        objectives: for the text.
        tolerance: share by which `high` may be above `low`.
        max_points: rates that are tried at most.

    Raises:
        InvalidRequest: a rate or a tolerance that cannot be.
    """
    if not (start > 0 and math.isfinite(start) and 0 < tolerance < 1):
        raise InvalidRequest(
            f"a search from {start} with tolerance {tolerance}", hint="Rates are above 0, tolerances below 1."
        )
    points: list[Point] = []
    low, high, rate = 0.0, math.inf, start
    reason = f"{max_points} rates were tried"
    while len(points) < max_points:
        point = measure(rate)
        points.append(point)
        low, high = (max(low, rate), high) if point.is_met else (low, min(high, rate))
        if low > 0 and high <= low * (1 + tolerance):
            reason = f"within {tolerance:.0%}"
            break
        if (math.isinf(high) or low == 0) and len(points) >= _MAX_STEPS:
            reason = "the rate was changed as far as makes sense"
            break
        rate = low * _GROWTH if math.isinf(high) else high / _GROWTH if low == 0 else math.sqrt(low * high)
    return Capacity(low, high, tuple(points), tuple(objectives), reason)
