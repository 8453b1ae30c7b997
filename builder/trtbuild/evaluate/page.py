"""The report as one HTML page: no script, nothing to load, light or dark as the reader's system is. Knows the report, not how it came to be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from trtbuild import __version__
from trtbuild.evaluate.chart import accumulated_plot, own_error_plot
from trtbuild.evaluate.limits import Check
from trtbuild.evaluate.report import Evaluation
from trtbuild_client.html_parts import cards, document, section, table, verdict

#: (passed, without a limit) -> what a row says.
_VERDICTS = {
    (True, False): '<span class="good">passed</span>',
    (True, True): "",
    (False, False): '<span class="bad">failed</span>',
    (False, True): '<span class="bad">failed</span>',
}
#: Layers listed below the plots, the worst first.
_LISTED = 10
_STYLE = """
:root { --ink: #1c2430; --soft: #5b6675; --paper: #f6f7f9; --card: #ffffff; --rule: #e2e6eb; --accent: #3b6fd4; --mark: #d9822b; --bad: #c8372d; --good: #1f8a54; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #9aa5b4; --paper: #14181e; --card: #1c222a; --rule: #2e3742;
  --accent: #7aa5f5; --mark: #f0a85a; --bad: #f0766c; --good: #5cc795; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1040px; margin: 0 auto; padding: 32px 20px 56px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 16px; margin: 0 0 2px; }
p { margin: 0 0 10px; } .soft { color: var(--soft); } code { font: 13px ui-monospace, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.verdict { display: inline-block; padding: 2px 12px; border-radius: 999px; font-weight: 600; color: var(--card); background: var(--good); }
.verdict.failed { background: var(--bad); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(180px, 1fr)); gap: 12px; margin: 20px 0; }
.card, section { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
.card { padding: 14px 16px; } .card b { display: block; font-size: 24px; font-variant-numeric: tabular-nums; }
section { padding: 18px 20px; margin: 16px 0; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 6px 12px 6px 0; border-bottom: 1px solid var(--rule); } th { color: var(--soft); font-weight: 500; }
tr:last-child td { border-bottom: 0; } td.number, th.number { text-align: right; } .bad { color: var(--bad); font-weight: 600; } .good { color: var(--good); }
svg { width: 100%; min-width: 560px; height: auto; display: block; } .grid { stroke: var(--rule); } .bar { fill: var(--accent); } .bar.culprit { fill: var(--mark); }
.curve { stroke: var(--accent); stroke-width: 2; } .point { fill: var(--accent); } .limit { stroke: var(--bad); stroke-dasharray: 6 4; }
.limit-label { fill: var(--bad); font-size: 12px; } .tick, .axis { fill: var(--soft); font-size: 12px; }
"""


def render(evaluation: Evaluation, checks: Sequence[Check]) -> str:
    """Return the page."""
    passed = all(check.passed for check in checks)
    quality, worst = evaluation.quality, evaluation.culprit
    limit = next((check.limit for check in checks if check.field == "max_layer_error"), None)
    scheme = evaluation.quant_algo or "plain weights"
    cache = f", {evaluation.kv_cache_quant_algo} KV cache" if evaluation.kv_cache_quant_algo else ""
    entries = (
        ("perplexity, quantized", number(quality.quantized_perplexity), f"source {number(quality.source_perplexity)}"),
        ("perplexity ratio", f"{quality.perplexity_ratio:.4f}", "quantized over source"),
        ("mean KL divergence", number(quality.mean_kl), f"99th percentile {number(quality.p99_kl)}, nats"),
        ("top-1 agreement", f"{100 * quality.top1_agreement:.2f} %", f"of {quality.tokens:,} tokens"),
        ("largest error of a layer", number(worst.own), worst.name),
    )
    parts = (
        verdict("passed" if passed else "failed", is_good=passed),
        f"<h1>{escape(scheme)}{escape(cache)}, compared with its source</h1>",
        f'<p class="soft"><code>{escape(evaluation.folder)}</code><br>made from <code>{escape(evaluation.source)}</code></p>',
        cards(entries),
        section(
            "Limits", "A metric that is not a finite number fails, whether it has a limit or not.", _checks(checks)
        ),
        section(
            "Error of each layer",
            "Each quantized layer is given the source's input; relative root mean square of its output's error, against what the source's "
            "layer adds to its input. The largest is marked: it is where to look first.",
            own_error_plot(evaluation.layers, culprit=worst, limit=limit),
        ),
        section(
            "What errors add up to",
            "Error of each layer's output when both models run on their own, relative to the source's output.",
            accumulated_plot(evaluation.layers),
        ),
        section("Layers with the largest error of their own", "", _layers(evaluation)),
        *([section("Tasks of lm-eval", "", _tasks(evaluation))] if evaluation.tasks else []),
        section("How this was measured", "", _provenance(evaluation)),
    )
    return document(f"trtbuild evaluate: {scheme}", _STYLE, "".join(parts))


def number(value: float) -> str:
    """Return a number for people."""
    return f"{value:.4g}" if math.isfinite(value) else "not a number"


def _checks(checks: Sequence[Check]) -> str:
    rows = (
        (
            escape(check.name),
            number(check.value),
            f"{check.kind} {check.limit:g}" if check.limit is not None else "none",
            _VERDICTS[check.passed, check.limit is None],
        )
        for check in checks
    )
    return table(("metric", "value", "limit", ""), rows, frozenset({1, 2}))


def _layers(evaluation: Evaluation) -> str:
    rows = (
        (
            f"<code>{escape(layer.name)}</code>",
            number(layer.own),
            number(layer.accumulated),
            f"<code>{escape(layer.worst_linear)}</code> ({number(layer.linears[layer.worst_linear])})"
            if layer.worst_linear
            else "",
        )
        for layer in evaluation.worst[:_LISTED]
    )
    return table(("layer", "own error", "accumulated", "first linear to look at"), rows, frozenset({1, 2}))


def _tasks(evaluation: Evaluation) -> str:
    rows = (
        (
            escape(score.task),
            escape(score.metric),
            number(score.source),
            number(score.quantized),
            "" if score.stderr is None else number(score.stderr),
        )
        for score in evaluation.tasks
    )
    return table(("task", "metric", "source", "quantized", "standard error"), rows, frozenset({2, 3, 4}))


def _provenance(evaluation: Evaluation) -> str:
    samples = evaluation.samples
    rows = (
        ("samples", escape(f"{samples['origin']}: {samples['rows']} rows, {samples['tokens']:,} tokens")),
        ("SHA-256 of the token ids", f"<code>{escape(str(samples['sha256']))}</code>"),
        ("computed in", escape(evaluation.dtype)),
        ("time", f"{evaluation.seconds:.1f} s, peak memory {evaluation.peak_rss_bytes / 2**20:,.0f} MiB"),
        ("by", f"trtbuild {escape(__version__)}"),
    )
    return table(("", ""), rows, frozenset())
