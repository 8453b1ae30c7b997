"""The launch plan: what has to run where, and how to see that it does. Plain values; how they are carried out is in `ways`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from trtbuild.serve.ports import Ports

Variant = Literal["engine", "llmapi", "reference"]
Mode = Literal["leader", "orchestrator"]
#: Endpoints of KServe's protocol: a server that loads a model is alive and not ready (field report MP05).
LIVE_PATH, READY_PATH = "/v2/health/live", "/v2/health/ready"
#: Shared memory for Python models and NCCL: 2 GiB or more in working reports (Triton specification 4.1; field report LM08).
SHARED_MEMORY_BYTES = 2 * 2**30
#: Files of this user are read; nobody runs as root (field report SE05).
USER_ID = 1000


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder here, and where the server sees it, read-only."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of the server.

    Attributes:
        number: its rank.
        command: its argument vector.
        serves: whether it opens the ports; only rank 0 does (field report LM02).
    """

    number: int
    command: tuple[str, ...]
    serves: bool


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Everything that the ways of launching share.

    Attributes:
        name: of the deployment, a DNS label.
        variant: of the repository.
        mode: leader: one process for each rank; orchestrator: one process that spawns workers (Triton specification 4.3).
        command: what one machine starts: the only rank, or mpirun with all of them.
        ranks: the processes.
        environment: variables that are set for each of them.
        files: folders that the server reads.
        repository: the model repository as the server sees it.
        address: what the ports are bound to on the machine.
        ports: HTTP, gRPC and metrics.
        world_size: ranks of all models together, one GPU each; 0 without GPUs.
        nodes: machines.
        gpus: numbers of the GPUs on the machine; empty: whichever there are.
        image: container image; empty for ways without one.
        grace_s: how long requests in flight get to finish, seconds.
        start_s: how long the start may take until every model is ready, seconds.
        notes: what a person should know.
    """

    name: str
    variant: Variant
    mode: Mode
    command: tuple[str, ...]
    ranks: tuple[Rank, ...]
    environment: Mapping[str, str]
    files: tuple[Mount, ...]
    repository: str
    address: str
    ports: Ports
    world_size: int
    nodes: int
    gpus: tuple[int, ...]
    image: str
    grace_s: int
    start_s: int
    notes: tuple[str, ...] = ()

    @property
    def gpus_per_node(self) -> int:
        """GPUs that each machine gives."""
        return self.world_size // self.nodes

    @property
    def visible_devices(self) -> str:
        """Value of CUDA_VISIBLE_DEVICES; empty: not set."""
        return ",".join(map(str, self.gpus))

    @property
    def health(self) -> dict[str, str]:
        """Paths of the health endpoints on the HTTP port."""
        return {"live": LIVE_PATH, "ready": READY_PATH}
