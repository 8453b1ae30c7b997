"""`trtbuild render`: write the Triton model repository of a deployment."""

from __future__ import annotations

from pathlib import Path

import click

from trtbuild.cli.deployment_options import resolve, target_option
from trtbuild.cli.options import common, force, json_output
from trtbuild.errors import UsageError


@click.command(epilog="Example: trtbuild render ./build -o ./repository")
@click.argument("source", type=click.Path(path_type=Path))
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path),
    help="Folder `trtbuild convert` wrote; needed unless SOURCE is a build folder.",
)
@click.option(
    "--engine",
    type=click.Path(path_type=Path),
    help="Folder trtllm-build wrote, for the target tensorrt; default: SOURCE/engine.",
)
@click.option(
    "--draft",
    type=click.Path(path_type=Path),
    help="Build folder of the draft model, for speculative.mode draft_target; default: SOURCE/draft, if there is one.",
)
@click.option(
    "--engine-later",
    is_flag=True,
    help="The engine is built, or copied to its folder, later: take what it does not say yet from the checkpoint.",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Repository to write; default: SOURCE/repository."
)
@click.option(
    "--path-map",
    metavar="HERE=THERE",
    help="For a server in a container: the folder HERE is mounted there as THERE. Default: the same paths.",
)
@target_option(multiple=False)
@force
@json_output
@common
def render(
    source: Path,
    checkpoint: Path | None,
    engine: Path | None,
    draft: Path | None,
    engine_later: bool,
    output: Path | None,
    path_map: str | None,
    target: str | None,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write the Triton model repository of SOURCE: a build folder, a trtbuild.yaml or a model folder.

    The repository is checked before it appears; paths in it are absolute.
    """
    from trtbuild.cli.paths import read_path_map
    from trtbuild.console import print_json, print_text
    from trtbuild.repo.deployment import context_of
    from trtbuild.repo.render import render as write

    is_build = (source / "trtbuild.yaml").is_file()
    deployment = resolve(source, target=target)
    if output is None and not is_build:
        raise UsageError(
            f"{source} is no build folder, and no output folder is given",
            hint="add -o DIR, or name a build folder as SOURCE",
        )
    if deployment.target != "tensorrt" and (engine is not None or engine_later):
        raise UsageError(
            f"the target is {deployment.target}, which has no engine",
            hint="leave out --engine and --engine-later, or add --target tensorrt",
        )
    context = context_of(
        deployment,
        checkpoint_dir=checkpoint or (source / "checkpoint" if is_build else None),
        engine_dir=engine or (source / "engine" if is_build else None),
        draft_dir=draft or (source / "draft" if is_build and (source / "draft").is_dir() else None),
        engine_later=engine_later,
        path_map=read_path_map(path_map),
    )
    rendered = write(context, output or source / "repository", force=force)
    if as_json:
        print_json(
            {"repository": str(rendered.path.absolute()), "variant": rendered.variant, "models": rendered.models}
        )
    else:
        print_text(f"{rendered.path}: {', '.join(rendered.models)}")
