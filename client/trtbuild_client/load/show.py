"""A summary as a table for people, in milliseconds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from trtbuild_client.load.distribution import PERCENTILES, Distribution, Percentile
from trtbuild_client.load.metrics import NEED_STREAMING
from trtbuild_client.load.summary import Summary

if TYPE_CHECKING:
    from rich.console import Group

_NS_PER_MS = 1e6
#: metric -> its row; what the client adds to it is shown only where it is worth a row.
TITLES = {
    "ttft": "TTFT",
    "ttft_from_sent": " from sent",
    "first_content": " of answer",
    "itl": "ITL",
    "tpot": "TPOT",
    "e2e": "E2E",
    "e2e_from_sent": " from sent",
    "e2e_with_failures": " failed=never",
    "send_lag": "late by",
}
#: Rows that repeat another one unless they differ from it: by more than this share, or 0.1 ms.
_TWINS = {"ttft_from_sent": "ttft", "e2e_from_sent": "e2e", "first_content": "ttft"}
_NOTABLE = 0.01
_FAR = ("ttft", "itl", "tpot", "e2e")


def table(summary: Summary) -> Group:
    """Return the latencies with their intervals, and counts, rates and doubts below them."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    grid = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        title=Text(f"{summary.label}: milliseconds [95 % interval]"),
        title_justify="left",
    )
    grid.add_column("", no_wrap=True)
    shown = [
        q for q in PERCENTILES if q <= 99
    ]  # p99.9 has a line of its own where there is one: seldom, and of one metric
    for column in ("mean", *(f"p{q:g}" for q in shown), "n"):
        grid.add_column(column, justify="right", overflow="fold")
    for name, title in TITLES.items():
        if not _is_shown(summary, name):
            continue
        each = summary.latencies[name]
        cells = [ms(each.mean), *(_cell(each.at(q)) for q in shown), f"{each.n:,}"]
        if name in NEED_STREAMING and not summary.is_streamed:
            cells = ["n/a"] * len(cells)
        grid.add_row(title, *map(Text, cells))
    return Group(grid, *map(Text, lines(summary)))


def lines(summary: Summary) -> list[str]:
    """Return what is said below the table."""
    counts, rates, tokens, client = summary.counts, summary.rates, summary.tokens, summary.client
    outcomes = ", ".join(
        f"{name} {number}" for name, number in summary.by_outcome.items() if name not in ("ok", "cancelled")
    )
    marks = ", ".join(f"{name} {number}" for name, number in summary.marks.items() if name != "new_connection")
    found = [
        f"{counts['total']} requests: {counts['ok']} ok, {counts['failed']} failed, {counts['cancelled']} cancelled"
        + (f" ({outcomes})" if outcomes else "")
        + (f"; of note: {marks}" if marks else "")
        + f"; warm-up {counts['warmup']}",
        f"{_number(rates['requests_per_s'])} requests/s, {_number(rates['output_tokens_per_s'])} output tokens/s "
        f"({tokens['output']} of {tokens['requested']} tokens asked for, counted by {tokens['counted_by'] or 'nobody'})",
    ]
    far = [(TITLES[name].strip(), each.at(99.9)) for name, each in summary.latencies.items() if name in _FAR]
    said = [f"{title} {ms(at.value)} ms [{ms(at.low)}-{ms(at.high)}]" for title, at in far if at.value is not None]
    if said:
        found.append(f"p99.9: {', '.join(said)}")
    if summary.goodput is not None:
        found.append(_goodput(summary.goodput))
    if tokens["draft"]:
        accepted = tokens["accepted_draft"]
        found.append(f"draft tokens {tokens['draft']}, accepted {accepted if accepted is not None else 'not said'}")
    found.append(
        f"client: {client['processes']} process(es), {client['cpu_share_max']:.0%} of a core, "
        f"{_number(client['cpu_us_per_event'])} us of CPU per event, send lag p99 {ms(client['send_lag_p99_ns'])} ms, "
        f"loop lag p99 {ms(client['loop_lag_p99_ns'])} ms, {client['peak_rss_bytes'] / 2**20:.0f} MiB, "
        f"at most {client['peak_in_flight']} in flight, {client['connections_opened']} connections"
    )
    found += [f"note: {each}" for each in summary.warnings]
    found += [f"error ({number}x): {text}" for text, number in summary.errors[:5]]
    found += [f"INVALID: {each}" for each in summary.invalid_reasons]
    return found


def _goodput(good: dict[str, Any]) -> str:
    goal = " and ".join(good["objectives"])
    if good["without_values"]:
        return f"goodput unknown: no answer has a value for {' and '.join(good['without_values'])} (of {goal})"
    unknown = f"; {good['unknown']} have not all values, and are in neither number" if good["unknown"] else ""
    return (
        f"goodput {_number(good['requests_per_s'])} requests/s, {_percent(good['share'])} of all within {goal}{unknown}"
    )


def ms(value_ns: float | None) -> str:
    """Return nanoseconds as milliseconds: as many digits as make sense."""
    if value_ns is None:
        return "-"
    if math.isinf(value_ns):
        return "failed"
    value = value_ns / _NS_PER_MS
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _cell(percentile: Percentile) -> str:
    if percentile.value is None:
        return f"n < {percentile.needs}"
    return f"{ms(percentile.value)}\n[{ms(percentile.low)}-{ms(percentile.high)}]"


def _is_shown(summary: Summary, name: str) -> bool:
    each = summary.latencies[name]
    if name == "e2e_with_failures":
        return summary.counts["failed"] > 0
    if name not in _TWINS:
        return True
    twin = summary.latencies[_TWINS[name]]
    return summary.is_streamed and each.n > 0 and _differs(each, twin)


def _differs(one: Distribution, other: Distribution) -> bool:
    if one.mean is None or other.mean is None:
        return False
    return abs(one.mean - other.mean) > max(_NOTABLE * other.mean, 0.1 * _NS_PER_MS)


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def _percent(value: float | None) -> str:
    return "n/a" if value is None else f"{100 * value:.1f} %"
