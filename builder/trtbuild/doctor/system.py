"""Limits of this system that a server with several GPUs meets: shared memory, ulimits, memory, MPI. Reads, changes nothing."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trtbuild.machine import available_memory_bytes
from trtbuild.serve.preflight import SHARED_MEMORY, shared_memory_bytes

_TIMEOUT_S = 10.0
#: Called with the arguments of mpirun; returns what it prints, None when it is missing or fails.
Mpirun = Callable[[tuple[str, ...]], "str | None"]
#: ulimits -> the least that serving on GPUs wants, bytes or files. NCCL and CUDA pin memory and models run deep stacks: the documented
#: `--ulimit memlock=-1 --ulimit stack=67108864` (Triton specification 4.1). Files: 1024 is what Linux gives without being told.
ULIMITS: dict[str, int] = {"memlock": resource.RLIM_INFINITY, "stack": 67108864, "nofile": 1024}
_RESOURCES = {"memlock": resource.RLIMIT_MEMLOCK, "stack": resource.RLIMIT_STACK, "nofile": resource.RLIMIT_NOFILE}
#: NCCL's segments overflow the 64 MiB that a container gets by itself (field report LM08: at least 1 GiB as soon as there are two ranks).
SHM_FLOOR_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class System:
    """Facts about the system.

    Attributes:
        shm_bytes: size of /dev/shm; None when there is none.
        memory_bytes: memory that can be used.
        ulimits: name of `ULIMITS` -> soft limit, bytes or files; -1 is unlimited.
        mpirun: first line of `mpirun --version`; empty when there is none.
        is_root: whether this user is root, to whom mpirun refuses itself unless told.
    """

    shm_bytes: int | None
    memory_bytes: int
    ulimits: Mapping[str, int]
    mpirun: str
    is_root: bool


def ask_mpirun(arguments: tuple[str, ...]) -> str | None:
    """Run mpirun and return what it prints, None when it is missing or fails."""
    tool = shutil.which("mpirun")
    if tool is None:
        return None
    try:
        answer = subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (subprocess.TimeoutExpired, OSError):
        return None
    return answer.stdout if answer.returncode == 0 else None


def read_system(mpirun: Mpirun = ask_mpirun, shared_memory: Path = SHARED_MEMORY) -> System:
    """Return the facts of this system."""
    return System(
        shm_bytes=shared_memory_bytes(shared_memory) if shared_memory.is_dir() else None,
        memory_bytes=available_memory_bytes(),
        ulimits={name: resource.getrlimit(number)[0] for name, number in _RESOURCES.items()},
        mpirun=((mpirun(("--version",)) or "").strip().splitlines() or [""])[0],
        is_root=os.geteuid() == 0,
    )


def is_low(name: str, limit: int) -> bool:
    """Say whether a ulimit is below what `ULIMITS` wants."""
    if limit == resource.RLIM_INFINITY:
        return False
    return ULIMITS[name] == resource.RLIM_INFINITY or limit < ULIMITS[name]
