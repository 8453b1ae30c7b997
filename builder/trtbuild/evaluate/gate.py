"""The accuracy gate of a build: a checkpoint that is beyond a limit becomes no artifact. Imports what runs models on use."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from trtbuild.evaluate.limits import check, has_limits, require
from trtbuild.evaluate.page import render
from trtbuild.evaluate.report import to_json
from trtbuild.output import write_atomically
from trtbuild.quant.calibrate.samples import check_samples
from trtbuild.source import SourceCheckpoint
from trtbuild.spec import Accuracy


def check_gate(source: SourceCheckpoint, accuracy: Accuracy) -> None:
    """Refuse what would fail after the conversion: samples that are not there, libraries that are missing. Nothing without limits.

    Raises:
        TrtbuildError: the gate could not do its work.
    """
    if not has_limits(accuracy):
        return
    from trtbuild.reference.environment import require_environment

    check_samples(source, Path(accuracy.file) if accuracy.file else None, purpose="evaluation")
    require_environment()


def pass_gate(checkpoint: Path, accuracy: Accuracy, *, called: Path, report: Path, quiet: bool) -> None:
    """Evaluate a checkpoint and write the report; does nothing without limits.

    Args:
        checkpoint: its folder.
        accuracy: samples and limits.
        called: where the checkpoint will be, for report and messages.
        report: the JSON file to write, passed or not; an HTML page beside it.
        quiet: show no progress.

    Raises:
        CheckFailed: a metric is beyond its limit, or is no number.
        TrtbuildError: it cannot be evaluated.
    """
    if not has_limits(accuracy):
        return
    from trtbuild.evaluate.run import evaluate_folder

    evaluation = evaluate_folder(checkpoint, source=None, accuracy=accuracy, quiet=quiet)
    evaluation = replace(evaluation, folder=str(called))
    checks = check(evaluation, accuracy)
    page = report.with_suffix(".html")
    write_atomically(report, json.dumps(to_json(evaluation, checks), indent=2) + "\n")
    write_atomically(page, render(evaluation, checks))
    require(evaluation, checks, what=str(called), page=page)
