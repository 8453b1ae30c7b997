"""The plan and the way of a command line: reads the repository, picks free ports where a local server asks for them."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from trtbuild.errors import TrtbuildError
from trtbuild.serve.defaults import Listen
from trtbuild.serve.launch.facts import read_facts
from trtbuild.serve.launch.make import Wanted, make_plan
from trtbuild.serve.launch.obstacles import Obstacle, absent, damages, lacking
from trtbuild.serve.launch.plan import LaunchPlan
from trtbuild.serve.launch.ways import WAYS, Way
from trtbuild.serve.locate import SYSTEM_SERVER, ServerInstall, find_server
from trtbuild.serve.ports import resolve


class Options(Protocol):
    """What of the command line is needed."""

    @property
    def way(self) -> str:
        """Key of `WAYS`."""

    @property
    def engine(self) -> Path | None:
        """Folder of the engine."""

    def wanted(self, where: Listen, *, grace_s: float, ready_timeout_s: float | None, binary: Path) -> Wanted:
        """Return what to plan."""


def prepare(
    repository: Path, options: Options, where: Listen, *, server: Path | None, grace_s: float, ready_timeout_s: float | None
) -> tuple[LaunchPlan, Way, list[Obstacle]]:  # fmt: skip
    """Return the plan of a launch, how it is carried out, and what would make it fail.

    Raises:
        UsageError: what was typed is not possible.
        TrtbuildError: the repository cannot be launched like this.
    """
    way = WAYS[options.way]
    if way.place.as_caller and 0 in where.ports.named().values():
        where = Listen(where.address, resolve(where.address, where.ports))
    facts = read_facts(repository, engine=options.engine)
    install = _install(server) if way.place.as_caller else None
    binary = install.binary if install else SYSTEM_SERVER
    wanted = options.wanted(where, grace_s=grace_s, ready_timeout_s=ready_timeout_s, binary=binary)
    plan = make_plan(facts, wanted, way.place)
    here = () if way.place.in_container else absent(facts)
    return plan, way, [*here, *damages(facts, options.engine), *(lacking(facts, install) if install else [])]


def _install(server: Path | None) -> ServerInstall | None:
    """Return the server that would run; None where there is none, and the plan is for that of NVIDIA's containers."""
    try:
        return find_server(server)
    except TrtbuildError:
        if server is not None:
            raise
        return None
