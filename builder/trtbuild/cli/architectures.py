"""`trtbuild architectures`: the support table."""

from __future__ import annotations

from dataclasses import asdict

import click

from trtbuild.cli.options import common, json_output


@click.command(epilog="Example: trtbuild architectures --json")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the table in Markdown, as in the documentation.")
@json_output
@common
def architectures(as_markdown: bool, as_json: bool, quiet: bool) -> None:
    """Print what can be converted to what: architecture by target and scheme."""
    from trtbuild import support
    from trtbuild.console import print_json, stdout_console

    if as_json:
        print_json([asdict(each) for each in support.support()])
        return
    if as_markdown:
        click.echo(support.markdown(), nl=False)
        return
    from rich.table import Table

    for header, cells in (support.forms(), support.rows()):
        table = Table(*header)
        for row in cells:
            table.add_row(*row)
        stdout_console().print(table)
