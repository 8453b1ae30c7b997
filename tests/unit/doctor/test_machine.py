"""What a machine has, container limits included."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trtbuild.machine import available_memory_bytes, usable_cores


@pytest.mark.parametrize(
    ("limit", "cores"), [(None, 4), ("max 100000", 4), ("150000 100000", 1.5), ("900000 100000", 4)]
)
def test_a_containers_quota_cuts_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str | None, cores: float
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    if limit:
        (tmp_path / "cpu.max").write_text(limit + "\n", encoding="ascii")
    assert usable_cores(tmp_path) == cores


@pytest.mark.parametrize(("limit", "available"), [(None, 8), ("max", 8), (str(6 * 2**30), 5), (str(100 * 2**30), 8)])
def test_a_containers_limit_cuts_the_memory(tmp_path: Path, limit: str | None, available: int) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: 16777216 kB\nMemAvailable:   {8 * 2**20} kB\nHugePages_Total: 0\n", encoding="ascii")
    if limit:
        (tmp_path / "memory.max").write_text(limit + "\n", encoding="ascii")
        (tmp_path / "memory.current").write_text(f"{2**30}\n", encoding="ascii")
    assert available_memory_bytes(meminfo, tmp_path) == available * 2**30
