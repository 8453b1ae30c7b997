"""`trtbuild diff`: compare two Triton model repositories by what they mean."""

from __future__ import annotations

from pathlib import Path

import click

from trtbuild.cli.options import common, json_output

_FOLDER = click.Path(path_type=Path)


@click.command(epilog="Example: trtbuild diff ./old/repository ./new/repository")
@click.argument("a", type=_FOLDER)
@click.argument("b", type=_FOLDER)
@json_output
@common
def diff(a: Path, b: Path, as_json: bool, quiet: bool) -> None:
    """Compare A and B, model repositories or build folders that have one: exit code 0 if they are the same, 3 if not.

    Compared are the models, their tensors, parameters, scheduling, ensemble wiring and every file. The order of fields, formatting, comments
    and defaults that are spelled out do not count; YAML and JSON files count by what they say.
    """
    from trtbuild.cli.ruled import print_table
    from trtbuild.console import print_json, print_text
    from trtbuild.errors import CheckFailed
    from trtbuild.repo.difference import compare
    from trtbuild.serve.preflight import find_repository

    left, right = find_repository(a), find_repository(b)
    differences = compare(left, right)
    if as_json:
        found = [difference.as_json() for difference in differences]
        print_json({"a": str(left.absolute()), "b": str(right.absolute()), "same": not found, "differences": found})
    elif differences:
        rows = [(each.model, each.aspect, each.what, each.a or "-", each.b or "-") for each in differences]
        print_table(("model", "aspect", "what", "A", "B"), rows)
    else:
        print_text(f"{a} and {b} are the same")
    if differences:
        raise CheckFailed(f"{a} and {b} differ in {len(differences)} place(s)")
