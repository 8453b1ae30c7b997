"""Percentiles with intervals, and a refusal where there are too few values for one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtbuild_client.load.intervals import CONFIDENCE, needed_for_interval, ranks
from trtbuild_client.load.metrics import Values

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
#: Values that are looked at together where each needs more room than it takes.
_PART = 16_384


@dataclass(frozen=True, slots=True)
class Percentile:
    """One percentile.

    Attributes:
        q: 0 to 100.
        value: interpolated linearly between its neighbours; infinite among failures; None where no interval exists.
        low, high: the interval; infinite likewise.
        needs: values that an interval needs.
    """

    q: float
    value: float | None
    low: float | None
    high: float | None
    needs: int

    @property
    def name(self) -> str:
        """p50, p99.9 ..."""
        return f"p{self.q:g}"


@dataclass(frozen=True, slots=True)
class Distribution:
    """What is said of a metric.

    Attributes:
        n: values.
        n_effective: independent values that say as much about the median, where several come from each request.
        mean, std, low, high: of the values; None without any. Infinite values make mean and std None.
    """

    n: int
    n_effective: float
    mean: float | None
    std: float | None
    low: float | None
    high: float | None
    percentiles: tuple[Percentile, ...]

    def at(self, q: float) -> Percentile:
        """Return one of the percentiles."""
        return next(each for each in self.percentiles if each.q == q)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values: nanoseconds, "failed" for what lies among failures, None where nothing can be said."""
        return {
            "n": self.n,
            "n_effective": round(self.n_effective, 1),
            "mean": self.mean,
            "std": self.std,
            "min": _json(self.low),
            "max": _json(self.high),
            "percentiles": {
                each.name: {
                    "value": _json(each.value),
                    "low": _json(each.low),
                    "high": _json(each.high),
                    "needs": each.needs,
                }
                for each in self.percentiles
            },
        }


def distribution(
    metric: Values, percentiles: tuple[float, ...] = PERCENTILES, confidence: float = CONFIDENCE
) -> Distribution:
    """Return mean and percentiles of a metric.

    Values of one request are alike, so that many tokens of few requests say less than as many requests: their number is divided by the
    design effect (Kish, Survey Sampling, 1965, section 8.2), estimated at each percentile from how the requests differ there.
    """
    n = len(metric.values)
    ordered = np.sort(metric.values)
    found = []
    for q in percentiles:
        effective = effective_number(metric, ordered, q / 100)
        found.append(_percentile(ordered, q, math.floor(effective), confidence))
    finite = n > 0 and bool(np.isfinite(ordered[-1]))
    mean = float(ordered.mean()) if finite else None
    return Distribution(
        n=n,
        n_effective=effective_number(metric, ordered, 0.5),
        mean=mean,
        std=math.sqrt(_squares(ordered, mean) / (n - 1)) if mean is not None and n > 1 else None,
        low=float(ordered[0]) if n else None,
        high=float(ordered[-1]) if n else None,
        percentiles=tuple(found),
    )


def _squares(values: NDArray[Any], mean: float) -> float:
    """Return the sum of squares of the differences from the mean, without a copy of all values."""
    parts = (values[start : start + _PART] - mean for start in range(0, len(values), _PART))
    return math.fsum(float(np.square(part).sum()) for part in parts)  # a product would wake the threads of BLAS


def effective_number(metric: Values, ordered: NDArray[Any], p: float) -> float:
    """Return how many independent values say as much about the p-quantile.

    Args:
        metric: the values by request.
        ordered: the values in rising order.
        p: the quantile.
    """
    n, requests = len(ordered), len(metric.requests)
    if not metric.is_clustered:
        return float(n)
    if requests < 2:
        return 1.0
    residual = _below(metric, ordered, round(p * n)) - p * metric.sizes
    # Variance of a ratio estimate between clusters (Cochran, Sampling Techniques, 3rd edition, section 3.12).
    variance = requests / (requests - 1) * float((residual**2).sum()) / n**2
    plain = p * (1 - p) / n
    return float(min(n, max(1.0, n * plain / variance))) if variance > 0 else float(n)


def _below(metric: Values, ordered: NDArray[Any], rank: int) -> NDArray[np.float64]:
    """Return how many of the first `rank` values in rising order each request has; of equal ones in proportion to those that it has."""
    if rank == 0:
        return np.zeros(len(metric.requests))
    last = ordered[rank - 1]
    less, most = (int(np.searchsorted(ordered, last, side)) for side in ("left", "right"))
    share = (rank - less) / (most - less)
    return metric.count(metric.values < last) + share * metric.count(metric.values == last)


def _percentile(values: NDArray[np.float64], q: float, effective: int, confidence: float) -> Percentile:
    n, p = len(values), q / 100
    needs = needed_for_interval(p, confidence)
    pair = ranks(effective, p, confidence) if effective > 0 else None
    if pair is None:
        return Percentile(q, None, None, None, needs)
    # Ranks among the effective number are stretched to all values: rank r of m lies at the share r / (m + 1).
    low, high = (max(1, min(n, round(rank / (effective + 1) * (n + 1)))) for rank in pair)
    return Percentile(q, interpolated(values, p), float(values[low - 1]), float(values[high - 1]), needs)


def interpolated(ordered: NDArray[np.float64], p: float) -> float:
    """Return the p-quantile, interpolated linearly between the neighbours of rank p (n - 1); infinite beside an infinite one."""
    rank = p * (len(ordered) - 1)
    low, high = float(ordered[math.floor(rank)]), float(ordered[math.ceil(rank)])
    share = rank - math.floor(rank)
    return low if share == 0 else high if math.isinf(high) else low + (high - low) * share


def with_failures(ok: Values, failed: int) -> Values:
    """Return the values with an infinite one for each request that failed."""
    top = int(ok.requests[-1]) + 1 if len(ok.requests) else 0
    return Values(
        np.concatenate([ok.values, np.full(failed, np.inf)]),
        np.concatenate([ok.requests, np.arange(top, top + failed)]),
        np.concatenate([ok.sizes, np.ones(failed, ok.sizes.dtype)]),
    )


def _json(value: float | None) -> float | str | None:
    return "failed" if value is not None and math.isinf(value) else value
