"""Which GPUs CUDA shows: CUDA_VISIBLE_DEVICES in all its forms, and instances of cut GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.doctor.conftest import Fake

from trtbuild.nvidia import Device, Gpus
from trtbuild.nvidia.visible import parse_instances, select
from trtbuild.trtllm import build_tool

A = "MIG-0aaaaaaa-0000-1111-2222-333344445555"
B = "MIG-0bbbbbbb-0000-1111-2222-333344445555"
LISTING = f"""\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-00000000-0000-1111-2222-333344445555)
  MIG 3g.40gb     Device  0: (UUID: {A})
  MIG 1g.10gb+me  Device  1: (UUID: {B})
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-00000001-0000-1111-2222-333344445555)
"""


def gpus(tmp_path: Path, restriction: str | None, **facts: object) -> Gpus:
    environment = {} if restriction is None else {"CUDA_VISIBLE_DEVICES": restriction}
    return Fake(tmp_path, environment=environment, **facts).survey().gpus  # type: ignore[arg-type]  # facts are those of Fake


@pytest.mark.parametrize(
    ("restriction", "indices", "ignored"),
    [
        (None, [0, 1, 2, 3], ""),
        ("2,3", [2, 3], ""),
        (" 3 , 0", [3, 0], ""),
        ("GPU-00000002", [2], ""),
        ("GPU-00000002,GPU-00000000-0000-1111", [2, 0], ""),
        ("1,7,0", [1], "'7' is no GPU of this machine, and what follows it (0) does not count"),
        ("9", [], "'9' is no GPU of this machine"),
        ("", [], ""),
        ("-1", [], ""),
        ("NoDevFiles", [], ""),
        ("1,-1,2", [1], "'-1' means none, and what follows it (2) does not count"),
        ("0,", [0], ""),
        ("0,,1", [0], "'' means none, and what follows it (1) does not count"),
        ("0,0", [], "0 is listed twice, for which CUDA shows none at all"),
        ("1,2,1", [], "1 is listed twice, for which CUDA shows none at all"),
        ("GPU-00000001,GPU-00000001-0000", [], "GPU-00000001-0000 is listed twice, for which CUDA shows none at all"),
        ("1gpu2,2x", [1, 2], ""),  # as strtoul reads it
        ("+1", [1], ""),
        ("GPU-0000", [], "'GPU-0000' means several"),
        ("GPU-f", [], "'GPU-f' is not on this machine"),
        ("GPU-00000001,0", [1], "'0' does not begin with GPU- as the first does"),
        ("0,GPU-00000001", [0], "'GPU-00000001' means none"),
        ("all", [], "'all' means none"),
        ("MIG-1", [], "'MIG-1' is an instance, and no GPU is cut"),
    ],
)
def test_the_list_is_read_as_cuda_does(
    tmp_path: Path, restriction: str | None, indices: list[int], ignored: str
) -> None:
    found = gpus(tmp_path, restriction, gpus=4)
    assert [device.index for device in found.visible] == indices
    assert found.ignored == ignored


@pytest.mark.parametrize(
    ("restriction", "listing", "uuids"),
    [
        (A, LISTING, [A]), (B, LISTING, [B]), ("MIG-0b", LISTING, [B]), (f"{B},{A}", LISTING, [B]), ("0", LISTING, [A]), (None, LISTING, [A]), ("1,0", LISTING, [A]),
        ("1", LISTING, []), ("MIG-0", LISTING, []), ("MIG-f", LISTING, []), (f"{A},{A}", LISTING, []),
        ("MIG-7", "", ["MIG-7"]), ("0,1", "", ["GPU-00000000-0000-1111-2222-333344445555"]),
        ("MIG-GPU-00000000-0000-1111-2222-333344445555/1/0", LISTING.replace(A, "MIG-GPU-00000000-0000-1111-2222-333344445555/1/0"), ["MIG-GPU-00000000-0000-1111-2222-333344445555/1/0"]),
    ],
)  # fmt: skip
def test_of_cut_gpus_cuda_shows_one_instance(
    tmp_path: Path, restriction: str | None, listing: str, uuids: list[str]
) -> None:
    found = gpus(
        tmp_path, restriction, gpus=2, mig="Enabled", instances=listing, name="NVIDIA A100-SXM4-80GB", sm="8.0"
    )
    assert [device.uuid for device in found.visible] == uuids
    for device in found.visible:
        assert (device.is_mig, device.memory_bytes, device.free_bytes, device.sm) == (True, None, None, 80)
    if listing and found.visible:
        assert found.visible[0].name.startswith("NVIDIA A100-SXM4-80GB MIG ")


def test_an_instance_hides_gpus_that_are_whole() -> None:
    whole = Device(0, "A", 1, 1, "590", "GPU-0", 80, is_mig=False)
    cut = Device(1, "B", 1, 1, "590", "GPU-1", 80, is_mig=True)
    instances = parse_instances(f"GPU 1: B (UUID: GPU-1)\n  MIG 1g.10gb Device 0: (UUID: {A})\n", [whole, cut])
    visible = select([whole, cut], instances, None)
    assert [device.uuid for device in visible.devices] == [A]
    assert visible.ignored == "MIG is on: CUDA shows one instance, and no GPU beside it"
    assert [device.uuid for device in select([whole, cut], instances, "0").devices] == ["GPU-0"]
    assert select([whole, cut], {}, None).devices == (whole,)
    assert (
        parse_instances("GPU 7: C (UUID: GPU-7)\n  MIG 1g Device 0: (UUID: MIG-1)\njunk\n  MIG\n", [whole, cut]) == {}
    )


@given(st.text("0123456789,-+ GPUMI", max_size=20))
def test_whatever_is_written_there_is_read(restriction: str) -> None:
    devices = [Device(number, "A", 1, 1, "590", f"GPU-{number}", 80, is_mig=False) for number in range(3)]
    found = select(devices, None, restriction).devices
    assert len(set(found)) == len(found) <= 3
    assert set(found) <= set(devices)


def test_a_builder_sees_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Fake(tmp_path, gpus=4, environment={"CUDA_VISIBLE_DEVICES": "2,9,1"})
    monkeypatch.setattr(build_tool, "ask_nvidia_smi", lambda arguments, environment: machine.smi(arguments))
    assert build_tool.visible_gpus(machine.environment) == machine.survey().gpus.visible
    monkeypatch.setattr(build_tool, "ask_nvidia_smi", lambda arguments, environment: None)
    assert build_tool.visible_gpus({}) is None
