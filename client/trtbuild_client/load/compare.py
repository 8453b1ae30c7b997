"""Two runs, and which of them is faster: a bootstrap over requests, and "cannot tell" where it does not say.

Requests are drawn in blocks of neighbours, since those that are served at the same time are alike (circular block bootstrap, Politis and
Romano 1992; length n^(1/3) as in Hall, Horowitz and Jing, Biometrika 82, 1995). All tokens of a request are drawn with it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trtbuild_client.load.intervals import needed_for_interval
from trtbuild_client.load.metrics import Values, View
from trtbuild_client.load.result import Stored

Verdict = Literal["faster", "slower", "cannot tell"]
#: (metric, percentile) that are compared; throughput is compared for closed loops, where it follows from latency.
COMPARED = (("ttft", 50.0), ("ttft", 95.0), ("itl", 50.0), ("itl", 95.0), ("tpot", 50.0), ("e2e", 50.0), ("e2e", 95.0))
_RESAMPLES = 1000
#: Of values with many per request, at most so many requests are looked at: a bootstrap of more says nothing else.
_MAX_VALUES = 200_000


@dataclass(frozen=True, slots=True)
class Comparison:
    """One metric of two runs.

    Attributes:
        a, b: nanoseconds (latencies), or per second.
        ratio: b / a, with the interval `low` to `high`.
        verdict: of b, beside a.
        is_better_low: whether less is faster.
    """

    name: str
    a: float
    b: float
    ratio: float
    low: float
    high: float
    verdict: Verdict
    is_better_low: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "metric": self.name,
            "a": self.a,
            "b": self.b,
            "ratio": self.ratio,
            "low": self.low,
            "high": self.high,
            "verdict": self.verdict,
        }


@dataclass(frozen=True, slots=True)
class Verdicts:
    """All metrics of two runs.

    Attributes:
        verdict: "slower" if any metric is and none is faster, "faster" likewise, else "cannot tell"; more failures make "slower".
        reasons: why it is not what the metrics alone say.
        skipped: metrics without a comparison, with the reason.
    """

    metrics: tuple[Comparison, ...]
    verdict: Verdict
    reasons: tuple[str, ...]
    skipped: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "schema": "trtbuild.compare",
            "schema_version": 1,
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "metrics": [each.to_json() for each in self.metrics],
            "skipped": self.skipped,
        }


def compare(
    a: Stored,
    b: Stored,
    *,
    least_effect: float = 0.02,
    confidence: float = 0.95,
    seed: int = 0,
    resamples: int = _RESAMPLES,
) -> Verdicts:
    """Return the verdict on b, beside a.

    Args:
        a: the run to compare with.
        b: the other one.
        least_effect: a difference that is smaller than this share is none.
        confidence: of the interval of each ratio.
        seed: of the bootstrap.
        resamples: drawn.
    """
    views = View(a.table, is_streamed=a.is_streamed), View(b.table, is_streamed=b.is_streamed)
    random = np.random.default_rng(seed)
    found: list[Comparison] = []
    skipped: dict[str, str] = {}
    for metric, q in COMPARED:
        name = f"{metric}.p{q:g}"
        sides = [view.values(metric) for view in views]
        few = min(len(side.requests) for side in sides)
        needs = needed_for_interval(q / 100, confidence)
        if few < needs:
            skipped[name] = f"n too small: {few} requests, {needs} needed"
            continue
        drawn = [_quantiles(side, q / 100, resamples, random) for side in sides]
        found.append(
            _judge(name, _point(sides[0], q), _point(sides[1], q), drawn, least_effect, confidence, is_better_low=True)
        )
    if a.summary["load"].get("kind") == b.summary["load"].get("kind") == "closed":
        sizes = [int(view.ok.sum()) for view in views]
        if min(sizes) >= needed_for_interval(0.5, confidence) and all(_took(view) > 0 for view in views):
            rates = [_token_rate(view) for view in views]
            drawn = [_rates(view, resamples, random) for view in views]
            found.append(
                _judge("output_tokens_per_s", rates[0], rates[1], drawn, least_effect, confidence, is_better_low=False)
            )
    return _conclude(found, views, skipped, confidence)


def _judge(
    name: str,
    a: float,
    b: float,
    drawn: list[NDArray[np.float64]],
    least: float,
    confidence: float,
    *,
    is_better_low: bool,
) -> Comparison:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = drawn[1] / drawn[0]
    ratios = ratios[np.isfinite(ratios)]
    side = (1 - confidence) / 2
    low, high = (float(np.quantile(ratios, each)) if len(ratios) else 1.0 for each in (side, 1 - side))
    verdict: Verdict = "cannot tell"
    if high < 1 - least:
        verdict = "faster" if is_better_low else "slower"
    elif low > 1 + least:
        verdict = "slower" if is_better_low else "faster"
    return Comparison(name, a, b, b / a if a else 1.0, low, high, verdict, is_better_low)


def _conclude(
    found: Sequence[Comparison], views: tuple[View, View], skipped: dict[str, str], confidence: float
) -> Verdicts:
    said = {each.verdict for each in found}
    reasons = []
    verdict: Verdict = "cannot tell"
    if "faster" in said and "slower" in said:
        reasons.append("some metrics are faster and some slower")
    elif "slower" in said:
        verdict = "slower"
    elif "faster" in said:
        verdict = "faster"
    rates = [_error_share(view) for view in views]
    z = _two_shares(*rates[0], *rates[1])
    if z > _z(confidence):
        verdict = "slower"
        reasons.append(f"b fails more often: {rates[1][0]} of {rates[1][1]} requests, a {rates[0][0]} of {rates[0][1]}")
    return Verdicts(tuple(found), verdict, tuple(reasons), skipped)


def _error_share(view: View) -> tuple[int, int]:
    failed = int(view.failed.sum())
    return failed, failed + int(view.ok.sum())


def _two_shares(failed_a: int, n_a: int, failed_b: int, n_b: int) -> float:
    """Return by how many standard errors the second share is larger (pooled two-proportion test)."""
    if not n_a or not n_b:
        return 0.0
    pooled = (failed_a + failed_b) / (n_a + n_b)
    error = math.sqrt(pooled * (1 - pooled) * (1 / n_a + 1 / n_b))
    return (failed_b / n_b - failed_a / n_a) / error if error > 0 else 0.0


def _z(confidence: float) -> float:
    from trtbuild_client.load.intervals import normal_quantile

    return normal_quantile(0.5 + confidence / 2)


def _weights(requests: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Return how often each request is drawn, in blocks of neighbours."""
    length = max(1, round(requests ** (1 / 3)))
    starts = random.integers(0, requests, size=-(-requests // length))
    drawn = (starts[:, None] + np.arange(length)[None, :]).ravel()[:requests] % requests
    return np.bincount(drawn, minlength=requests)


def _quantiles(metric: Values, p: float, resamples: int, random: np.random.Generator) -> NDArray[np.float64]:
    """Return the p-quantile of each resample."""
    step = -(-len(metric.values) // _MAX_VALUES)  # of too many values every k-th, so that each request keeps its share
    values, owner = metric.values[::step], metric.owner[::step]
    order = np.argsort(values, kind="stable")
    values = values[order]
    owner = np.unique(owner, return_inverse=True)[1][order]
    requests = int(owner.max()) + 1
    found = np.empty(resamples)
    for index in range(resamples):
        below = np.cumsum(_weights(requests, random)[owner])
        found[index] = values[int(np.searchsorted(below, p * below[-1]))]
    return found


def _point(metric: Values, q: float) -> float:
    return float(np.percentile(metric.values, q))


def _took(view: View) -> float:
    """Return the nanoseconds from the first request due to the last end."""
    return float(view.column("end_ns").max() - view.column("due_ns").min())


def _token_rate(view: View) -> float:
    return float(view.column("output_tokens").sum() * 1e9 / _took(view))


def _rates(view: View, resamples: int, random: np.random.Generator) -> NDArray[np.float64]:
    """Return tokens per second of each resample: of a closed loop, tokens over the time that requests took, times those in flight."""
    tokens = view.column("output_tokens").astype(np.float64)
    spans = (view.column("end_ns") - view.column("due_ns")).astype(np.float64)
    in_flight = spans.sum() / _took(view)
    found = np.empty(resamples)
    for index in range(resamples):
        weights = _weights(len(tokens), random)
        took = weights @ spans
        found[index] = (
            in_flight * 1e9 * (weights @ tokens) / took if took else np.nan
        )  # all that were drawn took no time
    return found


def pairs(a: Sequence[Stored], b: Sequence[Stored]) -> list[tuple[Stored, Stored]]:
    """Return the runs of two results that belong together, in the order of the first: those of one label, of equal ones the first with
    the first and so on; or the only ones there are, whatever their labels (see `likeness.differences` for what else must agree)."""
    if len(a) == len(b) == 1:
        return [(a[0], b[0])]
    waiting: dict[str, deque[Stored]] = {}
    for each in b:
        waiting.setdefault(each.label, deque()).append(each)
    return [(each, waiting[each.label].popleft()) for each in a if waiting.get(each.label)]
