"""What this machine has: processors and memory. Container limits count; nothing is imported to find out."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


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
