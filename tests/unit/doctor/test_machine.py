"""What a machine has, container limits included."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trtbuild import machine
from trtbuild.machine import available_memory_bytes, gpu_names, usable_cores


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


def fake_smi(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program `nvidia-smi` first in PATH."""
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_gpus_are_listed_by_the_drivers_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_smi(tmp_path, "printf 'NVIDIA L4, 23034 MiB\\nNVIDIA L4, 23034 MiB\\n'", monkeypatch)
    assert gpu_names() == ["NVIDIA L4, 23034 MiB"] * 2


def test_a_tool_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_smi(tmp_path, "exec tail -f /dev/null", monkeypatch)
    monkeypatch.setattr(machine, "_NVIDIA_SMI_TIMEOUT_S", 0.1)
    assert gpu_names() == ["NVIDIA GPU (nvidia-smi does not answer)"]


def test_a_tool_that_finds_no_driver_means_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_smi(tmp_path, "exit 9", monkeypatch)
    monkeypatch.setattr(machine, "_DEVICES", tmp_path)
    assert gpu_names() == []
    (tmp_path / "nvidia0").touch()
    (tmp_path / "nvidiactl").touch()
    assert gpu_names() == [f"NVIDIA GPU ({tmp_path}/nvidia0)"]
