"""`trtbuild plan`: what a deployment will be, from headers alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from trtbuild.cli.deployment_options import deployment_options, resolve, target_option
from trtbuild.cli.options import common, json_output

_POSITIVE = click.IntRange(min=1)


@click.command(epilog="Example: trtbuild plan trtbuild.yaml --gpu h100 --tp 4 --input-len 2048 --output-len 512")
@click.argument("source", type=click.Path(path_type=Path))
@target_option(multiple=False)
@deployment_options
@click.option(
    "--input-len", type=_POSITIVE, metavar="TOKENS", help="Prompt to state concurrency and speed for; default 1024."
)
@click.option(
    "--output-len", type=_POSITIVE, metavar="TOKENS", help="Answer to state concurrency and speed for; default 256."
)
@click.option(
    "--instances", type=_POSITIVE, default=1, show_default=True, metavar="N", help="Copies of the model on each GPU."
)
@click.option(
    "--set",
    "what_ifs",
    multiple=True,
    metavar="KEY=VALUE[,KEY=VALUE]",
    help="Compare with other values of trtbuild.yaml, a column each; may be repeated.",
)
@click.option("--explain", is_flag=True, help="Say where every value comes from, and the formula in words.")
@click.option("--bytes", "exact", is_flag=True, help="Print exact bytes instead of GiB.")
@click.option(
    "--measured", is_flag=True, help="Add times from NVIDIA's measured kernels (aiconfigurator-core; seconds)."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where it will be built: a disk that is too small is an error.",
)
@json_output
@common
def plan(
    source: Path, input_len: int | None, output_len: int | None, instances: int, what_ifs: tuple[str, ...], explain: bool,
    exact: bool, measured: bool, output: Path | None, as_json: bool, quiet: bool, **given: Any,
) -> None:  # fmt: skip
    """Say what SOURCE (a trtbuild.yaml or a model folder) will become; reads headers only and writes nothing.

    Every mistake that headers and config.json show is an error here; what the build lacks (a tokenizer to calibrate with, a package) comes
    after the sizes, with exit code 1. With --gpu (or hardware.memory_bytes) a deployment that does not fit
    ends with exit code 3 and the nearest settings that do; so does a what-if of --set that does not fit or is refused.
    """
    from trtbuild import planning
    from trtbuild.cli.memory_report import print_deployment_plan

    options = planning.PlanOptions(input_len, output_len, instances, what_ifs, measured, output)
    found = planning.plan(resolve(source, **given), options)
    print_deployment_plan(found, as_json=as_json, explain=explain, exact=exact)
    planning.require_supported(found)
    planning.require_fit(found)
    planning.require_what_ifs(found)
    planning.require_ready(found)
