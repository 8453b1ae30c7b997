"""The statistics of one run: what happened, how long it took, whether it says anything about the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trtbuild_client.load.datasets import Dataset
from trtbuild_client.load.distribution import Distribution, distribution, interpolated, with_failures
from trtbuild_client.load.metrics import Values, View
from trtbuild_client.load.outcomes import COUNTED_BY, Mark, Outcome
from trtbuild_client.load.plan import Plan
from trtbuild_client.load.run import Run
from trtbuild_client.load.slo import Objective
from trtbuild_client.load.table import NONE
from trtbuild_client.load.validity import Check, Stop, check, longest_stop, send_lag_p99_ns, stop_warning

#: Metrics of a summary, in the order of tables.
METRICS = ("ttft", "ttft_from_sent", "first_content", "itl", "tpot", "e2e", "e2e_from_sent", "send_lag")
#: Below this share of the tokens that were asked for, answers are called short.
_SHORT_SHARE = 0.95


@dataclass(frozen=True)
class Summary:
    """Statistics of the requests that were not warm-up.

    Attributes:
        label: what distinguishes this run from others.
        plan: what was asked for, as JSON values.
        counts: requests by outcome; total = ok + failed + cancelled.
        by_outcome, marks: how many had each.
        latencies: metric -> distribution of the requests that succeeded; "e2e_with_failures" counts a failed one as endless.
        rates: per second of the time from the first request due to the last end.
        tokens: sums.
        goodput: share and rate of requests within all objectives, None where that is unknown; None without objectives.
        checks: limits of the client's own strain.
        client: what the client used.
        warnings: what a reader should know.
        errors: texts, with how many requests had each.
    """

    label: str
    plan: dict[str, Any]
    is_streamed: bool
    counts: dict[str, int]
    by_outcome: dict[str, int]
    marks: dict[str, int]
    latencies: dict[str, Distribution]
    rates: dict[str, float | None]
    tokens: dict[str, int | float | str | None]
    goodput: dict[str, Any] | None
    checks: tuple[Check, ...]
    client: dict[str, Any]
    warnings: tuple[str, ...]
    errors: tuple[tuple[str, int], ...]

    @property
    def is_valid(self) -> bool:
        """Whether the client was not the bottleneck, and the run came to its end."""
        return not self.invalid_reasons

    @property
    def invalid_reasons(self) -> list[str]:
        """Why it is not valid."""
        reasons = [each.text for each in self.checks if not each.is_passed]
        return [*reasons, "the run was interrupted"] if self.client["interrupted"] else reasons

    @property
    def error_rate(self) -> float | None:
        """failed / (ok + failed), None when nothing finished."""
        finished = self.counts["ok"] + self.counts["failed"]
        return self.counts["failed"] / finished if finished else None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "label": self.label,
            "load": self.plan,
            "valid": self.is_valid,
            "invalid_reasons": self.invalid_reasons,
            "warnings": list(self.warnings),
            "requests": {
                **self.counts,
                "error_rate": self.error_rate,
                "by_outcome": self.by_outcome,
                "marks": self.marks,
            },
            "latencies_ns": {name: each.to_json() for name, each in self.latencies.items()},
            "rates": self.rates,
            "tokens": self.tokens,
            "goodput": self.goodput,
            "checks": [
                {"name": each.name, "seen": each.seen, "limit": each.limit, "passed": each.is_passed}
                for each in self.checks
            ],
            "client": self.client,
            "errors": [{"text": text, "requests": number} for text, number in self.errors],
        }


def summarize(run: Run, plan: Plan, dataset: Dataset, *, objectives: Sequence[Objective] = ()) -> Summary:
    """Return the statistics of a run."""
    view = View(run.table, is_streamed=plan.is_streaming)
    counts = _counts(view)
    latencies = {name: distribution(view.values(name)) for name in METRICS}
    latencies["e2e_with_failures"] = distribution(with_failures(view.values("e2e"), counts["failed"]))
    lags = view.send_lag().values
    duration_s = _duration_s(view)
    tokens = _tokens(view)
    return Summary(
        label=plan.label(dataset),
        plan=plan.to_json(dataset),
        is_streamed=plan.is_streaming,
        counts=counts,
        by_outcome=_by_outcome(view),
        marks=_marks(view),
        latencies=latencies,
        rates=_rates(view, tokens, duration_s),
        tokens=tokens,
        goodput=goodput(view, objectives, duration_s) if objectives else None,
        checks=tuple(check(run.strain, lags, plan.allowed)),
        client=_client(run, duration_s, send_lag_p99_ns(lags)),
        warnings=tuple(_warnings(run, plan, dataset, view, counts, tokens)),
        errors=_errors(run, view),
    )


def goodput(view: View, objectives: Sequence[Objective], duration_s: float | None) -> dict[str, Any]:
    """Return how many requests were good: each one's own value is within every limit, and it did not fail.

    Of a metric with many values per request, the request's own percentile counts. A request without a value of an objective's metric is
    unknown, neither good nor bad, unless it misses another objective; where no request has a value, goodput is unknown (None).
    """
    ok = int(view.ok.sum())
    bad, has_all = np.zeros(ok, bool), np.ones(ok, bool)
    nothing = []
    for objective in objectives:
        metric = view.values(objective.metric)
        has_value = np.zeros(ok, bool)
        has_value[metric.requests] = True
        has_all &= has_value
        for request, value in _own(metric, objective.share):
            bad[request] |= value > objective.limit_ns
        if ok and not len(metric.requests):
            nothing.append(str(objective))
    known = int((bad | has_all).sum() + view.failed.sum())
    number = None if nothing else int((has_all & ~bad).sum())
    return {
        "objectives": [str(each) for each in objectives],
        "good": number,
        "unknown": int((~bad & ~has_all).sum()),
        "without_values": nothing,
        "share": number / known if known and number is not None else None,
        "requests_per_s": number / duration_s if duration_s and number is not None else None,
    }


def _own(metric: Values, share: float) -> Iterator[tuple[int, float]]:
    """Yield (request, its own percentile) for each request that has values."""
    at = 0
    for request, size in zip(metric.requests.tolist(), metric.sizes.tolist(), strict=True):
        yield request, interpolated(np.sort(metric.values[at : at + size]), share)
        at += size


def _counts(view: View) -> dict[str, int]:
    total, ok, failed = (int(each.sum()) for each in (view.measured, view.ok, view.failed))
    return {
        "total": total,
        "ok": ok,
        "failed": failed,
        "cancelled": total - ok - failed,
        "warmup": len(view.measured) - total,
    }


def _by_outcome(view: View) -> dict[str, int]:
    numbers = np.bincount(view.column("outcome", view.measured), minlength=len(Outcome))
    return {outcome.label: int(numbers[outcome]) for outcome in Outcome if numbers[outcome]}


def _marks(view: View) -> dict[str, int]:
    marks = view.column("marks", view.measured)
    counted = {mark.name.lower(): int((marks & mark > 0).sum()) for mark in Mark if mark.name}
    return {name: number for name, number in counted.items() if number}


def _duration_s(view: View) -> float | None:
    ends, dues = view.column("end_ns"), view.column("due_ns")
    if not len(ends):
        return None
    span = int(ends.max() - dues.min())
    return span / 1e9 if span > 0 else None


def _rates(view: View, tokens: dict[str, Any], duration_s: float | None) -> dict[str, float | None]:
    def per_s(number: float | None) -> float | None:
        return None if duration_s is None or number is None else number / duration_s

    dues = np.sort(view.column("due_ns", view.measured))
    span = (dues[-1] - dues[0]) / 1e9 if len(dues) > 1 else 0.0
    return {
        "duration_s": duration_s,
        "requests_per_s": per_s(int(view.ok.sum())),
        "output_tokens_per_s": per_s(tokens["output"]),
        "input_tokens_per_s": per_s(tokens["input"]),
        "offered_requests_per_s": (len(dues) - 1) / span if span > 0 else None,
    }


def _tokens(view: View) -> dict[str, Any]:
    output, wanted = int(view.column("output_tokens").sum()), int(view.column("max_tokens").sum())
    known = view.known("input_tokens")
    # An answer without any event says nothing of who counts tokens.
    counted = Counter(view.column("counted_by")[view.column("output_tokens") > 0].tolist())
    draft, accepted = view.known("draft_tokens"), view.known("accepted_draft_tokens")
    return {
        "output": output,
        "requested": wanted,
        "output_share": output / wanted if wanted else None,
        "output_mean": output / int(view.ok.sum()) if view.ok.any() else None,
        "counted_by": "+".join(COUNTED_BY[each] for each in sorted(counted)) or None,
        "input": int(known.sum()) if len(known) and len(known) == int(view.ok.sum()) else None,
        "draft": int(draft.sum()) if len(draft) else None,
        "accepted_draft": int(accepted.sum()) if len(accepted) else None,
    }


def _client(run: Run, duration_s: float | None, lag_p99: float | None) -> dict[str, Any]:
    events = len(run.table.events)
    cpu_ns = sum(each.cpu_ns for each in run.strain)
    stop = longest_stop(run.strain)
    return {
        "processes": len(run.strain),
        "cpu_s": cpu_ns / 1e9,
        "cpu_share_max": max(each.cpu_share for each in run.strain),
        "cpu_us_per_event": cpu_ns / 1e3 / events if events else None,
        "events": events,
        "send_lag_p99_ns": lag_p99,
        "loop_lag_p99_ns": max(each.loop_lag_p99_ns for each in run.strain),
        "loop_lag_max_ns": stop.length_ns,
        "loop_lag_max_at_ns": stop.begin_ns,
        "run_queue_share": max(each.run_queue_ns / max(each.wall_ns, 1) for each in run.strain)
        if all(each.run_queue_ns >= 0 for each in run.strain)
        else None,
        "peak_rss_bytes": max(each.peak_rss_bytes for each in run.strain),
        "peak_in_flight": run.peak_in_flight,
        "connections_opened": run.connections_opened,
        "interrupted": run.stopped_by is not None,
    }


def _warnings(
    run: Run, plan: Plan, dataset: Dataset, view: View, counts: dict[str, int], tokens: dict[str, Any]
) -> list[str]:
    found = []
    share = tokens["output_share"]
    is_counted = "events" not in str(tokens["counted_by"])
    if share is not None and share < _SHORT_SHARE and not is_counted:
        found.append(
            f"{tokens['output']} events came for {tokens['requested']} tokens asked for: answers are shorter, or events hold several tokens, "
            "which a server that does not count them does not say"
        )
    elif share is not None and share < _SHORT_SHARE:
        mean, wanted = tokens["output_mean"], tokens["requested"] / counts["ok"]
        found.append(
            f"answers are shorter than asked for: {mean:.0f} of {wanted:.0f} tokens on average ({share:.0%}); rates use what came. "
            "Does the server know how to go on (ignore_eos, min_tokens)?"
        )
    if plan.is_closed(dataset) and run.peak_in_flight < plan.concurrency:
        found.append(
            f"concurrency {plan.concurrency} was never reached: at most {run.peak_in_flight} requests were in flight"
        )
    if not is_counted and plan.is_streaming:
        found.append(
            "the server does not count tokens: one per event is a lower bound, and itl is the time between events"
        )
    if _marks(view).get("counted_at_end"):
        found.append(
            "the server counts tokens only for whole answers: itl is the time between events, tpot that of tokens"
        )
    stopped = stop_warning(run.strain, lambda stop: _running(run, view, stop), plan.allowed)
    if stopped is not None:
        found.append(stopped)
    if not plan.is_streaming:
        found.append("ttft, itl and tpot: n/a (non-streaming); they need --stream")
    planned, seen = view.column("planned_tokens"), view.column("input_tokens")
    both = (planned != NONE) & (seen != NONE)
    if both.any() and (np.abs(planned[both] - seen[both]) > np.maximum(2, 0.05 * planned[both])).any():
        found.append(
            f"prompts have {seen[both].mean():.0f} tokens by the server's count, {planned[both].mean():.0f} by ours "
            "(a chat template, special tokens, truncation, or no --tokenizer)"
        )
    return found


def _running(run: Run, view: View, stop: Stop) -> int:
    """Return how many measured requests a process had while it stood still."""
    begin_ns = run.started_ns + stop.begin_ns
    numbers, sent, end = (view.column(name, view.measured) for name in ("number", "sent_ns", "end_ns"))
    is_its_own = numbers % len(run.strain) == stop.process  # see `plan.Plan.workloads`
    return int((is_its_own & (sent < begin_ns + stop.length_ns) & (end > begin_ns)).sum())


def _errors(run: Run, view: View) -> tuple[tuple[str, int], ...]:
    numbers = Counter(view.column("error", view.failed).tolist())
    return tuple(
        ("(text not kept)" if index == NONE else run.table.errors[index], number)
        for index, number in numbers.most_common()
    )
