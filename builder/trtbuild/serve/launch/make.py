"""From what a repository says and what was typed to a launch plan; refuses what cannot work before anything is started."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.serve.environment import FIXED
from trtbuild.serve.launch.characters import check_mounts, check_repository
from trtbuild.serve.launch.commands import Triton, mpirun, ranks_of
from trtbuild.serve.launch.devices import Assignment, assign, total_ranks
from trtbuild.serve.launch.facts import Facts, choose_image
from trtbuild.serve.launch.paths import absent_paths, here_as, mounts_for, seen_as
from trtbuild.serve.launch.plan import LaunchPlan, Mode, Mount, Rank
from trtbuild.serve.locate import SYSTEM_SERVER
from trtbuild.serve.ports import Ports

_ANY_ADDRESS = "0.0.0.0"
#: 60 s and 60 tries of 15 s: what large engines need (Triton specification 4.6).
START_S = 960
#: Triton's own ports.
_USUAL = Ports(8000, 8001, 8002).named()
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,51}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Place:
    """What a way of launching offers.

    Attributes:
        name: of the way.
        in_container: whether the server runs in a container.
        on_this_machine: whether GPUs and files are those of this machine.
        several_nodes: whether it can use several machines.
        as_caller: whether the processes are those of the user who types.
        own_network: whether the container has a network of its own, so that listening everywhere in it is no risk (field report SE05).
        spawns: whether a process can start others through MPI there (Triton specification 4.3: poor under Slurm).
    """

    name: str
    in_container: bool
    on_this_machine: bool
    several_nodes: bool = False
    as_caller: bool = False
    own_network: bool = False
    spawns: bool = True


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was typed; None and empty: not said.

    Attributes:
        address, ports: where to listen on the machine.
        name: of the deployment.
        world_size: ranks.
        gpus: lists, see `devices.assign`.
        gpus_per_node: GPUs of one machine.
        mode: leader or orchestrator.
        image: of the container.
        mounts: (here, in the container).
        grace_s: how long requests in flight get, seconds.
        start_s: how long the start may take, seconds.
        binary: the tritonserver, for processes on this machine.
    """

    address: str
    ports: Ports
    name: str | None = None
    world_size: int | None = None
    gpus: tuple[str, ...] = ()
    gpus_per_node: int | None = None
    mode: Mode | None = None
    image: str | None = None
    mounts: tuple[tuple[str, str], ...] = ()
    grace_s: int = 30
    start_s: int = START_S
    binary: Path = SYSTEM_SERVER


def make_plan(facts: Facts, wanted: Wanted, place: Place) -> LaunchPlan:
    """Return the plan of a launch.

    Raises:
        UsageError: what was typed contradicts the repository or itself: ranks (field report LM01), GPUs (LM06), mode, ports.
        TrtbuildError: the repository cannot be launched like this: versions, paths, `gpu_device_ids`.
    """
    mode = _mode(facts, wanted, place)
    world_size = _world_size(facts, wanted)
    processes = _processes(facts, mode, world_size)
    count = wanted.gpus_per_node or (facts.deployment.hardware.count if facts.deployment else None)
    nodes = _nodes(world_size, count, mode, place)
    devices = _devices(facts, wanted, place, count if nodes == 1 else None)
    _check_ports(wanted, place)
    image, notes = choose_image(facts, wanted.image) if place.in_container else ("", [])
    mounts = _mounts(facts, wanted, place)
    name = _name(facts, wanted.name)
    repository = seen_as(facts.repository, mounts) if place.in_container else str(facts.repository)
    check_mounts(place.name, mounts)
    if (
        facts.variant != "reference" and not place.as_caller
    ):  # as the caller, and for reference, trtbuild serves it through a link
        there = f"render it for another place: --path-map '{facts.root}=/deployment'" if place.in_container else ""
        check_repository(repository, there or "move the folder to a plain path")
    triton = Triton(
        binary="tritonserver" if place.in_container else str(wanted.binary),
        repository=repository,
        address=_ANY_ADDRESS if place.own_network else wanted.address,
        ports=wanted.ports,
        server_id=name.replace("-", "_"),
        exit_timeout_s=wanted.grace_s,
        core_models=tuple(model.name for model in facts.models),
    )
    ranks = ranks_of(triton, variant=facts.variant, mode=mode, processes=processes, gpus=world_size, nodes=nodes)
    if facts.variant == "reference" and not place.as_caller:
        ranks = (Rank(0, _reference_command(triton, wanted, place), serves=True),)
    needs_mpi = len(ranks) > 1 or (mode == "orchestrator" and facts.variant == "engine")
    is_root = place.as_caller and os.geteuid() == 0
    return LaunchPlan(
        name, facts.variant, mode, mpirun(ranks, as_root=is_root) if needs_mpi else ranks[0].command, ranks,
        {**_environment(facts, mode, devices, place), **(_mpi_environment(wanted.grace_s) if needs_mpi else {})}, mounts, repository, wanted.address, wanted.ports, world_size, nodes, devices.visible,
        image, wanted.grace_s, wanted.start_s, tuple(note for note in (*notes, devices.describe()) if note),
    )  # fmt: skip


