"""How many processes a server is, and the command line that starts them all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trtbuild.serve.launch.commands import Triton, mpirun


@dataclass(frozen=True, slots=True)
class Processes:
    """How many processes a server is, and what they are given.

    Attributes:
        count: ranks, started together by mpirun where there are several; when one ends, all do.
        core_models: models that ranks above 0 load.
        more: options behind those of each rank.
        environment: variables that are set on top of the server's.
        mpirun: the executable.
        needs_mpirun: whether even one process is started by mpirun, because it spawns others.
    """

    count: int = 1
    core_models: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    mpirun: str = "mpirun"
    needs_mpirun: bool = False

    def command(self, triton: Triton, *, as_root: bool) -> list[str]:
        """Return the argument vector of the only process, or of the mpirun that starts them.

        Args:
            triton: what they share.
            as_root: whether mpirun runs as root.
        """
        first = triton.rank(0, prefix=f"{triton.server_id}_" if self.count == 1 else None)
        started = (first, *map(triton.rank, range(1, self.count)))
        ranks = [replace(rank, command=(*rank.command, *self.more)) for rank in started]
        if self.count == 1 and not self.needs_mpirun:
            return list(ranks[0].command)
        return list(mpirun(ranks, program=self.mpirun, as_root=as_root))
