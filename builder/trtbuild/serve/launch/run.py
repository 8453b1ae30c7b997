"""From a repository and what was typed to something to print, to write or to run."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.serve.container import ContainerServer
from trtbuild.serve.launch.commands import ModelControl
from trtbuild.serve.launch.plan import LaunchPlan
from trtbuild.serve.launch.ways import Way
from trtbuild.serve.processes import Processes
from trtbuild.serve.supervisor import Server


@dataclass(frozen=True, slots=True)
class Run:
    """What a run on this machine is given besides the plan.

    Attributes:
        repository: as it was typed.
        server: the tritonserver binary; None: look for one.
        log_path: file for its log.
        on_log: called with each line of it.
        model_control: none or explicit.
    """

    repository: Path
    server: Path | None
    log_path: Path | None
    on_log: Callable[[str], None]
    model_control: ModelControl


def server_for(plan: LaunchPlan, way: Way, run: Run) -> Server:
    """Return the server of a plan, not started.

    Raises:
        UsageError: the way cannot run this plan here.
        TrtbuildError: a program is missing.
    """
    if way.place.in_container:
        if run.model_control != "none":
            raise UsageError("--model-control explicit needs a repository that can be written; containers get it read-only", hint="use --with local")  # fmt: skip
        return ContainerServer(plan, repository=run.repository, log_path=run.log_path, on_log=run.on_log)
    needs_mpirun = plan.command != plan.ranks[0].command
    if needs_mpirun and way.place.name == "local":
        raise UsageError(
            f"{plan.name} has {len(plan.ranks)} rank(s) that mpirun starts; --with local starts one process",
            hint="use --with mpirun",
        )
    if needs_mpirun and shutil.which("mpirun") is None:
        raise TrtbuildError("mpirun is not installed", hint="use --with docker: NVIDIA's image has it; --dry-run prints what would run")  # fmt: skip
    extra = {
        name: value
        for name, value in plan.environment.items()
        if name.startswith(("CUDA_", "TRTLLM_", "OMPI_MCA_", "PRTE_MCA_"))
    }
    more = tuple(word for word in plan.ranks[0].command if word.startswith(("--pinned-", "--enable-peer-", "--cuda-")))
    core = tuple(word.partition("=")[2] for rank in plan.ranks[1:2] for word in rank.command if word.startswith("--load-model="))  # fmt: skip
    return Server(
        run.repository,
        server=run.server,
        address=plan.address,
        ports=plan.ports,
        log_path=run.log_path,
        ready_timeout_s=plan.start_s,
        stop_grace_s=plan.grace_s,
        on_log=run.on_log,
        model_control=run.model_control,
        processes=Processes(len(plan.ranks), core, more, extra, needs_mpirun=needs_mpirun),
    )
