"""`trtbuild lint`: check a Triton model repository without a server."""

from __future__ import annotations

from pathlib import Path

import click

from trtbuild.cli.options import common, json_output
from trtbuild.errors import CheckFailed


@click.command(epilog="Example: trtbuild lint ./build/repository")
@click.argument("repository", type=click.Path(path_type=Path))
@json_output
@common
def lint(repository: Path, as_json: bool, quiet: bool) -> None:
    """Check REPOSITORY: syntax, unset values, names, and that the models fit together. Exit code 3 if it finds something.

    One line per finding: rule, severity, file, what is wrong, what to do.
    """
    from trtbuild.console import print_json, print_text
    from trtbuild.repo.lint import lint as check

    findings = check(repository)
    if as_json:
        print_json({"repository": str(repository.absolute()), "findings": [finding.as_json() for finding in findings]})
    else:
        for finding in findings:
            print_text(f"{finding.rule}: {finding.severity}: {finding.file}: {finding.message}; {finding.fix}")
    if findings:
        raise CheckFailed(f"{repository}: {len(findings)} finding(s)")
