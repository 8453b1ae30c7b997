"""`trtbuild sensitivity`: which linears lose how much, and a mixture of schemes within a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from trtbuild.cli.deployment_options import deployment_options, resolve, target_option
from trtbuild.cli.options import common, force, json_output, memory
from trtbuild.names import QUANTIZATIONS
from trtbuild_client.options import Number

_DEFAULT = "int4_awq,fp8,none"


@click.command(epilog="Example: trtbuild sensitivity trtbuild.yaml --bits-per-weight 6 -o mixed.yaml")
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--bits-per-weight", type=Number(0, min_open=True), required=True, metavar="BITS", help="Budget, mean over the weights of all decoder linears, scales included.")  # fmt: skip
@click.option("--schemes", default=_DEFAULT, show_default=True, metavar="LIST", help="Schemes to choose from, separated by commas.")  # fmt: skip
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write a trtbuild.yaml with the chosen schemes.")  # fmt: skip
@target_option(multiple=False)
@deployment_options
@memory
@force
@json_output
@common
def sensitivity(
    source: Path,
    bits_per_weight: float,
    schemes: str,
    output: Path | None,
    memory_bytes: int,
    force: bool,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Measure on calibration data how much every linear of SOURCE (a trtbuild.yaml or a model folder) loses under several schemes, and
    choose one for each within a budget of bits.

    Linears that the kernels read as one get one scheme. The result is a deployment like any other: `trtbuild plan` shows its size,
    `trtbuild build` makes it, `trtbuild evaluate` says what it is worth.
    """
    from trtbuild.cli.sensitivity_report import print_mixture
    from trtbuild.errors import UsageError
    from trtbuild.init_file import render
    from trtbuild.output import check_file, write_atomically
    from trtbuild.sensitivity.run import mix

    chosen_here = [option for option in ("quantization", "override", "exclude") if given.get(option)]
    if chosen_here:
        raise UsageError(
            f"--{', --'.join(chosen_here)}: this command chooses the scheme of every linear",
            hint="say with --schemes what it may choose from",
        )
    names = [name.strip() for name in schemes.split(",") if name.strip()]
    unknown = [name for name in names if name not in QUANTIZATIONS]
    if unknown or not names:
        raise UsageError(f"--schemes: {', '.join(unknown) or 'none'} given", hint=f"known: {', '.join(QUANTIZATIONS)}")
    if output is not None:
        check_file(output, force=force)
    mixture = mix(resolve(source, **given), names, bits_per_weight, memory_bytes=memory_bytes, quiet=quiet)
    if output is not None:
        write_atomically(output, render(mixture.deployment))
    print_mixture(mixture, as_json=as_json)
