"""`trtbuild convert`: Hugging Face checkpoint in, TensorRT-LLM rank files or a quantized Hugging Face folder out."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtbuild.cli.deployment_options import deployment_options, resolve, target_option
from trtbuild.cli.options import common, force, json_output, memory
from trtbuild.errors import UsageError

if TYPE_CHECKING:
    from trtbuild.convert.kept import KeptFolder
    from trtbuild.spec import Deployment

logger = logging.getLogger(__name__)


@click.command(epilog="Example: trtbuild convert ./Llama-3.1-8B -o ./ckpt --quantization fp8 --tp 2")
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Folder to write; with several targets, one subfolder each."
)
@target_option(multiple=True)
@deployment_options
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print the conversion plan (every tensor of every file with --json) and write nothing.",
)
@click.option("--layers", type=click.IntRange(min=1), metavar="N", help="Convert only the first N layers: a trial.")
@click.option(
    "--verify-inputs",
    is_flag=True,
    help="Where the output is up to date by size and time of the inputs, read them again and compare their digests.",
)
@memory
@force
@json_output
@common
def convert(
    model: Path,
    output: Path | None,
    target: tuple[str, ...],
    dry_run: bool,
    layers: int | None,
    verify_inputs: bool,
    memory_bytes: int,
    force: bool,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Convert MODEL (a Hugging Face folder or a trtbuild.yaml) to TensorRT-LLM rank files; for pytorch to a (quantized) Hugging Face folder.

    Everything that can be seen from headers is checked before a weight is read. The output appears whole or not at all; interrupted
    work goes on where it stopped, and a second run with unchanged inputs does nothing.
    """
    from trtbuild.cli.report import print_conversion, print_conversion_plan
    from trtbuild.convert.kept import kept_folder
    from trtbuild.convert.run import plan_deployments
    from trtbuild.convert.unified_plan import describe
    from trtbuild.ways import only_ways_that_work

    targets: list[str | None] = list(dict.fromkeys(target)) or [None]
    deployments = [resolve(model, default_target="tensorrt", target=name, **given) for name in targets]
    with only_ways_that_work(deployments[0], is_built=False):
        kept = kept_folder(deployments, layers=layers)
        plan = plan_deployments(deployments, layers=layers) if kept is None else None
    if kept is not None:
        _copy(kept, deployments[0], output, dry_run=dry_run, force=force, as_json=as_json, quiet=quiet)
        return
    assert plan is not None
    if dry_run:
        described = describe(plan, [each.target for each in deployments], tensors=True)
        print_conversion_plan(described, as_json=as_json)
        return
    if output is None:
        raise UsageError("no output folder is given", hint="add -o DIR, or --dry-run to see the plan only")
    from trtbuild.convert.folder import write_checkpoints

    for warning in plan.warnings:
        logger.warning("note: %s", warning)
    manifests = write_checkpoints(
        plan,
        deployments,
        output,
        force=force,
        verify_inputs=verify_inputs,
        memory_bytes=memory_bytes,
        quiet=quiet,
    )
    print_conversion(manifests, as_json=as_json)


def _copy(
    kept: KeptFolder,
    deployment: Deployment,
    output: Path | None,
    *,
    dry_run: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Copy a model that is quantized already and loads as it is."""
    from trtbuild.cli.report import print_conversion, print_copy_plan
    from trtbuild.convert.kept import copy_folder

    if dry_run:
        print_copy_plan(kept, as_json=as_json)
        return
    if output is None:
        raise UsageError("no output folder is given", hint="add -o DIR, or --dry-run to see the plan only")
    for note in kept.notes:
        logger.warning("note: %s", note)
    print_conversion(copy_folder(kept, deployment, output, force=force, quiet=quiet), as_json=as_json)
