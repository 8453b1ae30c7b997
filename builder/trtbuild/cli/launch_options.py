"""Options of `trtbuild serve` that say how to launch, and what they become."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtbuild.cli.options import F

if TYPE_CHECKING:
    from trtbuild.serve.defaults import Listen
    from trtbuild.serve.launch.make import Wanted

#: Keys of `serve.launch.ways.WAYS`; a test compares them, so that help does not import it.
WAY_NAMES = ("local", "mpirun", "docker", "slurm", "kubernetes", "systemd")
_FOLDER = click.Path(file_okay=False, path_type=Path)
_LOCAL_START_S = 120


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What was typed, see `launch_options`."""

    way: str
    dry_run: bool
    output: Path | None
    force: bool
    engine: Path | None
    kubectl_image: str | None
    typed: dict[str, Any]

    def wanted(self, where: Listen, *, grace_s: float, ready_timeout_s: float | None, binary: Path) -> Wanted:
        """Return what to plan."""
        from trtbuild.serve.launch.make import START_S, Wanted

        start_s = ready_timeout_s or (_LOCAL_START_S if self.way == "local" else START_S)
        seconds = {"grace_s": math.ceil(grace_s), "start_s": math.ceil(start_s)}
        return Wanted(where.address, where.ports, **{"binary": binary, **seconds, **self.typed})


def launch_options(function: F) -> F:
    """Add --with and what belongs to it; the command receives `launch: LaunchOptions`."""

    def command(**given: Any) -> Any:
        names = ("way", "dry_run", "output", "force", "engine", "kubectl_image")
        own = {name: given.pop(name) for name in names}
        keys = ("name", "world_size", "gpus", "gpus_per_node", "mode", "image", "mounts")
        return function(launch=LaunchOptions(**own, typed={key: given.pop(key) for key in keys}), **given)

    command.__doc__, command.__name__ = function.__doc__, function.__name__
    wrapped: Any = command
    wrapped.__click_params__ = getattr(function, "__click_params__", [])
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    result: F = wrapped
    return result


def _port(name: str, default: int) -> Any:
    text = f"{name} port; 0 picks a free one. [default: trtbuild.yaml's, else {default}]"
    return click.option(f"--{name.lower()}-port", type=click.IntRange(0, 65535), help=text)


def listen_options(function: F) -> F:
    """Add --address and the ports, of the command's keyword arguments; None means that the command line does not say."""
    for option in (_port("Metrics", 8002), _port("gRPC", 8001), _port("HTTP", 8000)):
        function = option(function)
    text = "IPv4 address to listen on. [default: trtbuild.yaml's, else 127.0.0.1]"
    return click.option("--address", help=text)(function)


def _mounts(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    pairs = tuple(value.rpartition("=")[::2] for value in values)
    for here, there in pairs:
        if not here or not there.startswith("/"):
            raise click.BadParameter("write FOLDER_HERE=/FOLDER/IN/THE/CONTAINER.")
    return pairs


_COUNT = click.IntRange(min=1)
_OPTIONS = (
    click.option("--with", "way", type=click.Choice(WAY_NAMES), default="local", show_default=True, help="How to launch; slurm, kubernetes and systemd only write files."),
    click.option("--dry-run", is_flag=True, help="Print exactly what would run, and run nothing."),
    click.option("-o", "--output", type=_FOLDER, metavar="FOLDER", help="Write what would run into FOLDER, and run nothing."),
    click.option("--force", is_flag=True, help="Replace files in FOLDER."),
    click.option("--name", help="Name of the deployment. [default: trtbuild- and the folder's]"),
    click.option("--engine", type=_FOLDER, metavar="DIR", help="Folder of the engine here, where the repository names it as a container sees it."),
    click.option("--world-size", type=_COUNT, help="Ranks; read from the engine, and must agree with it."),
    click.option("--gpus", multiple=True, metavar="[MODEL=]0,1", help="GPUs of this machine, one for each rank (repeatable, one list for each model)."),
    click.option("--gpus-per-node", type=_COUNT, help="GPUs of one machine. [default: hardware.count of trtbuild.yaml]"),
    click.option("--mode", type=click.Choice(["leader", "orchestrator"]), help="One process for each rank, or one that spawns workers. [default: leader for one model]"),
    click.option("--image", help="Container image. [default: the newest with the release of the engine]"),
    click.option("--mount", "mounts", multiple=True, callback=_mounts, metavar="HERE=THERE", help="A folder here, and where the container sees it (repeatable)."),
    click.option("--kubectl-image", help="Kubernetes, several nodes: image that kubectl is copied from."),
)  # fmt: skip
