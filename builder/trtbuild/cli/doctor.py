"""`trtbuild doctor`: check whether this machine has what is needed."""

from __future__ import annotations

from pathlib import Path
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

    from trtbuild.doctor.finding import TITLES

    console = stdout_console()
    width = max((len(finding.name) for finding in findings), default=0)
    several = len({finding.section for finding in findings}) > 1
    for section, title in TITLES.items():
        part = [finding for finding in findings if finding.section == section]
        if several and part:
            console.print(Text(title, style="bold"), soft_wrap=True)
        for finding in part:
            line = Text.assemble(
                (f"{finding.status:<4}", _STYLES[finding.status]), f"  {finding.name:<{width}}  {finding.detail}"
            )
            console.print(line, soft_wrap=True)
            if finding.remedy:
                console.print(Text(f"      → {finding.remedy}"), soft_wrap=True)


@click.command(epilog="Example: trtbuild doctor --for ./build --bundle report.tar.gz")
@click.option("--for", "artifact", type=click.Path(path_type=Path), help="Check whether this build, checkpoint, engine or model folder, or repository can run here, instead of the demo.")  # fmt: skip
@click.option("--bundle", type=click.Path(path_type=Path), help="Also write a .tar.gz for a bug report: findings, versions, configs and ends of logs of --for; redacted.")  # fmt: skip
@json_output
@common
def doctor(artifact: Path | None, bundle: Path | None, as_json: bool, quiet: bool) -> None:
    """Check whether this machine has what `trtbuild demo` needs, or what an artifact needs; each shortcoming comes with its remedy.

    Exit code 3 when something is missing that the demo, or the artifact, cannot do without; --quiet shows only what is not ok.
    """
    from trtbuild.doctor import examine, examine_for, survey

    if bundle is not None:
        from trtbuild.doctor.bundle import check_bundle

        check_bundle(bundle)
    facts = survey()
    findings = examine(facts) if artifact is None else examine_for(artifact, facts, even_if_broken=bundle is not None)
    failed = [finding.name for finding in findings if finding.status == "fail"]
    report = {"ok": not failed, "findings": [finding.to_json() for finding in findings]}
    if bundle is not None:
        from trtbuild.doctor.bundle import write_bundle

        written = write_bundle(bundle, findings, facts, artifact=artifact)
        report["bundle"] = {"path": str(written.path), "files": written.files, "left_out": written.left_out}
        if not quiet:
            click.echo(
                f"{bundle}: {len(written.files)} files; read them before you send it: tar xzf {bundle}", err=True
            )
    if as_json:
        print_json(report)
    else:
        _print_lines([finding for finding in findings if not quiet or finding.status != "ok"])
    if failed:
        raise CheckFailed(
            f"{len(failed)} of {len(findings)} checks failed: {', '.join(failed)}", hint="follow the remedies above"
        )
