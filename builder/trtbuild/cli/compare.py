"""`trtbuild compare`: which of two load tests is faster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtbuild.cli.options import common, json_output
from trtbuild_client.options import SHARE

if TYPE_CHECKING:
    from trtbuild_client.load.compare import Verdicts
    from trtbuild_client.load.result import Stored

_FILE = click.Path(path_type=Path)


@click.command(epilog="Example: trtbuild compare before.json after.json")
@click.argument("a", type=_FILE)
@click.argument("b", type=_FILE)
@click.option(
    "--least-effect",
    type=SHARE,
    default=0.02,
    show_default=True,
    help="Differences below this share are none.",
)
@click.option("--allow-invalid", is_flag=True, help="Compare runs in which the client was the bottleneck, too.")
@click.option(
    "--allow-different", is_flag=True, help="Compare runs of different work (prompts, lengths, load, API, model), too."
)
@click.option(
    "--fail-on",
    type=click.Choice(["slower", "cannot-tell"]),
    default="slower",
    show_default=True,
    help="What ends with exit code 3; cannot-tell includes slower.",
)
@json_output
@common
def compare(
    a: Path,
    b: Path,
    least_effect: float,
    allow_invalid: bool,
    allow_different: bool,
    fail_on: str,
    as_json: bool,
    quiet: bool,
) -> None:
    """Say whether B is faster or slower than A, or that one cannot tell (results of `bench --output`).

    Exit codes: 0 B is faster, or one cannot tell (some metrics faster and some slower, too); 1 a file cannot be read; 2 the runs
    cannot be compared: nothing in common, invalid, or of different work; 3 B is slower.
    """
    from dataclasses import replace

    from trtbuild.console import print_json, stdout_console
    from trtbuild.errors import CheckFailed, UsageError
    from trtbuild_client.load.compare import compare as judge
    from trtbuild_client.load.compare import pairs
    from trtbuild_client.load.likeness import differences
    from trtbuild_client.load.result import read

    matched = pairs(read(a), read(b))
    if not matched:
        raise UsageError(
            f"{a} and {b} have no run in common", hint="Runs are matched by their label, such as 'concurrency 8'."
        )
    for path, run in [(path, run) for pair in matched for path, run in zip((a, b), pair, strict=True)]:
        if not run.is_valid and not allow_invalid:
            raise UsageError(
                f"{path}, {run.label}: the run is invalid: {run.invalid_reasons}",
                hint="Run it again with a client that is not the bottleneck, or say --allow-invalid.",
            )
    different = [differences(*pair) for pair in matched]
    for pair, found in zip(matched, different, strict=True):
        if found and not allow_different:
            raise UsageError(
                f"{pair[0].label}: {a} and {b} are of different work: {'; '.join(found)}",
                hint="Neither is faster then. Measure the same work on both, or say --allow-different to see the numbers.",
            )
    judged = [judge(*pair, least_effect=least_effect) for pair in matched]
    verdicts = [
        (
            pair[0].label,
            replace(each, reasons=(*_notes(*pair), *(f"different work: {what}" for what in found), *each.reasons)),
        )
        for pair, found, each in zip(matched, different, judged, strict=True)
    ]
    if as_json:
        print_json([{"label": label, **each.to_json()} for label, each in verdicts])
    else:
        for label, each in verdicts:
            stdout_console().print(_table(label, each))
    bad = ("slower", "cannot tell") if fail_on == "cannot-tell" else ("slower",)
    failed = [(label, each.verdict) for label, each in verdicts if each.verdict in bad]
    if failed:
        raise CheckFailed(f"{failed[0][0]}: {failed[0][1]}", hint="See the intervals above.")


def _notes(a: Stored, b: Stored) -> list[str]:
    """Return what a reader should know of how two runs were matched."""
    return [] if a.label == b.label else [f"matched as the only runs: '{a.label}' and '{b.label}'"]


def _table(label: str, verdicts: Verdicts) -> object:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    said = "cannot tell" if verdicts.verdict == "cannot tell" else f"B is {verdicts.verdict}"
    grid = Table(
        title=Text(f"{label}: {said}"),
        title_justify="left",
    )
    for name in ("", "A", "B", "B / A [95 % interval]", "B is"):
        grid.add_column(name, justify="right" if name in ("A", "B") else "left")
    for each in verdicts.metrics:
        scale, unit = (1e6, " ms") if each.is_better_low else (1.0, "/s")
        cells = (
            f"{each.a / scale:,.2f}{unit}",
            f"{each.b / scale:,.2f}{unit}",
            f"{each.ratio:.3f} [{each.low:.3f}-{each.high:.3f}]",
        )
        grid.add_row(each.name, *cells, each.verdict)
    notes = [*verdicts.reasons, *(f"{name}: {why}" for name, why in verdicts.skipped.items())]
    return Group(grid, *map(Text, notes))
