"""The highest rate that meets objectives: a bisection whose every point is measured until it is decided. Pure: whoever measures is given.

At a point, each objective asks that at most a share of values is above its limit. The share is looked at after 100, 200, 400 ... requests
with an interval that allows for neighbours being alike (a queue that is long stays long for a while) and for looking several times (each
look gets an equal part of the error, Bonferroni). A point ends when the interval lies on one side for every objective, or one objective is
missed, or the requests are used up: then the estimate decides, and the result says so.

A point that says nothing about the server (the client was its limit, no answer has a value) ends the search: nothing beyond it is claimed.
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

Verdict = Literal["met", "missed", "open", "unknown"]
_FIRST_LOOK = 100
_BATCHES = 20
#: The first share of the requests of a point is left out: the queue is still filling.
_SKIPPED = 0.1
#: How long a point must be, in the length for which neighbours are alike, and where the sum over it is cut.
_MIN_SPANS, _WINDOW = 50, 5
#: A share above the limit that is an overload and no burst.
_OVERLOADED = 0.5
_GROWTH = 2.0
#: Of the few requests that are sent one after the other.
_CONFIDENCE = 0.95
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
    """The share of values above a limit, with its interval; `estimate` is None where there is no value."""

    name: str
    estimate: float | None
    low: float
    high: float
    allowed: float

    @property
    def verdict(self) -> Verdict:
        """What the interval decides."""
        if self.estimate is None:
            return "unknown"
        return "met" if self.high <= self.allowed else "missed" if self.low > self.allowed else "open"


@dataclass(frozen=True, slots=True)
class Point:
    """One rate.

    Attributes:
        rate: of the open loop, per second: of requests, or of conversations where they have several turns.
        is_decided: by its interval, not only by its estimate.
        requests_per_s: what the rate is in requests; of a point that meets its objectives, at most what was sent.
        achieved_per_s: requests that succeeded per second from the first one due to the last end; None where nobody looked.
        problem: why it says nothing about the server; empty when it does.
        is_alone: its requests were sent one after the other.
    """

    rate: float
    is_met: bool
    is_decided: bool
    requests: int
    shares: tuple[Share, ...]
    requests_per_s: float = math.nan
    achieved_per_s: float | None = None
    problem: str = ""
    is_alone: bool = False

    def __post_init__(self) -> None:
        if math.isnan(self.requests_per_s):
            object.__setattr__(self, "requests_per_s", self.rate)

    @property
    def verdict(self) -> str:
        """What it says, in a word."""
        return "says nothing" if self.problem else "met" if self.is_met else "missed"

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "rate": self.rate,
            "requests_per_s": self.requests_per_s,
            "achieved_requests_per_s": self.achieved_per_s,
            "alone": self.is_alone,
            "met": self.is_met and not self.problem,
            "decided": self.is_decided,
            "problem": self.problem or None,
            "requests": self.requests,
            "shares": [
                {"objective": s.name, "above": s.estimate, "low": s.low, "high": s.high, "allowed": s.allowed}
                for s in self.shares
            ],
        }


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the search found: the objectives are met at `low` and missed at `high`, requests per second.

    Attributes:
        low: 0 when no rate that was tried met them.
        high: infinite when none that was tried missed them.
        problem: of the point that ended the search because it said nothing, else empty.
    """

    low: float
    high: float
    points: tuple[Point, ...]
    objectives: tuple[str, ...]
    stopped_because: str
    problem: str = ""

    def text(self) -> str:
        """Return the answer as a sentence."""
        goal = " and ".join(self.objectives)
        if self.low == 0 and math.isinf(self.high):
            return f"unknown whether {goal} can be met: {self.stopped_because}"
        if self.low == 0:
            is_alone = any(point.is_alone and not point.is_met for point in self.points)
            by = f"one request at a time ({per_s(self.high)}/s)" if is_alone else f"{per_s(self.high)} requests/s"
            return f"{goal}: not met even by {by}; {self.stopped_because}"
        if math.isinf(self.high):
            return f"holds at least {per_s(self.low)} requests/s at {goal}: {self.stopped_because}"
        open_ = sum(not each.is_decided for each in self.points)
        doubt = f"; {open_} of {len(self.points)} rates were decided by their estimate only" if open_ else ""
        return f"holds {per_s(self.low)}-{per_s(self.high)} requests/s at {goal} ({self.stopped_because}{doubt})"

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "low_requests_per_s": self.low,
            "high_requests_per_s": None if math.isinf(self.high) else self.high,
            "objectives": list(self.objectives),
            "stopped_because": self.stopped_because,
            "points": [each.to_json() for each in self.points],
        }


