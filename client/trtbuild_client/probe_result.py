"""Everything a probe found, as JSON values for machines and as text for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trtbuild_client import stats
from trtbuild_client.report import Report, table
from trtbuild_client.scenarios import (
    Scenario,
    ServerTimes,
    chunk_gaps_ns,
    cold_and_warm,
    distribution_json,
    server_times,
)
from trtbuild_client.server_metrics import ServerMetrics
from trtbuild_client.thresholds import Check

if TYPE_CHECKING:
    from rich.console import RenderableType

#: An answer this much shorter than asked for (share of the tokens) makes numbers of different servers incomparable.
_SHORT_SHARE = 0.95


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What a probe found.

    Attributes:
        report: of the main run.
        ready_ns: time that the questions about server and model took.
        scenarios: cached and new prompts, prompts by length; cold and warm come from the report.
        metrics: what the server's metrics said, None when they were not read.
        metrics_note: why they were not, "" when they were.
        checks: limits and what came of them.
    """

    report: Report
    ready_ns: int
    scenarios: Sequence[Scenario] = ()
    metrics: ServerMetrics | None = None
    metrics_note: str = ""
    checks: Sequence[Check] = field(default=())

    @property
    def server_times(self) -> ServerTimes | None:
        """Where the time went inside the server."""
        return server_times(self.report.records)

    @property
    def all_scenarios(self) -> list[Scenario]:
        """All scenarios, cold and warm first."""
        return [*cold_and_warm(self.report), *self.scenarios]

    def notes(self) -> list[str]:
        """Return what should be known before these numbers are believed."""
        report = self.report
        notes = list(self.metrics.notes) if self.metrics is not None else []
        if self.metrics_note:
            notes.append(self.metrics_note)
        if report.requested_tokens and report.output_tokens < _SHORT_SHARE * report.requested_tokens:
            share = report.output_tokens / report.requested_tokens
            notes.append(
                f"answers were shorter than asked for: {report.output_tokens} of {report.requested_tokens} tokens ({share:.0%}); "
                "rates count what came"
            )
        times = self.server_times
        if report.counts.ok and (times is None or not times.queue_ns.n):
            notes.append(
                "the server gave no times of its own (return_perf_metrics): queue and prefill cannot be told apart"
            )
        return notes

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values: those of the report, and more beside them."""
        times = self.server_times
        return {
            **self.report.to_json(),
            "ready_ns": self.ready_ns,
            "chunk_gaps_ns": distribution_json(chunk_gaps_ns(self.report.records)),
            "server_times": None if times is None else times.to_json(),
            "scenarios": [each.to_json() for each in self.all_scenarios],
            "metrics": None if self.metrics is None else self.metrics.to_json(),
            "checks": [each.to_json() for each in self.checks],
            "notes": self.notes(),
        }

    def show(self) -> list[RenderableType]:
        """Return what is printed for people; times in milliseconds."""
        parts: list[RenderableType] = [table(self.report)]
        times, gaps = self.server_times, chunk_gaps_ns(self.report.records)
        if gaps.n and self.report.output_tokens > self.report.counts.ok:
            parts.append(_line("between responses", gaps))
        if times is not None:
            rows = (
                ("in the server's queue", times.queue_ns),
                ("prefill in the server", times.prefill_ns),
                ("decode in the server", times.decode_ns),
            )
            parts += [_line(title, each) for title, each in rows if each.n]
            if times.reused_share is not None:
                parts.append(f"KV cache blocks reused: {times.reused_share:.0%}")
        parts += [_scenario_line(each) for each in self.all_scenarios]
        if self.metrics is not None:
            parts.append(_metrics_line(self.metrics))
        parts += [f"note: {note}" for note in self.notes()]
        return parts


def _line(title: str, each: stats.Distribution) -> str:
    values = ", ".join(f"p{q} {_ms(value)}" for q, value in zip(stats.PERCENTILES, each.percentiles, strict=True))
    return f"{title}, ms: mean {_ms(each.mean)}, {values} (n {each.n})"


def _scenario_line(each: Scenario) -> str:
    tokens = "" if each.input_tokens is None or each.words is None else f", {each.input_tokens:.0f} tokens"
    reused = "" if each.reused_share is None else f", {each.reused_share:.0%} of the blocks reused"
    failed = f", {each.failed} failed" if each.failed else ""
    return (
        f"TTFT in ms, {each.name}{tokens}: p50 {_ms(each.ttft_ns.percentiles[0])} (n {each.ttft_ns.n}{reused}{failed})"
    )


def _metrics_line(metrics: ServerMetrics) -> str:
    parts = []
    for name, title, form in (
        ("active_requests", "active", "{:g}"),
        ("max_requests", "of at most", "{:g}"),
        ("waiting_requests", "waiting", "{:g}"),
        ("pending_requests", "pending in Triton", "{:g}"),
        ("kv_cache_fraction", "KV cache used", "{:.0%}"),
        ("paused_requests", "paused", "{:g}"),
    ):
        value = metrics.gauges.get(name)
        parts.append(f"{title} {'unavailable' if value is None else form.format(value)}")
    for title, value_us in (("mean queue", metrics.queue_us), ("mean compute", metrics.compute_us)):
        parts.append(f"{title} {'unavailable' if value_us is None else f'{value_us / 1000:.1f} ms'}")
    return f"server metrics, highest values: {', '.join(parts)}"


def _ms(value_ns: float | None) -> str:
    return "-" if value_ns is None else f"{value_ns / 1e6:.1f}"
