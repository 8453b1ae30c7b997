"""Everything that is read about this machine for the GPU side, at once; each part behind a seam that a test can take."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trtbuild.doctor.software import Software, read_software
from trtbuild.doctor.system import Mpirun, System, ask_mpirun, read_system
from trtbuild.nvidia import Gpus, Smi, ask_nvidia_smi, read_gpus


@dataclass(frozen=True, slots=True)
class Survey:
    """Facts about this machine.

    Attributes:
        gpus: by nvidia-smi.
        software: TensorRT-LLM, TensorRT, Triton, the container.
        system: shared memory, ulimits, MPI.
    """

    gpus: Gpus
    software: Software
    system: System

    def to_json(self) -> dict[str, Any]:
        """Return the facts as plain values."""
        links = {f"{one}-{other}": link for (one, other), link in (self.gpus.links or {}).items()}
        return {
            "gpus": {**asdict(self.gpus), "links": links},
            "software": {**asdict(self.software), "backends": sorted(self.software.backends), "tensorrt": self.software.tensorrt},
            "system": asdict(self.system),
        }  # fmt: skip


def survey(
    *,
    smi: Smi = ask_nvidia_smi,
    mpirun: Mpirun = ask_mpirun,
    environment: Mapping[str, str] | None = None,
    root: Path = Path("/"),
) -> Survey:
    """Read the facts of this machine.

    Args:
        smi: asks nvidia-smi.
        mpirun: asks mpirun.
        environment: of this process unless given.
        root: root of the file system.
    """
    found = os.environ if environment is None else environment
    return Survey(
        read_gpus(smi, found, root / "dev"),
        read_software(found, root),
        read_system(mpirun, root / "dev" / "shm"),
    )
