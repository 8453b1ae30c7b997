"""The result of a probe: as JSON values for machines, as a table for people. Warm-up requests are listed, not counted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from trtbuild_client import stats
from trtbuild_client.records import RequestRecord

if TYPE_CHECKING:
    from rich.console import Group

SCHEMA_VERSION = 1
_NS_PER_MS = 1e6
#: Metrics that need the arrival of single tokens.
_NEED_STREAMING = ("ttft", "itl", "tpot")
_TITLES = {
    "ttft": "first token (TTFT)",
    "itl": "inter-token (ITL)",
    "tpot": "per token (TPOT)",
    "end_to_end": "end to end",
    "end_to_end_with_failures": "e2e, failed = never",
}


@dataclass(frozen=True, slots=True)
class Report:
    """Statistics of the requests that were not warm-up.

    Attributes:
        latencies_ns: metric -> distribution, nanoseconds; statistics of successful requests, except for
            "end_to_end_with_failures", where a failed request takes for ever.
        counted_by: "server", or "chunks" when at least one answer's tokens were only counted by responses.
        requested_tokens: tokens asked for by the successful requests.
        peak_in_flight: most requests that ran at the same time.
    """

    address: str
    model: str
    streamed: bool
    concurrency: int
    has_unique_prompts: bool
    counts: stats.Counts
    warmup: stats.Counts
    latencies_ns: dict[str, stats.Distribution]
    output_tokens: int
    requested_tokens: int
    counted_by: str
    output_tokens_per_s: float | None
    peak_in_flight: int
    records: tuple[RequestRecord, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values; None where there is no value, "failed" for a percentile among failures."""
        record_fields = [
            {**asdict(record), "events": [[e.at_ns, e.tokens] for e in record.events]} for record in self.records
        ]
        return {
            "schema_version": SCHEMA_VERSION,
            "address": self.address,
            "model": self.model,
            "streamed": self.streamed,
            "concurrency": self.concurrency,
            "peak_in_flight": self.peak_in_flight,
            "unique_prompts": self.has_unique_prompts,
            "percentile_method": stats.PERCENTILE_METHOD,
            "requests": {**asdict(self.counts), "error_rate": self.counts.error_rate},
            "warmup_requests": asdict(self.warmup),
            "latencies_ns": {name: _distribution_json(each) for name, each in self.latencies_ns.items()},
            "output_tokens": self.output_tokens,
            "requested_tokens": self.requested_tokens,
            "output_tokens_counted_by": self.counted_by,
            "output_tokens_per_s": self.output_tokens_per_s,
            "records": record_fields,
        }


def summarize(
    records: Sequence[RequestRecord],
    *,
    address: str,
    model: str,
    streamed: bool,
    concurrency: int,
    has_unique_prompts: bool,
) -> Report:
    """Return the statistics of the records."""
    measured = [record for record in records if not record.warmup]
    ok = [record for record in measured if record.outcome == "ok"]
    return Report(
        address=address,
        model=model,
        streamed=streamed,
        concurrency=concurrency,
        has_unique_prompts=has_unique_prompts,
        counts=stats.count(measured),
        warmup=stats.count([record for record in records if record.warmup]),
        latencies_ns={
            "ttft": stats.distribution(stats.of_each(ok, stats.ttft_ns)),
            "itl": stats.distribution(latency for record in ok for latency in stats.itl_ns(record)),
            "tpot": stats.distribution(stats.of_each(ok, stats.tpot_ns)),
            "end_to_end": stats.distribution(stats.of_each(ok, stats.end_to_end_ns)),
            "end_to_end_with_failures": stats.distribution(stats.end_to_end_with_failures_ns(measured)),
        },
        output_tokens=sum(record.output_tokens for record in ok),
        requested_tokens=sum(record.max_tokens for record in ok),
        counted_by="chunks" if any(record.counted_by == "chunks" for record in ok) else "server",
        output_tokens_per_s=stats.output_tokens_per_s(measured),
        peak_in_flight=_peak(measured),
        records=tuple(records),
    )


def table(report: Report) -> Group:
    """Return the latencies as a table in milliseconds, with counts and rates below it."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    title = Text(f"{report.model} on {report.address}, concurrency {report.concurrency}")
    grid = Table(title=title, title_justify="left")
    grid.add_column("milliseconds")
    columns = ("mean", *(f"p{q}" for q in stats.PERCENTILES), "n")
    for column in columns:
        grid.add_column(column, justify="right")
    for name, row in _TITLES.items():
        if name == "end_to_end_with_failures" and not report.counts.failed:
            continue
        each = report.latencies_ns[name]
        cells = [*(_ms(value) for value in (each.mean, *each.percentiles)), str(each.n)]
        if name in _NEED_STREAMING and not report.streamed:
            cells = ["n/a"] * len(columns)
        grid.add_row(row, *cells)
    return Group(grid, *map(Text, _lines(report)))


def failure(report: Report, *, max_error_rate: float) -> tuple[str, str] | None:
    """Return (what is wrong, what to do) when the requests did not go well enough, else None.

    Args:
        max_error_rate: highest share of failed requests, 0 to 1, that is still well.
    """
    counts = report.counts
    last = next((record.error_message for record in reversed(report.records) if record.error_message), None)
    hint = f"The last error was: {last}" if last else "See the counts above."
    if not counts.ok:
        return f"no request succeeded ({counts.failed} failed, {counts.cancelled} cancelled)", hint
    if counts.error_rate is not None and counts.error_rate > max_error_rate:
        return f"{counts.failed} of {counts.total} requests failed, more than --max-error-rate {max_error_rate:g}", hint
    return None


def _lines(report: Report) -> list[str]:
    counts = report.counts
    errors = ", ".join(f"{name} {number}" for name, number in counts.errors.items())
    rate = "n/a" if report.output_tokens_per_s is None else f"{report.output_tokens_per_s:.1f}"
    bound = "" if report.counted_by == "server" else " (chunks counted: a lower bound)"
    lines = [
        f"{counts.total} requests: {counts.ok} ok, {counts.failed} failed, {counts.cancelled} cancelled"
        + (f" ({errors})" if errors else "")
        + (f"; {counts.empty} empty" if counts.empty else "")
        + f"; warm-up {report.warmup.total}",
        f"output {rate} tokens/s{bound}; {report.output_tokens} of {report.requested_tokens} requested tokens",
    ]
    if not report.streamed:
        lines.append("n/a (non-streaming): the times of single tokens need --stream")
    return lines


def _ms(value_ns: float | None) -> str:
    if value_ns is None:
        return "-"
    return "failed" if math.isinf(value_ns) else f"{value_ns / _NS_PER_MS:.1f}"


def _distribution_json(each: stats.Distribution) -> dict[str, float | int | str | None]:
    values = {"mean": each.mean, **dict(zip((f"p{q}" for q in stats.PERCENTILES), each.percentiles, strict=True))}
    return {
        "n": each.n,
        **{name: "failed" if value is not None and math.isinf(value) else value for name, value in values.items()},
    }


def _peak(records: Sequence[RequestRecord]) -> int:
    """Return the most requests that were running at one time."""
    changes = sorted([(record.sent_ns, 1) for record in records] + [(record.end_ns, -1) for record in records])
    running = peak = 0
    for _, change in changes:
        running += change
        peak = max(peak, running)
    return peak
