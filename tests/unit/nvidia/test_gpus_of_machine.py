"""GPUs as nvidia-smi tells of them: kinds, memory, which are visible, how they are connected."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.doctor.conftest import Fake, topology

from trtbuild.nvidia import Gpus, SmiFailed, ask_nvidia_smi, read_gpus, smi
from trtbuild.nvidia.gpus import parse_topology

Machine = Callable[..., Fake]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Return a function that makes a machine with an empty root folder."""
    return lambda **facts: Fake(tmp_path, **facts)


def fake_tool(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program `nvidia-smi` first in PATH."""
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_gpus_are_listed_by_the_drivers_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = "0, NVIDIA L4, 23034, 22500, 570.124.06, GPU-1, [N/A], 8.9"
    fake_tool(tmp_path, f"echo '{row}'", monkeypatch)
    (device,) = read_gpus(ask_nvidia_smi, {}, tmp_path).devices
    assert (device.name, device.sm, device.driver, device.is_mig) == ("NVIDIA L4", 89, "570.124.06", False)
    assert (device.memory_bytes, device.free_bytes) == (23034 * 2**20, 22500 * 2**20)


def test_a_tool_that_hangs_is_asked_once_and_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tool(tmp_path, f"echo asked >> {tmp_path}/asked; exec tail -f /dev/null", monkeypatch)
    monkeypatch.setattr(smi, "_TIMEOUT_S", 0.3)
    (tmp_path / "nvidia0").touch()
    gpus = read_gpus(ask_nvidia_smi, {}, tmp_path)
    assert gpus.devices == ()
    assert "does not answer" in gpus.problem
    assert (tmp_path / "asked").read_text() == "asked\n"


def test_a_tool_that_finds_no_driver_means_no_gpu_and_says_why_where_devices_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_tool(
        tmp_path, "echo 'Failed to initialize NVML: Driver/library version mismatch'; echo more; exit 18", monkeypatch
    )
    assert read_gpus(ask_nvidia_smi, {}, tmp_path) == Gpus()
    (tmp_path / "nvidia0").touch()
    (tmp_path / "nvidiactl").touch()
    problem = read_gpus(ask_nvidia_smi, {}, tmp_path).problem
    assert (
        problem
        == f"1 devices in {tmp_path}, and nvidia-smi says: Failed to initialize NVML: Driver/library version mismatch"
    )
    fake_tool(tmp_path, "exit 9", monkeypatch)
    with pytest.raises(SmiFailed, match="^status 9$"):
        ask_nvidia_smi(())


def test_a_tool_that_lists_none_is_an_answer_and_junk_is_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_tool(tmp_path, "exit 0", monkeypatch)
    assert read_gpus(ask_nvidia_smi, {}, tmp_path) == Gpus(is_known=True)
    fake_tool(tmp_path, "printf '\\377\\376 junk\\nNo devices were found\\n1, 2\\n'", monkeypatch)
    assert read_gpus(ask_nvidia_smi, {}, tmp_path) == Gpus(is_known=True)
    assert not read_gpus(lambda _: None, {}, tmp_path).is_known


def test_an_old_driver_is_asked_without_compute_cap_and_the_name_gives_the_sm(machine: Machine) -> None:
    gpus = machine(gpus=2, old_driver=True, name="NVIDIA A100-SXM4-80GB").survey().gpus
    assert gpus.sms == (80, 80)


def test_memory_that_is_not_stated_is_not_known(machine: Machine) -> None:
    (device,) = machine(gpus=1, name="NVIDIA GB10", memory="[N/A]", free="[N/A]", sm="12.1").survey().gpus.devices
    assert (device.memory_bytes, device.free_bytes, device.sm) == (None, None, 121)


@pytest.mark.parametrize(("names", "order", "by_speed"), [(("A", "A"), None, False), (("A", "B"), None, True), (("A", "B"), "PCI_BUS_ID", False), (("A", "B"), "FASTEST_FIRST", True)])  # fmt: skip
def test_the_order_of_cuda_matters_where_gpus_are_of_several_kinds(
    names: tuple[str, str], order: str | None, by_speed: bool, tmp_path: Path
) -> None:
    listing = "".join(f"{number}, {name}, 1, 1, 590, GPU-{number}, [N/A], 8.0\n" for number, name in enumerate(names))
    environment = {} if order is None else {"CUDA_DEVICE_ORDER": order}
    assert (
        read_gpus(
            lambda arguments: "" if arguments[0] in ("topo", "-L") else listing, environment, tmp_path
        ).is_by_speed
        is by_speed
    )


def test_connections_are_read_and_network_cards_left_out() -> None:
    links = parse_topology(topology(3, "NV18"))
    assert links == {(one, other): "NV18" for one in range(3) for other in range(3) if one != other}
    assert parse_topology("") == {}
    assert parse_topology("nvidia-smi: unknown command\n") == {}


def test_the_worst_connection_among_the_ranks_counts(machine: Machine) -> None:
    gpus = machine(gpus=4, link="NV4").survey().gpus
    mixed = {**(gpus.links or {}), (0, 3): "SYS", (0, 1): "PIX"}
    gpus = Gpus(gpus.devices, gpus.visible, mixed)
    assert [gpus.worst_link(count) for count in (1, 2, 3, 4)] == ["", "PIX", "PIX", "SYS"]
