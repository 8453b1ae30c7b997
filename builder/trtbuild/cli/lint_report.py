"""What `trtbuild lint` prints: text, JSON or SARIF to stdout, notes to stderr."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trtbuild.console import print_json, print_text
from trtbuild.printable import printable

if TYPE_CHECKING:
    from trtbuild.repo.lint.fix import Fixed
    from trtbuild.repo.lint.run import Report

logger = logging.getLogger(__name__)
#: A value that is quoted may have any length.
_MOST_CHARACTERS = 1000


def explain_rule(name: str) -> None:
    """Print what there is to say about a rule.

    Raises:
        UsageError: there is none of that id.
    """
    from trtbuild.repo.lint.select import explain

    print_text(explain(name))


def show(report: Report, form: str, fixed: Sequence[Fixed], *, dry_run: bool) -> None:
    """Print a report.

    Args:
        report: what was found; after changes were made, what is left.
        form: "text", "json" or "sarif".
        fixed: the changes that were made, or would be.
        dry_run: whether they were not made; text then shows them as a diff.
    """
    for note in report.notes:
        logger.warning("note: %s", one_line(note))
    if form == "sarif":
        from trtbuild.repo.lint.sarif import as_sarif

        print_json(as_sarif(report))
    elif form == "json":
        print_json(
            {
                "repository": str(report.path.absolute()),
                "tensorrt_llm": report.release.name if report.release else None,
                "findings": [finding.as_json() for finding in report.findings],
                "notes": list(report.notes),
                "fixed": [{"file": each.name, "changes": list(each.does), "diff": each.diff} for each in fixed],
            }
        )
    else:
        _show_text(report, fixed, dry_run=dry_run)


def _show_text(report: Report, fixed: Sequence[Fixed], *, dry_run: bool) -> None:
    for each in fixed:
        if dry_run:
            print_text(each.diff.rstrip("\n"))
        else:
            logger.info("fixed %s: %s", each.name, "; ".join(each.does))
    if dry_run and fixed:
        return
    for finding in report.findings:
        print_text(one_line(f"{finding.rule}: {finding.severity}: {finding.place}: {finding.message}; {finding.fix}"))
    if not report.findings:
        logger.info("%s: nothing found: %s", report.path, summary(report))


def summary(report: Report) -> str:
    """Return what was checked, in one line."""
    variant = f" of variant {report.variant}" if report.variant else ""
    release = (
        f"TensorRT-LLM {report.release} ({report.origin})" if report.release else "no release of TensorRT-LLM known"
    )
    return f"{report.rules} rules on {report.files} files of {report.models} model(s){variant}, {release}"


def one_line(text: str) -> str:
    """Return a text on one line, and without what a terminal takes for commands: names and values may be anybody's."""
    shown = printable(text).replace("\n", "\\n").replace("\t", "\\t")
    return shown if len(shown) <= _MOST_CHARACTERS else f"{shown[:_MOST_CHARACTERS]}..."
