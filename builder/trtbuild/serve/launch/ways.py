"""The ways to carry out a launch plan, as a table: what each offers, the files it is made of, and whether trtbuild itself can run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trtbuild.errors import TrtbuildError
from trtbuild.output import check_writable, refuse_dash, write_atomically
from trtbuild.serve.launch import docker, kubernetes, leader_worker_set, slurm, systemd
from trtbuild.serve.launch.make import Place
from trtbuild.serve.launch.plan import LaunchPlan
from trtbuild.serve.launch.script import bash, shell


@dataclass(frozen=True, slots=True)
class Extras:
    """What only some ways need.

    Attributes:
        kubectl_image: image that kubectl is copied from.
    """

    kubectl_image: str | None = None


@dataclass(frozen=True, slots=True)
class Way:
    """One way.

    Attributes:
        place: what it offers.
        files: plan -> file name and text; exactly what runs.
        how: what to do with the files; NAME stands for the plan's name.
        runs: whether `trtbuild serve` carries it out itself; else it only writes.
    """

    place: Place
    files: Callable[[LaunchPlan, Extras], Mapping[str, str]]
    how: str
    runs: bool = False


def _exec(plan: LaunchPlan, _extras: Extras) -> dict[str, str]:
    return {f"{plan.name}.sh": bash(_exports(plan) + f"exec {shell(plan.command)}")}


def _exports(plan: LaunchPlan) -> str:
    import shlex

    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in plan.environment.items())


def _docker(plan: LaunchPlan, _extras: Extras) -> dict[str, str]:
    return {f"{plan.name}.sh": bash(f"exec {shell(docker.command(plan))}")}


def _slurm(plan: LaunchPlan, _extras: Extras) -> dict[str, str]:
    return {f"{plan.name}.sbatch": slurm.script(plan)}


def _systemd(plan: LaunchPlan, _extras: Extras) -> dict[str, str]:
    return {f"{plan.name}.service": systemd.unit(plan)}


def _kubernetes(plan: LaunchPlan, extras: Extras) -> dict[str, str]:
    several = plan.nodes > 1
    made = leader_worker_set.manifests(plan, kubectl_image=extras.kubectl_image) if several else kubernetes.manifests(plan)  # fmt: skip
    return {f"{plan.name}.yaml": kubernetes.text(made)}


#: Name as `--with` takes it -> the way.
WAYS: dict[str, Way] = {
    "local": Way(Place("local", in_container=False, on_this_machine=True, as_caller=True), _exec, "bash NAME.sh", runs=True),
    "mpirun": Way(Place("mpirun", in_container=False, on_this_machine=True, as_caller=True), _exec, "bash NAME.sh", runs=True),
    "docker": Way(Place("docker", in_container=True, on_this_machine=True, own_network=True), _docker, "bash NAME.sh", runs=True),
    "slurm": Way(Place("slurm", in_container=True, on_this_machine=False, several_nodes=True, spawns=False), _slurm, "sbatch NAME.sbatch"),
    "kubernetes": Way(Place("kubernetes", in_container=True, on_this_machine=False, several_nodes=True, own_network=True), _kubernetes, "kubectl apply -f NAME.yaml"),
    "systemd": Way(Place("systemd", in_container=False, on_this_machine=True), _systemd, "sudo cp NAME.service /etc/systemd/system/ && sudo systemctl start NAME"),
}  # fmt: skip


def write(files: Mapping[str, str], folder: Path, *, force: bool) -> list[Path]:
    """Write the files of a way into a folder and return their paths.

    Raises:
        UsageError: the folder is called "-".
        TrtbuildError: one exists already, unless `force`, or nothing can be written there.
    """
    refuse_dash(folder)
    paths = {folder / name: text for name, text in files.items()}
    if not force and (there := [str(path) for path in paths if path.exists()]):
        raise TrtbuildError(f"{', '.join(there)} exists", hint="--force replaces it; -o names another folder")
    check_writable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in paths.items():
        write_atomically(path, text)
        if path.suffix == ".sh":
            path.chmod(0o755)
    return list(paths)
