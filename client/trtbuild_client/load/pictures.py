"""The plots of a load test: distributions, what happened when, and latency against load. Knows records, and no HTML."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from trtbuild_client.load.chart import Axis, Line, Plot, Series
from trtbuild_client.load.metrics import View
from trtbuild_client.load.run import Run
from trtbuild_client.load.slo import Objective
from trtbuild_client.load.summary import Summary

Runs = Sequence[tuple[Summary, Run]]
_MS = 1e6
_S = 1e9
#: Points of a curve, dots of a picture, parts of a time line: more are not seen.
_CURVE, _DOTS, _PARTS = 300, 2500, 120
_COLOURS = 8


def colour(index: int) -> str:
    """Return the class of the colour of a run."""
    return f"c{index % _COLOURS}"


def cdf(runs: Runs, metric: str, title: str, objectives: Sequence[Objective]) -> Plot:
    """Return the share of values that are at most so high, one curve per run."""
    series = []
    for index, (summary, run) in enumerate(runs):
        values = np.sort(View(run.table, is_streamed=summary.is_streamed).values(metric).values) / _MS
        if not len(values):
            continue
        shares = np.unique(np.concatenate([np.linspace(0, 1, _CURVE), 1 - np.logspace(-4, -1, 40)]))
        at = np.minimum((shares * (len(values) - 1)).round().astype(int), len(values) - 1)
        points = [(max(float(values[i]), 1e-3), float(100 * (i + 1) / len(values))) for i in np.unique(at)]
        series.append(Series(points, "line", colour(index), summary.label))
    lines = [Line(each.limit_ns / _MS, str(each), "x") for each in objectives if each.metric == metric]
    return Plot(
        f"distribution of {title}",
        Axis(f"{title}, ms", is_log=True),
        Axis("% of values at most", high=100.0),
        series,
        lines,
    )


def timeline(summary: Summary, run: Run, objectives: Sequence[Objective]) -> Plot:
    """Return the time to first token of each request by when it was due; failures are crosses at the top."""
    view = View(run.table, is_streamed=summary.is_streamed)
    name, title = ("ttft", "TTFT") if summary.is_streamed else ("e2e", "end to end")
    metric = view.values(name)
    due = (view.column("due_ns")[metric.owner] - run.started_ns) / _S
    step = max(1, len(due) // _DOTS)
    dots = [(float(x), max(float(y), 1e-3)) for x, y in zip(due[::step], metric.values[::step] / _MS, strict=True)]
    failed = (view.column("due_ns", view.failed) - run.started_ns) / _S
    top = max((y for _, y in dots), default=1.0)
    crosses = [(float(x), top) for x in failed[: _DOTS // 5]]
    lines = [Line(each.limit_ns / _MS, str(each)) for each in objectives if each.metric == name]
    series = [Series(dots, "points", "c0", title), Series(crosses, "crosses", "bad", "failed")]
    return Plot(
        "latency of requests over time",
        Axis("seconds after the start"),
        Axis(f"{title}, ms", is_log=_is_wide(dots)),
        [each for each in series if each.points],
        lines,
    )


def in_flight(run: Run) -> Plot:
    """Return how many requests were running at each time."""
    columns = run.table.columns
    changes = sorted(
        [(at, 1) for at in columns["sent_ns"] if at > 0]
        + [(end, -1) for at, end in zip(columns["sent_ns"], columns["end_ns"], strict=True) if at > 0]
    )
    running, points = 0, [(0.0, 0.0)]
    for at, change in changes:
        running += change
        points.append(((at - run.started_ns) / _S, float(running)))
    step = max(1, len(points) // (4 * _PARTS))
    return Plot(
        "requests in flight over time",
        Axis("seconds after the start"),
        Axis("requests in flight"),
        [Series(points[::step], "area", "c0", "requests in flight")],
    )


def throughput(run: Run) -> Plot:
    """Return output tokens per second in equal parts of the time."""
    end = (max(run.table.columns["last_event_ns"], default=run.started_ns) - run.started_ns) / _S
    points: list[tuple[float, ...]] = []
    if end > 0:
        counts, edges = np.zeros(_PARTS), np.linspace(0, end, _PARTS + 1)
        for index in range(len(run.table)):
            at_s = np.array(run.table.event_ns(index, run.started_ns)) / _S
            counts += np.histogram(at_s, edges, weights=np.array(run.table.event_tokens(index)))[0]
        width = end / _PARTS
        points = [(float(edge), float(count) / width) for edge, count in zip(edges, counts, strict=False)]
    return Plot(
        "output tokens per second over time",
        Axis("seconds after the start"),
        Axis("tokens/s"),
        [Series(points, "area", "c1", "output tokens per second")],
    )


def against_load(runs: Runs, metric: str, title: str, objectives: Sequence[Objective]) -> Plot:
    """Return percentiles of a metric against the load of each run, with their intervals."""
    series = []
    for index, q in enumerate((50.0, 95.0, 99.0)):
        points, bars = [], []
        for summary, _ in runs:
            at = summary.latencies[metric].at(q)
            if at.value is None or at.low is None or at.high is None:
                continue
            x = _load_of(summary)
            points.append((x, at.value / _MS))
            bars.append((x, at.low / _MS, at.high / _MS))
        points.sort()
        series += [
            Series(points, "line", colour(index), f"p{q:g}"),
            Series(points, "points", colour(index), tips=[f"p{q:g} {y:.4g} ms at {x:g}" for x, y in points]),
            Series(bars, "whiskers", colour(index)),
        ]
    lines = [Line(each.limit_ns / _MS, str(each)) for each in objectives if each.metric == metric]
    kind = runs[0][0].plan["kind"]
    across = Axis("requests/s offered" if kind == "open" else "requests in flight")
    return Plot(f"{title} against load", across, Axis(f"{title}, ms"), [each for each in series if each.points], lines)


def tokens_against_load(runs: Runs) -> Plot:
    """Return output tokens per second against the load of each run."""
    points = sorted(
        (_load_of(summary), rate) for summary, _ in runs if (rate := summary.rates["output_tokens_per_s"]) is not None
    )
    x = Axis("requests/s offered" if runs[0][0].plan["kind"] == "open" else "requests in flight")
    return Plot(
        "output tokens per second against load",
        x,
        Axis("tokens/s"),
        [Series(points, "line", "c1", ""), Series(points, "points", "c1", "")],
    )


def _load_of(summary: Summary) -> float:
    plan = summary.plan
    return float(plan["rate"] if plan["kind"] == "open" else plan.get("concurrency", math.nan))


def _is_wide(points: Sequence[tuple[float, ...]]) -> bool:
    values = [point[1] for point in points]
    return bool(values) and max(values) > 20 * min(values)
