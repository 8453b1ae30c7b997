"""`trtbuild evaluate`: what is a quantized checkpoint worth, compared with its source?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from trtbuild.cli.accuracy_options import accuracy_options, resolve_accuracy
from trtbuild.cli.options import common, json_output
from trtbuild.errors import UsageError
from trtbuild.names import CALIBRATION_DTYPES

#: Exit code of a check that found something.
_FOUND = 3


@click.command(epilog="Example: trtbuild evaluate ./ckpt --max-perplexity-ratio 1.05 --html report.html")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--source", type=click.Path(path_type=Path), metavar="MODEL", help="The model; default: what the manifest names."
)
@accuracy_options
@click.option(
    "--dtype",
    type=click.Choice(CALIBRATION_DTYPES),
    default="float32",
    show_default=True,
    help="dtype of the computation.",
)
@click.option(
    "--tasks",
    metavar="NAMES",
    help="Score these tasks of lm-eval, too (hellaswag,arc_easy); holds each model in memory as a whole.",
)
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="With --tasks: at most N documents of each task."
)
@click.option(
    "--include-path",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="With --tasks: a folder with task files of your own.",
)
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write the report as an HTML page, too.")
@json_output
@common
@click.pass_context
def evaluate(
    ctx: click.Context,
    /,
    folder: Path,
    source: Path | None,
    config: Path | None,
    dtype: str,
    tasks: str | None,
    limit: int | None,
    include_path: Path | None,
    html: Path | None,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Compare FOLDER (a checkpoint, or a build folder) with its source on held-out text, both read from disk one layer at a time.

    Reports perplexity, KL divergence, top-1 agreement and the error of every layer, with the layer and the linear to look at first. Exit
    code 3 when a metric is beyond its limit, or is not a number.

    --tasks hands both models over to EleutherAI's lm-eval (pip install 'trtbuild[eval]'). It loads the source, then the checkpoint, whole;
    lm-eval downloads the dataset of a task unless it is on this machine already. Nothing else needs a network.
    """
    from trtbuild.cli.evaluation_report import print_evaluation
    from trtbuild.evaluate.limits import check
    from trtbuild.evaluate.page import render
    from trtbuild.evaluate.run import evaluate_folder
    from trtbuild.evaluate.tasks import TaskOptions, task_names
    from trtbuild.output import check_file, write_atomically
    from trtbuild_client.output_file import check_apart

    accuracy = resolve_accuracy(config, given)
    if html is not None:
        check_file(html, force=True)
        read = {
            "FOLDER": folder,
            "--source": source,
            "--config": config,
            "--texts": given["texts"],
            "--include-path": include_path,
        }
        check_apart([("--html", html)], _files(read))
    if tasks is None and (limit is not None or include_path is not None):
        raise UsageError("--limit and --include-path are for --tasks", hint="name tasks, e.g. --tasks hellaswag")
    options = TaskOptions(task_names(tasks), limit, include_path) if tasks is not None else None
    evaluation = evaluate_folder(folder, source=source, accuracy=accuracy, dtype=dtype, tasks=options, quiet=quiet)
    checks = check(evaluation, accuracy)
    if html is not None:
        write_atomically(html, render(evaluation, checks))
    print_evaluation(evaluation, checks, as_json=as_json)
    if not all(each.passed for each in checks):
        ctx.exit(_FOUND)


def _files(read: Mapping[str, Path | None]) -> Iterator[tuple[str, Path]]:
    """Yield the files that are read, those in folders too, but for the pages that were written there before."""
    for name, path in read.items():
        for file in [path, *path.rglob("*")] if path is not None else ():
            if file.is_file() and file.suffix != ".html":
                yield name, file
