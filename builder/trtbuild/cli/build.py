"""`trtbuild build`: everything a server needs, in one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from trtbuild.cli.deployment_options import deployment_options, resolve, target_option
from trtbuild.cli.options import common, force, json_output, memory
from trtbuild.console import print_json, print_text

#: The stages, as in `trtbuild.stages`, which is imported on use.
_STAGES = ("checkpoint", "accuracy", "engine")


@click.command(epilog="Example: trtbuild build trtbuild.yaml -o ./build --until checkpoint")
@click.argument("source", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="Folder to write.")
@click.option(
    "--from",
    "first",
    type=click.Choice(_STAGES),
    help="Do this stage and those behind it again, though nothing changed; those before it must be there.",
)
@click.option(
    "--until", type=click.Choice(_STAGES), default=_STAGES[-1], help="Stop behind this stage; the next run goes on."
)
@click.option(
    "--engine",
    type=click.Path(path_type=Path),
    help="Take over this engine, which trtllm-build wrote elsewhere from the checkpoint, instead of building one.",
)
@target_option(multiple=False)
@deployment_options
@memory
@force
@json_output
@common
def build(
    source: Path,
    output: Path,
    first: str | None,
    until: str,
    engine: Path | None,
    memory_bytes: int,
    force: bool,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Build SOURCE (a trtbuild.yaml or a model folder): convert, and put all that a server needs into one folder.

    Stages: checkpoint (with calibration), accuracy (only with limits), engine (target tensorrt: trtllm-build; pytorch: the LLM API's YAML;
    reference: nothing). Each is kept while what it depends on stays the same and its files are all there; one of other inputs is replaced with
    --force only. The folder
    holds trtbuild.yaml (resolved), checkpoint/, engine/ or llm_api.yaml, and manifest.json; `trtbuild render` adds repository/.
    """
    from trtbuild.building import build as run

    deployment = resolve(source, **given)
    result = run(
        deployment, output, force=force, memory_bytes=memory_bytes, quiet=quiet, first=first, until=until, engine=engine
    )
    if as_json:
        print_json(result)
    else:
        stages = ", ".join(f"{name} {state}" for name, state in result["stages"].items())
        state = "unchanged" if result["unchanged"] else "built"
        print_text(f"{output}: {state} for target {result['target']} ({stages})")
