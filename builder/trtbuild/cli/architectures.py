"""`trtbuild architectures`: the support tables."""

from __future__ import annotations

from dataclasses import asdict

import click

from trtbuild.cli.options import common, json_output


@click.command(epilog="Example: trtbuild architectures --json")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the table in Markdown, as in the documentation.")
@click.option("--gpus", "by_gpu", is_flag=True, help="Print which number formats run on which GPUs instead.")
@json_output
@common
def architectures(as_markdown: bool, by_gpu: bool, as_json: bool, quiet: bool) -> None:
    """Print what can be converted to what: architecture by target and scheme, or with --gpus number format by target and GPU."""
    if by_gpu:
        _gpus(as_markdown=as_markdown, as_json=as_json)
        return
    from trtbuild import support
    from trtbuild.cli.ruled import print_table
    from trtbuild.console import print_json

    if as_json:
        print_json([asdict(each) for each in support.support()])
        return
    if as_markdown:
        click.echo(support.markdown(), nl=False)
        return
    for header, cells in (support.forms(), support.modes(), support.rows()):
        print_table(header, cells)


def _gpus(*, as_markdown: bool, as_json: bool) -> None:
    from trtbuild import hardware_table
    from trtbuild.cli.ruled import print_table
    from trtbuild.console import print_json

    if as_json:
        print_json(hardware_table.data())
        return
    if as_markdown:
        click.echo(hardware_table.markdown(), nl=False)
        return
    header, cells, reasons = hardware_table.rows()
    print_table(header, cells)
    for number, reason in enumerate(reasons, start=1):
        click.echo(f"({number}) {reason}")
    for line in hardware_table.names():
        click.echo(line)
