"""`trtbuild schema`: print the JSON Schema of trtbuild.yaml."""

from __future__ import annotations

import click

from trtbuild.cli.options import common
from trtbuild.console import print_json


@click.command(epilog="Example: trtbuild schema > trtbuild.schema.json")
@common
def schema(quiet: bool) -> None:
    """Print the JSON Schema of trtbuild.yaml, for editors and validators."""
    from trtbuild.spec.schema import json_schema

    print_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **json_schema()})
