"""The report as one HTML page: no script, nothing to load, light or dark as the reader's system is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from trtbuild_client.html_parts import cards, document, section, table, verdict
from trtbuild_client.load import pictures
from trtbuild_client.load.chart import Plot
from trtbuild_client.load.distribution import PERCENTILES, Percentile
from trtbuild_client.load.metrics import NEED_STREAMING
from trtbuild_client.load.pictures import Runs
from trtbuild_client.load.run import Run
from trtbuild_client.load.show import TITLES, ms
from trtbuild_client.load.slo import Objective
from trtbuild_client.load.summary import Summary

_STYLE = (
    """
:root { --ink: #1c2430; --soft: #5b6675; --paper: #f6f7f9; --card: #ffffff; --rule: #e2e6eb; --bad: #c8372d; --good: #1f8a54; --warn: #b9770e;
  --c0: #3b6fd4; --c1: #1f8a54; --c2: #d9822b; --c3: #8a4fc4; --c4: #c4437b; --c5: #2a9bb0; --c6: #7a6a3a; --c7: #5b6675; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #9aa5b4; --paper: #14181e; --card: #1c222a; --rule: #2e3742; --bad: #f0766c;
  --good: #5cc795; --warn: #e8b04f; --c0: #7aa5f5; --c1: #5cc795; --c2: #f0a85a; --c3: #b98cf0; --c4: #ee87b2; --c5: #6cc9da; --c6: #c3b27c; --c7: #9aa5b4; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 20px 56px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 0 0 2px; } h3 { font-size: 14px; margin: 18px 0 2px; color: var(--soft); font-weight: 600; }
p { margin: 0 0 10px; } .soft { color: var(--soft); } code { font: 13px ui-monospace, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.verdict { display: inline-block; padding: 2px 12px; border-radius: 999px; font-weight: 600; color: var(--card); background: var(--good); }
.verdict.failed { background: var(--bad); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); gap: 12px; margin: 20px 0; }
.card, section { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
.card { padding: 14px 16px; } .card b { display: block; font-size: 23px; font-variant-numeric: tabular-nums; }
section { padding: 18px 20px; margin: 16px 0; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 6px 12px 6px 0; border-bottom: 1px solid var(--rule); white-space: nowrap; } th { color: var(--soft); font-weight: 500; }
tr:last-child td { border-bottom: 0; } td.number, th.number { text-align: right; } td small { color: var(--soft); display: block; font-size: 11.5px; line-height: 1.2; }
td.free { white-space: normal; } .bad { color: var(--bad); font-weight: 600; } .good { color: var(--good); } .refused { color: var(--soft); }
ul { margin: 6px 0 0; padding-left: 20px; }
svg { width: 100%; min-width: 560px; height: auto; display: block; } .grid { stroke: var(--rule); } .grid.faint { opacity: .55; }
.tick, .axis { fill: var(--soft); font-size: 12px; } .limit { stroke: var(--bad); stroke-dasharray: 6 4; } .limit-label { fill: var(--bad); font-size: 12px; }
.curve { fill: none; stroke-width: 2; stroke-linejoin: round; } .whisker { fill: none; stroke-width: 1.4; } .cross { fill: none; stroke-width: 2; }
.area { opacity: .3; stroke: none; } .dot { stroke: none; opacity: .75; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 4px 0 0 68px; font-size: 13px; color: var(--soft); }
.legend i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px; vertical-align: -1px; }
"""
    + "".join(
        f".curve.c{i}, .whisker.c{i} {{ stroke: var(--c{i}); }} .area.c{i}, .dot.c{i} {{ fill: var(--c{i}); }} .legend i.c{i} {{ background: var(--c{i}); }}\n"
        for i in range(8)
    )
    + ".cross.bad { stroke: var(--bad); } .legend i.bad { background: var(--bad); }\n"
)


def render(runs: Runs, described: dict[str, Any], *, created: str, extra: dict[str, Any] | None = None) -> str:
    """Return the page."""
    objectives = _objectives(runs)
    valid = all(summary.is_valid for summary, _ in runs)
    title = f"{described.get('model', '')} under load"
    parts = [
        verdict("valid" if valid else "invalid: the client was a bottleneck", is_good=valid),
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft"><code>{escape(str(described.get("url", "")))}</code>, {escape(str(described.get("api", "")))}; {escape(created)}</p>',
        _capacity(extra),
        _cards(*runs[-1]) if runs else "",
        _sweep(runs, objectives) if len(runs) > 1 else "",
        _distributions(runs, objectives),
        *(_run(summary, run, objectives) for summary, run in runs),
        _method(),
    ]
    return document(f"trtbuild bench: {title}", _STYLE, "".join(parts))


def _objectives(runs: Runs) -> tuple[Objective, ...]:
    from trtbuild_client.load.slo import parse

    for summary, _ in runs:
        if summary.goodput is not None:
            texts = [each.replace(" <= ", "=").replace(" ", "") for each in summary.goodput["objectives"]]
            return parse(",".join(texts))
    return ()


#: Verdict of a rate -> how it is written.
_VERDICTS = {
    "met": '<span class="good">met</span>',
    "missed": '<span class="bad">missed</span>',
    "unknown": '<span class="refused">unknown</span>',
}


def _percent(share: float | None) -> str:
    return "n/a" if share is None else f"{100 * share:.2f} %"


def _capacity(extra: dict[str, Any] | None) -> str:
    found = (extra or {}).get("capacity")
    if not found:
        return ""
    low, high = found["low_requests_per_s"], found["high_requests_per_s"]
    span = f"{low:.3g} to {high:.3g}" if high is not None else f"at least {low:.3g}"
    title = f"{span} requests/s" if low else "unknown" if high is None else f"not even {high:.3g} requests/s"
    rows = (
        (
            f"{point['requests_per_s']:.3g}",
            _VERDICTS["unknown" if point["problem"] else "met" if point["met"] else "missed"],
            "by its interval" if point["decided"] else "by its estimate only",
            f"{point['requests']:,}",
            "<br>".join(
                f"{escape(share['objective'])}: {_percent(share['above'])} above, {100 * share['allowed']:.3g} % allowed"
                for share in point["shares"]
            )
            + escape(point["problem"] or ""),
        )
        for point in sorted(found["points"], key=lambda each: float(each["rate"]))
    )
    points = _table(("requests/s", "", "decided", "requests", "values above their limit"), rows, frozenset({0, 3}))
    goal = escape(" and ".join(found["objectives"]))
    return f'<section><h2>Capacity: {title}</h2><p class="soft">{goal}; {escape(found["stopped_because"])}</p>{points}</section>'


def _cards(summary: Summary, run: Run) -> str:
    rates, latencies = summary.rates, summary.latencies
    first = ("ttft", "TTFT") if summary.is_streamed else ("e2e", "end to end")
    entries = [
        _percentile_card(latencies[first[0]].at(50.0), first[1]),
        _percentile_card(latencies[first[0]].at(95.0), first[1]),
    ]
    if summary.is_streamed:
        entries.append(_percentile_card(latencies["itl"].at(95.0), "ITL"))
    entries.append(
        ("output tokens/s", _number(rates["output_tokens_per_s"]), f"{_number(rates['requests_per_s'])} requests/s")
    )
    if summary.goodput is not None:
        share = summary.goodput["share"]
        entries.append(("goodput", _number(summary.goodput["requests_per_s"]), f"requests/s; {_percent(share)} of all"))
    counts = summary.counts
    entries.append(
        ("requests", f"{counts['ok']:,} ok", f"{counts['failed']:,} failed, {counts['cancelled']:,} cancelled")
    )
    return f'<p class="soft">{escape(summary.label)}</p>{cards(entries)}'


def _percentile_card(percentile: Percentile, name: str) -> tuple[str, str, str]:
    title = f"{name} {percentile.name}"
    if percentile.value is None:
        return title, "too few", f"{percentile.needs} values needed"
    return title, f"{ms(percentile.value)} ms", f"{ms(percentile.low)} to {ms(percentile.high)} ms"


def _sweep(runs: Runs, objectives: Sequence[Objective]) -> str:
    if runs[0][0].plan["kind"] not in ("open", "closed"):
        return ""
    metrics = (("ttft", "TTFT"), ("itl", "ITL"), ("e2e", "end to end"))
    streamed = runs[0][0].is_streamed
    plots = [
        pictures.against_load(runs, *each, objectives) for each in metrics if streamed or each[0] not in NEED_STREAMING
    ]
    body = "".join(
        f"<h3>{escape(each.title)}</h3>{each.svg()}"
        for each in [*plots, pictures.tokens_against_load(runs)]
        if each.svg()
    )
    return section("Latency against load", "Percentiles of each run with 95 % intervals.", body)


def _distributions(runs: Runs, objectives: Sequence[Objective]) -> str:
    metrics = (("ttft", "time to first token"), ("itl", "inter-token latency"), ("e2e", "end to end"))
    body = "".join(_titled(pictures.cdf(runs, name, title, objectives), title) for name, title in metrics)
    return section(
        "Distributions",
        "Share of requests (of tokens, for inter-token latency) that took at most so long; successful requests.",
        body,
    )


def _run(summary: Summary, run: Run, objectives: Sequence[Objective]) -> str:
    notes = [
        *(f'<li class="bad">{escape(each)}</li>' for each in summary.invalid_reasons),
        *(f"<li>{escape(each)}</li>" for each in summary.warnings),
    ]
    body = [
        f"<ul>{''.join(notes)}</ul>" if notes else "",
        _latencies(summary),
        _titled(pictures.timeline(summary, run, objectives), "each request by when it was due"),
        _titled(pictures.in_flight(run), "requests in flight"),
        _titled(pictures.throughput(run), "output tokens per second"),
        _outcomes(summary),
        _client(summary),
    ]
    return section(summary.label, str(summary.plan["dataset"]), "".join(body))


def _latencies(summary: Summary) -> str:
    rows = []
    for name, title in TITLES.items():
        each = summary.latencies[name]
        if each.n == 0 or (name == "e2e_with_failures" and not summary.counts["failed"]):
            continue
        rows.append((escape(title), ms(each.mean), *map(_cell, each.percentiles), f"{each.n:,}"))
    head = ("milliseconds", "mean", *(f"p{q:g}" for q in PERCENTILES), "n")
    return "<h3>latencies, with 95 % intervals</h3>" + _table(head, rows, frozenset(range(1, len(head))))


def _cell(percentile: Percentile) -> str:
    if percentile.value is None:
        return f'<span class="refused">n &lt; {percentile.needs}</span>'
    return f"{ms(percentile.value)}<small>{ms(percentile.low)} - {ms(percentile.high)}</small>"


def _outcomes(summary: Summary) -> str:
    rows = [(f"<code>{escape(name)}</code>", f"{number:,}", "") for name, number in summary.by_outcome.items()]
    rows += [(f"<code>{escape(name)}</code>", f"{number:,}", "of note") for name, number in summary.marks.items()]
    rows += [("error", f"{number:,}", escape(text)) for text, number in summary.errors[:10]]
    return "<h3>what became of the requests</h3>" + _table(("", "requests", ""), rows, frozenset({1}))


def _client(summary: Summary) -> str:
    checks = [
        (
            f"<code>{escape(each.name)}</code>",
            "n/a"
            if each.seen is None
            else f"{each.seen / 1e6:.2f} ms"
            if each.name.endswith("_ns")
            else f"{each.seen:.0%}",
            f"{each.limit / 1e6:g} ms" if each.name.endswith("_ns") else f"{each.limit:.0%}",
            '<span class="good">passed</span>' if each.is_passed else '<span class="bad">failed</span>',
        )
        for each in summary.checks
    ]
    client = summary.client
    per_event = client["cpu_us_per_event"]
    said = (
        f"{client['processes']} process(es); {_number(per_event)} µs of CPU per event; {client['peak_rss_bytes'] / 2**20:.0f} MiB; "
        f"at most {client['peak_in_flight']} requests in flight on {client['connections_opened']} connections."
    )
    return f'<h3>the client itself</h3><p class="soft">{said}</p>' + _table(
        ("check", "seen", "limit", ""), checks, frozenset({1, 2})
    )


def _method() -> str:
    text = (
        "The clock of a request starts when it was due, not when it was sent, so that waiting in the client hides nothing. Percentiles are interpolated "
        "linearly; their intervals come from order statistics (binomial ranks, 95 %), for tokens with the design effect of requests. Where no interval "
        "exists there are too few values, and no number is given. Failed requests are in no latency but 'failed = never'."
    )
    return section("How this was measured", text, "")


def _titled(plot: Plot, title: str) -> str:
    drawn = plot.svg()
    return f"<h3>{escape(title)}</h3>{drawn}" if drawn else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: frozenset[int]) -> str:
    return table(head, rows, numbers, last="free")


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"