def _mode(facts: Facts, wanted: Wanted, place: Place) -> Mode:
    several = len(facts.models) > 1
    if facts.stated is not None and wanted.mode not in (None, facts.stated.mode):
        raise UsageError(
            f"--mode {wanted.mode}, and {facts.repository} was rendered for serving.mode: {facts.stated.mode}",
            hint=f"leave --mode out, or set serving.mode: {wanted.mode} and render again",
        )
    stated = facts.stated.mode if facts.stated else None
    if not place.spawns and facts.variant == "engine" and (several or "orchestrator" in (wanted.mode, stated)):
        raise UsageError(f"orchestrator mode spawns its workers, which --with {place.name} does not do well", hint="serve each model by itself, in leader mode")  # fmt: skip
    if wanted.mode == "orchestrator" and facts.variant != "engine":
        raise UsageError(f"--mode orchestrator is for engines; this repository is of variant {facts.variant}", hint="leave --mode out")  # fmt: skip
    if several and wanted.mode == "leader":
        raise UsageError(
            f"--mode leader serves one TensorRT-LLM model, and the repository has {', '.join(model.name for model in facts.models)}",
            hint="use --mode orchestrator, or one server for each model, with GPUs and ports of its own",
        )
    return wanted.mode or stated or ("orchestrator" if several and facts.variant == "engine" else "leader")


def _world_size(facts: Facts, wanted: Wanted) -> int:
    """Return the GPUs of all models: read from the engine, never guessed (field report LM01)."""
    if facts.variant == "reference":
        read, source = 0, "the reference variant uses no GPU"
    elif not facts.is_known:
        if wanted.world_size is None:
            raise TrtbuildError(
                f"the engine of {facts.repository} is not here, so its number of ranks is not known",
                hint="name its folder with --engine, or its number of ranks with --world-size",
            )
        return wanted.world_size
    else:
        own = sum(total_ranks(model) for model in facts.models if not model.shares)
        read = max([own, *(total_ranks(model) for model in facts.models if model.shares)])
        source = f"{facts.artifact.called if facts.artifact else facts.repository} is for {read} rank(s)"
    if wanted.world_size is not None and wanted.world_size != max(read, 1):
        raise UsageError(
            f"--world-size {wanted.world_size} and the model disagree: {source}",
            hint="leave --world-size out, or build again for as many ranks",
        )
    return read


def _processes(facts: Facts, mode: Mode, world_size: int) -> int:
    """Return the MPI processes of an engine's server, which the manifest of a rendered repository and the engine must agree on."""
    if facts.stated is None:
        return world_size if mode == "leader" else 1
    sharing = any(model.shares for model in facts.models)  # workers of two models on the same GPUs
    workers = sum(map(total_ranks, facts.models)) if sharing else world_size
    expected = facts.stated.processes_for(workers)
    if facts.stated.processes != expected:
        raise TrtbuildError(
            f"{facts.repository} was rendered for {facts.stated.processes} process(es) in {mode} mode, "
            f"and {workers} GPU(s) take {expected}",
            hint="render the repository again for this engine, with the tp_size and pp_size it was built for",
        )
    return expected


