"""`trtbuild lint`: check a Triton model repository without a server."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtbuild.cli.options import common
from trtbuild.errors import CheckFailed, UsageError

if TYPE_CHECKING:
    from trtbuild.repo.lint.fix import Fixed


@click.command(epilog="Example: trtbuild lint ./build/repository --path-map /data/llm=/models")
@click.argument("repository", type=click.Path(path_type=Path), required=False)
@click.option(
    "--tensorrt-llm",
    "version",
    metavar="VERSION",
    help="Release that will serve it; default: the engine's, or what trtbuild wrote.",
)
@click.option(
    "--path-map", metavar="HERE=THERE", help="For a server in a container: the folder HERE is mounted there as THERE."
)
@click.option(
    "--gpus", type=click.IntRange(min=0), metavar="N", help="GPUs that the server sees; ids beyond them are errors."
)
@click.option(
    "--beside",
    type=click.Path(path_type=Path),
    metavar="REPOSITORY",
    multiple=True,
    help="Another repository that is served on the same GPUs; may be given several times.",
)
@click.option("--select", metavar="RULES", multiple=True, help="Only these rules, e.g. ensemble-*,unfilled.")
@click.option("--ignore", metavar="RULES", multiple=True, help="Not these rules.")
@click.option("--strict", is_flag=True, help="Warnings, too, end with exit code 3.")
@click.option("--fix", is_flag=True, help="Make the changes that are safe; the rest of a file stays as it is.")
@click.option("--dry-run", is_flag=True, help="With --fix: show the changes as a diff, and write nothing.")
@click.option("--load-tokenizer", is_flag=True, help="Also load tokenizer.json, with the library tokenizers.")
@click.option("--explain", metavar="RULE", help="Print what a rule finds, why it matters and what to do.")
@click.option("--format", "form", type=click.Choice(["text", "json", "sarif"]), default="text", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@common
def lint(
    repository: Path | None, version: str | None, path_map: str | None, gpus: int | None, beside: tuple[Path, ...],
    select: tuple[str, ...], ignore: tuple[str, ...], strict: bool, fix: bool, dry_run: bool, load_tokenizer: bool,
    explain: str | None, form: str, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Check REPOSITORY, of trtbuild or anybody: syntax, unset values, and that models, engine and paths fit together.

    One line per finding, on stderr one that says what was checked when there is none. Exit code 3 if it finds errors.
    """
    from trtbuild.cli.lint_report import explain_rule, show
    from trtbuild.cli.paths import read_path_map
    from trtbuild.repo.lint.run import check
    from trtbuild.trtllm.versions import find_release

    if explain is not None:
        explain_rule(explain)
        return
    if repository is None:
        raise UsageError("no repository is named", hint="name the folder that holds one folder per model")
    if dry_run and not fix:
        raise UsageError("--dry-run shows what --fix would do", hint="add --fix")
    release, rules = find_release(version) if version else None, None
    fixed: Sequence[Fixed] = ()
    if select or ignore:
        from trtbuild.repo.lint.select import choose

        rules = choose(select, ignore)
    look = partial(
        check, repository, release=release, path_map=read_path_map(path_map), gpus=gpus, beside=beside, rules=rules, load_tokenizers=load_tokenizer
    )  # fmt: skip
    report = look()
    if fix:
        from trtbuild.repo.lint.fix import plan, write  # most do without it

        fixed = plan(repository, report.findings)
        if fixed and not dry_run:
            write(repository, fixed)
            report = look()
    show(report, "json" if as_json else form, fixed, dry_run=dry_run)
    if report.errors or (strict and report.warnings):
        raise CheckFailed(f"{repository}: {report.errors} error(s), {report.warnings} warning(s)")
