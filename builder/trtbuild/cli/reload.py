"""`trtbuild reload`: swap a version of a model on a running server without losing a request."""

from __future__ import annotations

from pathlib import Path

import click

from trtbuild.cli.options import common, json_output
from trtbuild_client.options import duration

_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command(
    epilog="Example: trtbuild reload tensorrt_llm --repository build/repository --from new/repository/tensorrt_llm/1"
)
@click.argument("model")
@click.option(
    "--repository", type=_FOLDER, required=True, help="The repository that the server serves, or its build folder."
)
@click.option("--from", "source", type=_FOLDER, required=True, metavar="FOLDER", help="Files of the new version.")
@click.option(
    "--version", type=click.IntRange(min=1), help="Number of the new version. [default: one more than the highest]"
)
@click.option("--url", default="127.0.0.1:8000", show_default=True, help="HOST:PORT of the server's HTTP endpoint.")
@click.option(
    "--timeout",
    "timeout_s",
    type=duration,
    metavar="TIME",
    default="600s",
    show_default=True,
    help="Time that loading may take, in seconds or with a unit.",
)
@json_output
@common
def reload(
    model: str, repository: Path, source: Path, version: int | None, url: str, timeout_s: float, as_json: bool, quiet: bool
) -> None:  # fmt: skip
    """Make FOLDER the new version of MODEL: it is copied into the repository, loaded, and takes over when it is ready.

    Requests in flight finish on the old version, whose folder stays. When the new version does not load, it is taken away again and the old one
    is served on: exit code 1 with the server's reason. The server must have been started with `serve --model-control explicit`.
    """
    from trtbuild.console import print_json, print_text
    from trtbuild.serve.model_control import ModelControl
    from trtbuild.serve.preflight import find_repository
    from trtbuild.serve.reload import swap
    from trtbuild.serve.signals import stop_signals_interrupt

    with stop_signals_interrupt():
        done = swap(ModelControl(url), find_repository(repository), model, source, version=version, timeout_s=timeout_s)
    if as_json:
        print_json({"model": done.model, "before": done.before, "after": done.after, "folder": str(done.folder), "seconds": round(done.seconds, 3)})  # fmt: skip
    else:
        before, after = (", ".join(map(str, versions)) for versions in (done.before, done.after))
        print_text(f"{done.model}: version {before} -> {after}, ready after {done.seconds:.1f} s ({done.folder})")