def _nodes(world_size: int, count: int | None, mode: Mode, place: Place) -> int:
    if count is None or world_size <= count:
        return 1
    if not place.several_nodes or mode == "orchestrator":
        what = "orchestrator mode" if mode == "orchestrator" else f"--with {place.name}"
        raise UsageError(
            f"{world_size} ranks need more than the {count} GPUs of one machine, and {what} uses one machine",
            hint="use --with slurm or --with kubernetes in leader mode, or build for fewer ranks",
        )
    if world_size % count:
        raise UsageError(
            f"{world_size} ranks cannot be spread evenly over machines of {count} GPUs",
            hint="give a --gpus-per-node that divides the number of ranks",
        )
    return world_size // count


def _devices(facts: Facts, wanted: Wanted, place: Place, count: int | None) -> Assignment:
    if facts.variant == "reference" and not wanted.gpus:
        return Assignment()
    if wanted.gpus and not place.on_this_machine:
        raise UsageError(f"--gpus chooses GPUs of this machine; with {place.name} the scheduler does", hint="leave --gpus out")  # fmt: skip
    return assign([model for model in facts.models if not model.shares], wanted.gpus, count=count)


def _check_ports(wanted: Wanted, place: Place) -> None:
    named = wanted.ports.named()
    free = [option for option, port in named.items() if port == 0]
    if free:
        raise UsageError(
            f"{', '.join(f'{option} 0' for option in free)}: only a server that trtbuild starts here picks free ports; those of --with {place.name} are fixed when it is written",
            hint=f"give numbers that are free where it will run, such as {' '.join(f'{option} {port}' for option, port in _USUAL.items() if option in free)}",
        )
    if len(set(named.values())) < len(named):
        raise UsageError(f"ports must differ: {named}", hint="give three different ports")


def _mounts(facts: Facts, wanted: Wanted, place: Place) -> tuple[Mount, ...]:
    if place.in_container:
        return mounts_for(facts.root, facts.repository, wanted.mounts)
    if wanted.mounts:
        raise UsageError(f"--mount is for containers; --with {place.name} uses none", hint="leave --mount out")
    if elsewhere := [path for path in absent_paths(facts.repository) if here_as(path, facts.root) is not None]:
        raise TrtbuildError(
            f"the repository names {', '.join(elsewhere)}, not to be found here, and {facts.root} has what a container sees there",
            hint="render it again without --path-map, or launch it in a container (--with docker)",
        )
    return (Mount(str(facts.root), str(facts.root)),)


def _name(facts: Facts, typed: str | None) -> str:
    if typed is not None:
        if not _NAME.fullmatch(typed):
            raise UsageError(f"--name {typed}", hint="lower-case letters, digits and hyphens, at most 53, beginning with a letter")  # fmt: skip
        return typed
    words = re.sub(r"[^a-z0-9]+", "-", f"trtbuild-{facts.root.name.lower()}").strip("-")
    return words[:53].strip("-")


def _reference_command(triton: Triton, wanted: Wanted, place: Place) -> tuple[str, ...]:
    program = ("trtbuild",) if place.in_container else (sys.executable, "-m", "trtbuild")
    ports = [part for option, port in wanted.ports.named().items() for part in (option, str(port))]
    times = ["--grace", str(wanted.grace_s), "--ready-timeout", str(wanted.start_s)]
    return (*program, "serve", triton.repository, "--address", triton.address, *ports, *times)


def _environment(facts: Facts, mode: Mode, devices: Assignment, place: Place) -> dict[str, str]:
    found = {**FIXED, **(facts.stated.environment if facts.stated else {})}
    if mode == "orchestrator":
        found["TRTLLM_ORCHESTRATOR"] = "1"
    if devices.visible and not place.in_container:  # a container sees only its own, from 0
        found["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # numbers are those of nvidia-smi
        found["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, devices.visible))
    return found


def _mpi_environment(grace_s: int) -> dict[str, str]:
    """Return how long mpirun waits between SIGTERM and SIGKILL for its ranks: Open MPI's default of 1 s would cut requests off.

    Open MPI 4 and 5 (PRRTE), each by its own prefix; inferred from their parameter `odls_base_sigkill_timeout`, not tried.
    """
    return {f"{prefix}_MCA_odls_base_sigkill_timeout": str(grace_s) for prefix in ("OMPI", "PRTE")}


def port_options(ports: Ports) -> Sequence[tuple[str, int]]:
    """Return (name, port) of the front ends."""
    return (("http", ports.http), ("grpc", ports.grpc), ("metrics", ports.metrics))
