"""`trtbuild doctor`: check whether this machine has what is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from trtbuild.cli.options import common, json_output
from trtbuild.console import print_json, stdout_console
from trtbuild.errors import CheckFailed

if TYPE_CHECKING:
    from trtbuild.doctor import Finding

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def _print_lines(findings: list[Finding]) -> None:
    from rich.text import Text

    console = stdout_console()
    width = max((len(finding.name) for finding in findings), default=0)
    for finding in findings:
        line = Text.assemble(
            (f"{finding.status:<4}", _STYLES[finding.status]), f"  {finding.name:<{width}}  {finding.detail}"
        )
        console.print(line, soft_wrap=True)
        if finding.remedy:
            console.print(Text(f"      → {finding.remedy}"), soft_wrap=True)


@click.command(epilog="Example: trtbuild doctor --json | jq '.findings[] | select(.status != \"ok\")'")
@json_output
@common
def doctor(as_json: bool, quiet: bool) -> None:
    """Check whether this machine has what `trtbuild demo` needs; each shortcoming comes with its remedy.

    Exit code 3 when something is missing that the demo cannot do without; --quiet shows only what is not ok.
    """
    from trtbuild.doctor import examine

    findings = examine()
    failed = [finding.name for finding in findings if finding.status == "fail"]
    if as_json:
        print_json({"ok": not failed, "findings": [finding.to_json() for finding in findings]})
    else:
        _print_lines([finding for finding in findings if not quiet or finding.status != "ok"])
    if failed:
        raise CheckFailed(
            f"{len(failed)} of {len(findings)} checks failed: {', '.join(failed)}", hint="follow the remedies above"
        )
