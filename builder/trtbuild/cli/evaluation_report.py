"""How an evaluation looks in a terminal: a table of metrics, one of the worst layers, and a verdict."""

from __future__ import annotations

from trtbuild.cli.ruled import print_table
from trtbuild.console import print_json, stdout_console
from trtbuild.evaluate.limits import Check, explain
from trtbuild.evaluate.page import number
from trtbuild.evaluate.report import Evaluation, to_json

#: Layers listed, the worst first.
_LISTED = 5


def print_evaluation(evaluation: Evaluation, checks: tuple[Check, ...], *, as_json: bool) -> None:
    """Print the report of `evaluate_folder`."""
    if as_json:
        print_json(to_json(evaluation, checks))
        return
    from rich.text import Text

    console, quality = stdout_console(), evaluation.quality
    console.print(Text.assemble((evaluation.folder, "bold"), f" against {evaluation.source}"), soft_wrap=True)
    cache = f", {evaluation.kv_cache_quant_algo} KV cache" if evaluation.kv_cache_quant_algo else ""
    console.print(
        f"{evaluation.quant_algo or 'plain weights'}{cache}; {quality.tokens:,} predicted tokens of {evaluation.samples['origin']}; perplexity "
        f"{quality.quantized_perplexity:.4f}, the source's {quality.source_perplexity:.4f}",
        soft_wrap=True,
    )
    _print_checks(checks)
    _print_layers(evaluation)
    if evaluation.tasks:
        _print_tasks(evaluation)
    reason = explain(evaluation, checks)
    judged = any(check.limit is not None for check in checks)
    verdict = Text("passed", "green") if judged else "no limit was set, so nothing was judged; `--help` lists them"
    console.print(Text.assemble(("failed", "red"), f": {reason}") if reason else verdict, soft_wrap=True)


def _print_checks(checks: tuple[Check, ...]) -> None:
    rows = [
        (
            check.name,
            number(check.value),
            f"{check.kind} {check.limit:g}" if check.limit is not None else "-",
            "" if check.passed else "failed",
        )
        for check in checks
    ]
    print_table(("metric", "value", "limit", ""), rows, align="<>><")


def _print_layers(evaluation: Evaluation) -> None:
    rows = [
        (layer.name, number(layer.own), number(layer.accumulated), layer.worst_linear or "")
        for layer in evaluation.worst[:_LISTED]
    ]
    columns = ("layer", "own error", "accumulated", "first linear to look at")
    print_table(columns, rows, align="<>><", title="largest errors of their own")


def _print_tasks(evaluation: Evaluation) -> None:
    rows = [
        (
            score.task,
            score.metric,
            number(score.source),
            number(score.quantized),
            "" if score.stderr is None else number(score.stderr),
        )
        for score in evaluation.tasks
    ]
    columns = ("task", "metric", "source", "quantized", "standard error")
    print_table(columns, rows, align="<<>>>", title="tasks of lm-eval")
