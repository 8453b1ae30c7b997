"""What a repository that trtbuild rendered states about its processes: how many MPI ranks, and with which environment.

`repo/placement.py` decides both from trtbuild.yaml, and the manifest of the repository keeps them; here they are read back, so
that every way of launching starts what the configuration files were written for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtbuild import manifest
from trtbuild.errors import TrtbuildError
from trtbuild.serve.launch.plan import Mode
from trtbuild.source import read_json


@dataclass(frozen=True, slots=True)
class Stated:
    """The processes of an engine's server.

    Attributes:
        processes: MPI ranks to start.
        environment: variables that they need.
        models: with engines; a draft model is a second one.
    """

    processes: int
    environment: Mapping[str, str]
    models: int = 1

    @property
    def mode(self) -> Mode:
        """Leader, or orchestrator (Triton specification 4.3)."""
        return "orchestrator" if self.environment.get("TRTLLM_ORCHESTRATOR") == "1" else "leader"

    def processes_for(self, gpus: int) -> int:
        """Return how many processes so many GPUs take in this mode: one each, one that spawns its workers, or workers and one more."""
        if self.mode == "leader":
            return gpus
        return gpus + 1 if self._is_prestarted else 1

    @property
    def gpus(self) -> int | None:
        """The GPUs, where the number of processes tells: an orchestrator that spawns its workers is one, whatever they are."""
        if self.mode == "leader":
            return self.processes
        return self.processes - 1 if self._is_prestarted else None

    @property
    def _is_prestarted(self) -> bool:
        return self.environment.get("TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES") == "0"


def read_stated(repository: Path) -> Stated | None:
    """Return what the manifest of a repository states; None where it has none, or one of another variant.

    Raises:
        TrtbuildError: the manifest cannot be read, or states neither a number nor variables.
    """
    file = repository / manifest.NAME
    context = read_json(file).get("context") if file.is_file() else None
    if not isinstance(context, dict) or context.get("variant") != "engine":
        return None
    processes, environment = context.get("world_size"), context.get("environment")
    is_number = isinstance(processes, int) and not isinstance(processes, bool) and processes > 0
    is_text = isinstance(environment, dict) and all(isinstance(each, str) for each in environment.values())
    if not is_number or not is_text:
        raise TrtbuildError(
            f"{file} states world_size {processes!r} and environment {environment!r}",
            hint="a positive number and variables belong there; render the repository again",
        )
    return Stated(context["world_size"], context["environment"], 2 if context.get("draft") else 1)
