"""What this machine has: processors, memory, GPUs. Container limits count; nothing is imported to find out."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")
_DEVICES = Path("/dev")
_NVIDIA_SMI_TIMEOUT_S = 10.0


def usable_cores(cgroup: Path = _CGROUP) -> float:
    """Return how many processor cores this process may keep busy: its affinity, cut by the container's quota.

    Args:
        cgroup: root of the cgroup v2 file system.
    """
    cores = float(len(os.sched_getaffinity(0)))
    limit = cgroup / "cpu.max"
    quota, _, period = limit.read_text(encoding="ascii").partition(" ") if limit.is_file() else ("max", "", "")
    return cores if quota == "max" else min(cores, int(quota) / int(period))


def available_memory_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Return how much memory can be used without swapping: the machine's, cut by what the container has left.

    Args:
        meminfo: /proc/meminfo or a file like it.
        cgroup: root of the cgroup v2 file system.
    """
    fields = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    limit, used = cgroup / "memory.max", cgroup / "memory.current"
    if limit.is_file() and (text := limit.read_text(encoding="ascii").strip()) != "max":
        available = min(available, int(text) - int(used.read_text(encoding="ascii")))
    return available


def gpu_names() -> list[str]:
    """Return one line per NVIDIA GPU, such as "NVIDIA H100 80GB HBM3, 81559 MiB"; empty without one.

    Where the driver is there and its tool is not, the devices are counted instead.
    """
    tool = shutil.which("nvidia-smi")
    if tool is not None:
        command = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader"]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=_NVIDIA_SMI_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            return ["NVIDIA GPU (nvidia-smi does not answer)"]
        if answer.returncode == 0:
            return [line.strip() for line in answer.stdout.splitlines() if line.strip()]
    return [f"NVIDIA GPU ({device})" for device in sorted(_DEVICES.glob("nvidia[0-9]*"))]
