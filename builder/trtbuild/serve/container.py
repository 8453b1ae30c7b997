"""A server in a container: `docker run` under guard, waited for and stopped like a local one."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from trtbuild.errors import TrtbuildError
from trtbuild.serve import preflight
from trtbuild.serve.launch import docker
from trtbuild.serve.launch.plan import LaunchPlan
from trtbuild.serve.ports import resolve
from trtbuild.serve.run_folder import RunFolder
from trtbuild.serve.supervisor import Server, new_server_id

_REMOVE_TIMEOUT_S = 30
_IDENTITY = "container"


class ContainerServer(Server):
    """One run of a plan by docker.

    Args:
        plan: what to run.
        options: of `Server`.
    """

    def __init__(self, plan: LaunchPlan, **options: Any) -> None:
        super().__init__(address=plan.address, ports=plan.ports, stop_grace_s=plan.grace_s, ready_timeout_s=plan.start_s, **options)  # fmt: skip
        self._plan = plan

    def start(self) -> None:
        """Start the container and return when every model is ready.

        Raises:
            TrtbuildError: there is no docker, a port is taken, or the server does not become ready.
        """
        if shutil.which("docker") is None:
            raise TrtbuildError(
                "docker is not installed", hint="print what would run with --dry-run, and run it where docker is"
            )
        self.models = preflight.model_names(self.repository)
        self.ports = resolve(self.address, self.ports)
        self._run = RunFolder(Path(tempfile.mkdtemp(prefix="trtbuild-serve-")), self.repository, None, None)
        # Removed by its id: the name may be that of somebody else's container.
        identity = ("--cidfile", str(self._run.path / _IDENTITY))
        program, verb, *rest = docker.command(self._plan)
        server_id = None if self._plan.variant == "reference" else self._plan.name.replace("-", "_")
        try:
            self._guard(
                [program, verb, *identity, *rest], os.environ, self._run, server_id=server_id, prefix=f"{new_server_id()}_"
            )  # fmt: skip
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop docker, and remove the container if its daemon still has it."""
        file = self._run.path / _IDENTITY if self._run else None
        container = file.read_text(encoding="utf-8").strip() if file and file.is_file() else ""
        super().stop()
        if container:
            subprocess.run(
                ["docker", "rm", "--force", container],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=_REMOVE_TIMEOUT_S, check=False,
            )  # fmt: skip
