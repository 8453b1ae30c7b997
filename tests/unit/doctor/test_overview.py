"""What is said without an artifact: GPU things are described and warned about, and never fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.doctor.conftest import Fake

from trtbuild.doctor import examine
from trtbuild.doctor.finding import Finding
from trtbuild.doctor.overview import overview

Machine = Callable[..., Fake]


def lines(fake: Fake) -> dict[str, Finding]:
    """Return the findings by name."""
    return {finding.name: finding for finding in overview(fake.survey())}


def test_a_machine_without_gpu_is_fine(machine: Machine) -> None:
    found = lines(machine(ulimits={"memlock": 8192, "stack": 8192, "nofile": 256}))
    assert "none is needed" in found["gpu"].detail
    assert {finding.status for finding in found.values()} == {"ok"}


def test_gpus_are_named_with_memory_and_sm(machine: Machine) -> None:
    found = lines(machine(gpus=2))
    assert found["gpu 1"].detail == "NVIDIA H100 80GB HBM3, 79.6 GiB (79.1 free), SM90"
    assert found["gpu links"].detail == "NVLink (NV18)"


@pytest.mark.parametrize(
    ("facts", "name", "says"),
    [
        ({"name": "Tesla V100-SXM2-32GB", "sm": "7.0"}, "gpu 0", "no GPU below SM80"),
        ({"mig": "Enabled"}, "gpu 0", "MIG is on"),
        ({"ulimits": {"memlock": 65536}}, "ulimit memlock", "--ulimit memlock=-1"),
        ({"ulimits": {"stack": 8388608}}, "ulimit stack", "--ulimit stack=67108864"),
        ({"gpus": 2, "link": "SYS"}, "gpu links", "pipeline parallelism"),
        ({"environment": {"CUDA_VISIBLE_DEVICES": ""}}, "visible gpus", "unset CUDA_VISIBLE_DEVICES"),
        ({"driver": "390.10"}, "driver", "newer driver"),
        ({"environment": {"CUDA_VISIBLE_DEVICES": "0,0"}}, "visible gpus", "each once"),
        ({"mig": "Enabled", "gpus": 2}, "visible gpus", "name an instance"),
    ],
)
def test_what_is_doubtful_on_a_gpu_machine_is_a_warning_with_a_remedy(
    machine: Machine, facts: dict[str, Any], name: str, says: str
) -> None:
    found = lines(machine(**{"gpus": 1, **facts}))
    assert found[name].status == "warn"
    assert says in found[name].remedy
    assert "fail" not in {finding.status for finding in found.values()}


@pytest.mark.parametrize(
    ("driver", "tag", "status", "says"),
    [
        ("570.124.06", "", "ok", "up to 25.05"),
        ("590.44.01", "", "ok", "up to 26.07"),
        ("575.57.08", "25.10", "ok", "wants 575.57.08"),
        ("575.57.07", "25.10", "warn", "older than 575.57.08"),
        ("580.95.05", "26.07", "warn", "older than 590.44.01"),
    ],
)
def test_the_driver_is_compared_with_what_the_container_wants(
    machine: Machine, driver: str, tag: str, status: str, says: str
) -> None:
    found = lines(machine(gpus=1, driver=driver, environment={"NVIDIA_TRITON_SERVER_VERSION": tag}))["driver"]
    assert (found.status, says in found.detail) == (status, True)


def test_renumbering_by_cuda_visible_devices_is_spelled_out(machine: Machine) -> None:
    found = lines(machine(gpus=8, environment={"CUDA_VISIBLE_DEVICES": "4,5,6,7"}))["visible gpus"]
    assert "0 is GPU 4, 1 is GPU 5, 2 is GPU 6, 3 is GPU 7" in found.detail


def test_what_of_the_list_does_not_count_is_said(machine: Machine) -> None:
    found = lines(machine(gpus=2, environment={"CUDA_VISIBLE_DEVICES": "1,5,0"}))["visible gpus"]
    assert (
        found.detail
        == "CUDA_VISIBLE_DEVICES=1,5,0: device 0 is GPU 1; '5' is no GPU of this machine, and what follows it (0) does not count"
    )
    listing = "GPU 0: A100 (UUID: GPU-0)\n  MIG 3g.40gb Device 0: (UUID: MIG-1)\n"
    found = lines(machine(gpus=1, mig="Enabled", instances=listing, environment={"CUDA_VISIBLE_DEVICES": "MIG-1"}))[
        "visible gpus"
    ]
    assert found.detail == "CUDA_VISIBLE_DEVICES=MIG-1: device 0 is an instance of GPU 0"


def test_gpus_of_several_kinds_are_numbered_by_speed_unless_told_otherwise(machine: Machine) -> None:
    facts = machine(gpus=2).survey()
    assert "gpu order" not in {finding.name for finding in overview(facts)}
    gpus = replace(facts.gpus, is_by_speed=True)
    found = {finding.name: finding for finding in overview(replace(facts, gpus=gpus))}
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in found["gpu order"].remedy


def test_root_is_told_what_mpirun_needs(machine: Machine) -> None:
    found = lines(machine(mpirun="mpirun (Open MPI) 4.1.7\n\nReport bugs to ...", is_root=True))["mpirun"]
    assert found.detail == "mpirun (Open MPI) 4.1.7 (as root it needs --allow-run-as-root)"


def test_a_driver_without_its_tool_is_a_warning(machine: Machine) -> None:
    fake = machine()
    (fake.root / "dev").mkdir()
    (fake.root / "dev" / "nvidia0").touch()
    assert lines(fake)["gpu"].status == "warn"


def test_the_report_for_the_demo_does_not_fail_for_lack_of_a_gpu(machine: Machine) -> None:
    assert [each for each in examine(machine().survey()) if each.section != "demo" and each.status == "fail"] == []
