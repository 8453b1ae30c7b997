"""`trtbuild build`: everything a server needs, in one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from trtbuild.cli.deployment_options import deployment_options, resolve, target_option
from trtbuild.cli.options import common, force, json_output, memory
from trtbuild.console import print_json, print_text


@click.command(epilog="Example: trtbuild build trtbuild.yaml -o ./build")
@click.argument("source", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="Folder to write.")
@target_option(multiple=False)
@deployment_options
@memory
@force
@json_output
@common
def build(source: Path, output: Path, memory_bytes: int, force: bool, as_json: bool, quiet: bool, **given: Any) -> None:
    """Build SOURCE (a trtbuild.yaml or a model folder): convert, and put all that a server needs into one folder.

    A second run with unchanged inputs does nothing. The folder holds trtbuild.yaml (resolved), checkpoint/ and manifest.json;
    `trtbuild render` adds repository/.
    """
    from trtbuild.building import build as run

    result = run(resolve(source, **given), output, force=force, memory_bytes=memory_bytes, quiet=quiet)
    if as_json:
        print_json(result)
    else:
        print_text(f"{output}: {'unchanged' if result['unchanged'] else 'built'} for target {result['target']}")
