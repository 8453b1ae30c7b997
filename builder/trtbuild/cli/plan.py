"""`trtbuild plan`: what a deployment will be, from headers alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from trtbuild.cli.deployment_options import deployment_options, resolve, target_option
from trtbuild.cli.options import common, json_output


@click.command(epilog="Example: trtbuild plan trtbuild.yaml --tp 4 --json")
@click.argument("source", type=click.Path(path_type=Path))
@target_option(multiple=False)
@deployment_options
@json_output
@common
def plan(source: Path, as_json: bool, quiet: bool, **given: Any) -> None:
    """Say what SOURCE (a trtbuild.yaml or a model folder) will become; reads headers only and writes nothing.

    Contains the conversion plan: every mistake that headers and config.json show is an error here.
    """
    from trtbuild import planning
    from trtbuild.cli.report import print_deployment_plan

    print_deployment_plan(planning.plan(resolve(source, **given)), as_json=as_json)