def per_s(rate: float) -> str:
    """Return a rate as text."""
    return f"{rate:,.0f}" if rate >= 1000 else f"{rate:.3g}"


def result(points: Sequence[Point], objectives: Sequence[str], reason: str) -> Capacity:
    """Return what points say. No more is claimed than was sent; where nothing was missed, than was served."""
    problem = next((point.problem for point in points if point.problem), "")
    said = [point for point in points if not point.problem]
    met = max((point for point in said if point.is_met), key=lambda point: point.rate, default=None)
    high = min((point.requests_per_s for point in said if not point.is_met), default=math.inf)
    low = 0.0 if met is None else met.requests_per_s
    if met is not None and math.isinf(high) and met.achieved_per_s is not None:
        low = min(low, met.achieved_per_s)
    return Capacity(low, high, tuple(points), tuple(objectives), reason, problem)


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
        return Share(sample.name, None, 0.0, 1.0, sample.allowed)
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
    is_met = all(each.estimate is not None and each.estimate <= each.allowed for each in shares)
    nothing = [each.name for each in shares if each.verdict == "unknown"]
    problem = f"no answer has a value for {' and '.join(nothing)}" if nothing else ""
    return Point(rate, is_met=is_met, is_decided=False, requests=requests, shares=shares, problem=problem)


def judge_alone(samples: Sequence[Sample], *, rate: float) -> Point | None:
    """Return the point of requests that were sent one after the other if it decides: most of them are above a limit, or none has a value.

    Args:
        samples: of each objective; few requests.
        rate: at which they were served.
    """
    shares = []
    for each in samples:
        has_value = each.weight > 0
        own = each.bad[has_value] / each.weight[has_value]
        low, high = share_bounds(float(own.sum()), len(own), _CONFIDENCE)
        shares.append(Share(each.name, float(own.mean()) if len(own) else None, low, high, each.allowed))
    number = max((len(each.bad) for each in samples), default=0)
    nothing = [each.name for each in shares if each.verdict == "unknown"]
    problem = f"no answer has a value for {' and '.join(nothing)}" if nothing else ""
    is_missed = any(
        each.verdict == "missed" and each.estimate is not None and each.estimate > _OVERLOADED for each in shares
    )
    if not (nothing or is_missed):
        return None
    return Point(rate, False, not nothing, number, tuple(shares), problem=problem, is_alone=True)


def search(
    measure: Callable[[float], Point],
    *,
    start: float,
    objectives: Sequence[str],
    floor: float = 0.0,
    tolerance: float = 0.05,
    max_points: int = 40,
) -> Capacity:
    """Return the capacity.

    The rate is doubled until it is missed (or halved until it is met), then the span is halved on a logarithmic scale until it is within
    `tolerance`. The first point that says nothing ends the search.

    Args:
        measure: decides one rate.
        start: first rate, per second.
        objectives: for the text.
        floor: no lower rate is tried.
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
        if point.problem:
            reason = point.problem
            break
        low, high = (max(low, rate), high) if point.is_met else (low, min(high, rate))
        if low > 0 and high <= low * (1 + tolerance):
            reason = f"within {tolerance:.0%}"
            break
        if low == 0 and high <= floor:
            reason = "requests hardly wait for each other there, so that a lower rate changes nothing"
            break
        if (math.isinf(high) or low == 0) and len(points) >= _MAX_STEPS:
            reason = "the rate was changed as far as makes sense"
            break
        rate = low * _GROWTH if math.isinf(high) else max(high / _GROWTH, floor) if low == 0 else math.sqrt(low * high)
    return result(points, objectives, reason)
