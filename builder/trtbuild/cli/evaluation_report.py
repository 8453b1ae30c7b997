"""How an evaluation looks in a terminal: a table of metrics, one of the worst layers, and a verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtbuild.console import print_json, stdout_console
from trtbuild.evaluate.limits import Check, explain
from trtbuild.evaluate.page import number
from trtbuild.evaluate.report import Evaluation, to_json

if TYPE_CHECKING:
    from rich.console import Console

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
    _print_checks(console, checks)
    _print_layers(console, evaluation)
    if evaluation.tasks:
        _print_tasks(console, evaluation)
    reason = explain(evaluation, checks)
    judged = any(check.limit is not None for check in checks)
    verdict = Text("passed", "green") if judged else "no limit was set, so nothing was judged; `--help` lists them"
    console.print(Text.assemble(("failed", "red"), f": {reason}") if reason else verdict, soft_wrap=True)


def _print_checks(console: Console, checks: tuple[Check, ...]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for column in ("metric", "value", "limit", ""):
        table.add_column(column, justify="right" if column in ("value", "limit") else "left")
    for check in checks:
        limit = f"{check.kind} {check.limit:g}" if check.limit is not None else "-"
        table.add_row(check.name, number(check.value), limit, "" if check.passed else Text("failed", "red"))
    console.print(table)


def _print_layers(console: Console, evaluation: Evaluation) -> None:
    from rich.table import Table

    table = Table(title="largest errors of their own")
    for column in ("layer", "own error", "accumulated", "first linear to look at"):
        table.add_column(column, justify="right" if "error" in column or column == "accumulated" else "left")
    for layer in evaluation.worst[:_LISTED]:
        table.add_row(layer.name, number(layer.own), number(layer.accumulated), layer.worst_linear or "")
    console.print(table)


def _print_tasks(console: Console, evaluation: Evaluation) -> None:
    from rich.table import Table

    table = Table(title="tasks of lm-eval")
    for column in ("task", "metric", "source", "quantized", "standard error"):
        table.add_column(column, justify="left" if column in ("task", "metric") else "right")
    for score in evaluation.tasks:
        error = "" if score.stderr is None else number(score.stderr)
        table.add_row(score.task, score.metric, number(score.source), number(score.quantized), error)
    console.print(table)
