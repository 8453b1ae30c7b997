"""`trtbuild verify`: is a checkpoint, an engine or a build still what was written, and is the checkpoint what its source says?"""

from __future__ import annotations

from pathlib import Path

import click

from trtbuild.cli.options import common, json_output

#: Exit code of a check that found something.
_FOUND = 3


@click.command(epilog="Example: trtbuild verify ./ckpt")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--source/--no-source",
    "with_source",
    default=True,
    show_default=True,
    help="Compare every weight with the model it was converted from, too.",
)
@json_output
@common
@click.pass_context
def verify(ctx: click.Context, folder: Path, with_source: bool, as_json: bool, quiet: bool) -> None:
    """Read FOLDER (a checkpoint, an engine, or a build folder) again, whole: any byte that is not what was written is found.

    With the source, every weight is decoded and compared with the model: unquantized ones must be equal, quantized ones within the error
    bound of their scheme. Exit code 3 when something was found.
    """
    from trtbuild.cli.report import print_verification
    from trtbuild.convert.verification import verify_folder

    report = verify_folder(folder, with_source=with_source, quiet=quiet)
    print_verification(report, as_json=as_json)
    if report["findings"]:
        ctx.exit(_FOUND)
