"""Latencies and rates from request records: pure functions. Without a value the result is None, never NaN or 0.

For a request sent at t0 whose tokens arrive in events e1 ... em at times a1 ... am with k1 ... km tokens, n = k1 + ... + km:

    TTFT            a1 - t0                              streamed requests with n >= 1
    ITL             (a_i - a_{i-1}) / k_i, k_i times     for i = 2 ... m of streamed requests
    TPOT            (am - a1) / (n - 1)                  streamed requests with n >= 2 in m >= 2 events
    end to end      t_end - t0                           requests that succeeded; t_end: the end of the answer was seen
    output tokens/s sum of n / (last t_end - first t0)   over the requests that succeeded
    error rate      failed / (ok + failed)               cancelled requests are neither

All times are in nanoseconds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from trtbuild_client.records import RequestRecord

PERCENTILES = (50, 90, 95, 99)
PERCENTILE_METHOD = "linear"


def ttft_ns(record: RequestRecord) -> int | None:
    """Return the time to the first token."""
    return record.events[0].at_ns - record.sent_ns if record.streamed and record.events else None


def itl_ns(record: RequestRecord) -> list[float]:
    """Return the latency of each token after the first event; tokens that came together share their gap."""
    if not record.streamed:
        return []
    latencies: list[float] = []
    for before, event in zip(record.events, record.events[1:], strict=False):
        latencies += [(event.at_ns - before.at_ns) / event.tokens] * event.tokens
    return latencies


def tpot_ns(record: RequestRecord) -> float | None:
    """Return the mean time per output token after the first."""
    if not record.streamed or len(record.events) < 2:
        return None
    return (record.events[-1].at_ns - record.events[0].at_ns) / (record.output_tokens - 1)


def end_to_end_ns(record: RequestRecord) -> int | None:
    """Return the time from sending the request to the end of its answer."""
    return record.end_ns - record.sent_ns if record.outcome == "ok" else None


def percentile(values: Iterable[float], q: float) -> float | None:
    """Return the q-th percentile, interpolated linearly between the neighbours of rank q/100 * (n - 1).

    Infinite values are allowed: whatever is interpolated with one is infinite.
    """
    ordered = sorted(values)
    if not ordered:
        return None
    rank = q / 100 * (len(ordered) - 1)
    low, high = ordered[math.floor(rank)], ordered[math.ceil(rank)]
    share = rank - math.floor(rank)
    return low if share == 0 else high if math.isinf(high) else low + (high - low) * share


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean and percentiles of n values; all None when n is 0.

    Attributes:
        percentiles: in the order of `PERCENTILES`.
    """

    n: int
    mean: float | None
    percentiles: tuple[float | None, ...]


def distribution(values: Iterable[float]) -> Distribution:
    """Return mean and percentiles of the values."""
    known = list(values)
    return Distribution(
        n=len(known),
        mean=math.fsum(known) / len(known) if known else None,
        percentiles=tuple(percentile(known, q) for q in PERCENTILES),
    )


def of_each(records: Iterable[RequestRecord], metric: Callable[[RequestRecord], float | None]) -> list[float]:
    """Return the values of a metric, leaving out the requests for which it has none."""
    return [value for record in records if (value := metric(record)) is not None]


def end_to_end_with_failures_ns(records: Iterable[RequestRecord]) -> list[float]:
    """Return end-to-end times where a failed request counts as one that never ends (infinity)."""
    return [
        math.inf if record.outcome == "failed" else float(record.end_ns - record.sent_ns)
        for record in records
        if record.outcome != "cancelled"
    ]


@dataclass(frozen=True, slots=True)
class Counts:
    """Requests by outcome; total = ok + failed + cancelled.

    Attributes:
        empty: of the ok ones, those without any token.
        errors: failed requests by error class.
    """

    total: int
    ok: int
    failed: int
    cancelled: int
    empty: int
    errors: dict[str, int]

    @property
    def error_rate(self) -> float | None:
        """failed / (ok + failed), None when nothing finished."""
        return self.failed / (self.ok + self.failed) if self.ok + self.failed else None


def count(records: Sequence[RequestRecord]) -> Counts:
    """Return the number of requests by outcome."""
    outcomes = Counter(record.outcome for record in records)
    return Counts(
        total=len(records),
        ok=outcomes["ok"],
        failed=outcomes["failed"],
        cancelled=outcomes["cancelled"],
        empty=sum(record.outcome == "ok" and not record.events for record in records),
        errors=dict(Counter(record.error or "unknown" for record in records if record.outcome == "failed")),
    )


def output_tokens_per_s(records: Sequence[RequestRecord]) -> float | None:
    """Return the tokens of all successful requests per second of the time they took together."""
    ok = [record for record in records if record.outcome == "ok"]
    if not ok:
        return None
    duration_ns = max(record.end_ns for record in ok) - min(record.sent_ns for record in ok)
    return sum(record.output_tokens for record in ok) * 1e9 / duration_ns if duration_ns > 0 else None
