"""Command lines of the ranks of a tritonserver, and of the mpirun that starts them together.

Source: Triton specification 4.2 (launch_triton_server.py of tensorrtllm_backend) and 4.6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from trtbuild.serve.launch.plan import Mode, Rank, Variant
from trtbuild.serve.ports import Ports

ModelControl = Literal["none", "explicit"]
#: Starts workers of the LLM API on ranks above 0 (Triton specification 2.4).
LLMAPI_LAUNCH = "trtllm-llmapi-launch"
#: Front ends that ranks above 0 keep closed (field report LM02).
_CLOSED = ("--allow-http=false", "--allow-grpc=false", "--allow-metrics=false")


@dataclass(frozen=True, slots=True)
class Triton:
    """What the command lines of all ranks share.

    Attributes:
        binary: the executable.
        repository: as the server sees it.
        address: what it listens on.
        ports: of rank 0.
        server_id: begins the names of its files in /dev/shm; each rank adds its number, or ranks overwrite each other's.
        exit_timeout_s: how long requests in flight get to finish, seconds.
        core_models: models that ranks above 0 load.
        model_control: none, unless it was asked for (field report SE05).
        backends: backend directory; None: the server's own.
    """

    binary: str
    repository: str
    address: str
    ports: Ports
    server_id: str
    exit_timeout_s: int
    core_models: tuple[str, ...] = ()
    model_control: ModelControl = "none"
    backends: str | None = None

    def rank(self, number: int, *, prefix: str | None = None) -> Rank:
        """Return one rank.

        Args:
            number: of the rank.
            prefix: of its files in /dev/shm; None: made of server id and number.
        """
        front = self._front_end() if number == 0 else self._closed()
        common = {
            "model-repository": self.repository,
            "backend-directory": self.backends,
            "backend-config": f"python,shm-region-prefix-name={prefix or f'{self.server_id}_{number}_'}",
            "exit-timeout-secs": self.exit_timeout_s,
        }
        options = [f"--{name}={value}" for name, value in common.items() if value is not None]
        server_id = self.server_id if number == 0 else f"{self.server_id}_rank{number}"
        command = (self.binary, f"--id={server_id}", *options, *front, "--disable-auto-complete-config")
        return Rank(number, command, serves=number == 0)

    def _front_end(self) -> Iterator[str]:
        yield f"--model-control-mode={self.model_control}"
        if self.model_control == "explicit":
            yield "--load-model=*"
        for name, port in (("http", self.ports.http), ("grpc", self.ports.grpc), ("metrics", self.ports.metrics)):
            yield f"--{name}-address={self.address}"
            yield f"--{name}-port={port}"

    def _closed(self) -> Iterator[str]:
        yield "--model-control-mode=explicit"  # nobody can reach it: it has no front end
        yield from (f"--load-model={name}" for name in self.core_models)
        yield from _CLOSED


def ranks_of(
    triton: Triton, *, variant: Variant, mode: Mode, processes: int, gpus: int, nodes: int
) -> tuple[Rank, ...]:
    """Return the processes of a server.

    Args:
        triton: what they share.
        variant: of the repository; the LLM API starts its own workers on one machine.
        mode: leader or orchestrator.
        processes: MPI processes of an engine's server.
        gpus: of all models.
        nodes: machines.
    """
    if variant == "llmapi" and nodes > 1:
        started = (triton.rank(number) for number in range(gpus))
        return tuple(Rank(each.number, (LLMAPI_LAUNCH, *each.command), each.serves) for each in started)
    if variant != "engine":
        return (triton.rank(0),)
    memory = tuple(_orchestrator_memory(gpus)) if mode == "orchestrator" else ()
    ranks = map(triton.rank, range(processes))
    return tuple(replace(rank, command=(*rank.command, *memory)) for rank in ranks)


def _orchestrator_memory(gpus: int) -> Iterator[str]:
    """Yield what launch_triton_server.py adds for `--multi-model` from 24.07 on."""
    yield "--pinned-memory-pool-byte-size=0"
    yield "--enable-peer-access=false"
    yield from (f"--cuda-memory-pool-byte-size={number}:0" for number in range(gpus))


def mpirun(
    ranks: Sequence[Rank], *, program: str = "mpirun", as_root: bool = False, more: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> tuple[str, ...]:  # fmt: skip
    """Return the one mpirun that starts all ranks; when one of them ends, it ends the others.

    Args:
        ranks: the processes.
        program: the executable.
        as_root: mpirun refuses to run as root unless told to.
        more: further options of mpirun.
        environment: variables that it passes on to other machines.
    """
    passed = [part for name in environment or () for part in ("-x", name)]
    head = [program, *(["--allow-run-as-root"] if as_root else []), *more, *passed]
    parts: list[str] = []
    for rank in ranks:
        parts += [*([":"] if parts else []), "-n", "1", *rank.command]
    return (*head, *parts)
