"""What is installed: the inside of a container counts, not its label; every copy of TensorRT is found; nothing is imported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.unit.doctor.conftest import Fake, add_container, add_package

from trtbuild.doctor import overview
from trtbuild.doctor.software import read_software

Machine = Callable[..., Fake]


def test_versions_are_read_from_the_container_beside_our_own_environment(tmp_path: Path) -> None:
    environment = add_container(tmp_path, tensorrt_llm="0.21.0", tensorrt="10.11.0.33")
    own = tmp_path / "venv"
    add_package(own, "torch", "2.13.0")
    found = read_software({**environment, "NVIDIA_TRITON_SERVER_VERSION": "25.08"}, tmp_path, [str(own)])
    assert (found.version("tensorrt-llm"), found.version("torch"), found.tensorrt) == ("0.21.0", "2.13.0", "10.11.0.33")
    assert (found.tag, found.is_container, found.backends) == ("25.08", True, {"python", "tensorrtllm"})


def test_the_label_does_not_count_where_the_library_says_otherwise(tmp_path: Path, machine: Machine) -> None:
    fake = machine()
    add_container(fake.root, tensorrt_llm="0.21.0", tensorrt="10.9.0.34")
    labels = {"NVIDIA_TRITON_SERVER_VERSION": "25.08", "TRT_VERSION": "10.11.0.33"}
    found = read_software(labels, fake.root, [str(tmp_path)])
    assert found.tensorrt == "10.9.0.34"
    lines = {each.name: each for each in overview.software_findings(found)}
    assert lines["label"].status == "warn"
    assert lines["label"].detail == "the label 25.08 stands for TensorRT 10.11.0.33, inside is 10.9.0.34"


def test_two_versions_of_tensorrt_are_reported_with_their_places_and_the_loaded_one(tmp_path: Path) -> None:
    environment = add_container(tmp_path, tensorrt_llm="1.2.1", tensorrt="10.14.1.48")
    old = tmp_path / "old"
    old.mkdir()
    (old / "libnvinfer.so.10.9.0").touch()
    add_package(tmp_path / "opt/venv-x/lib/python3.12/site-packages", "tensorrt_cu12_libs", "10.13.3.9")
    found = read_software({**environment, "LD_LIBRARY_PATH": str(old)}, tmp_path, [str(tmp_path / "none")])
    assert found.tensorrt == "10.9.0"
    (copies,) = [each for each in overview.software_findings(found) if each.name == "copies"]
    assert copies.status == "warn"
    assert copies.detail.startswith("3 versions of TensorRT on this machine, loaded is 10.9.0")
    for part in (str(old), "10.14.1.48", "tensorrt-cu12-libs 10.13.3.9"):
        assert part in copies.detail


def test_a_link_to_a_library_is_no_second_copy(tmp_path: Path) -> None:
    environment = add_container(tmp_path, tensorrt_llm="1.2.1", tensorrt="10.14.1.48")
    found = read_software(environment, tmp_path, [str(tmp_path / "none")])
    assert [copy.version for copy in found.libraries] == ["10.14.1"]
    assert "copies" not in {each.name for each in overview.software_findings(found)}


def test_what_a_running_server_has_mapped_counts_most(tmp_path: Path) -> None:
    add_container(tmp_path, tensorrt_llm="1.2.1", tensorrt="10.14.1.48")
    mapped = tmp_path / "elsewhere" / "libnvinfer.so.10.13.3"
    mapped.parent.mkdir()
    mapped.touch()
    for number, name in ((41, "tritonserver"), (42, "bash")):
        process = tmp_path / "proc" / str(number)
        process.mkdir(parents=True)
        (process / "comm").write_text(f"{name}\n")
        where = mapped if name == "tritonserver" else "/lib/libnvinfer.so.1.2.3"
        (process / "maps").write_text(f"7f00-7f01 r-xp 00000000 08:01 99    {where}\n7f02-7f03 rw-p 00000000 00:00 0\n")
    found = read_software({}, tmp_path, [str(tmp_path / "none")])
    assert found.libraries[0].version == "10.13.3"
    assert found.tensorrt == "10.13.3"


def test_two_copies_of_a_package_are_reported_with_the_one_that_is_imported(tmp_path: Path) -> None:
    for folder, version in (("first", "4.53.1"), ("second", "5.24.0")):
        add_package(tmp_path / folder, "transformers", version)
    found = read_software({}, tmp_path / "root", [str(tmp_path / "first"), str(tmp_path / "second")])
    (copies,) = [each for each in overview.software_findings(found) if each.name == "transformers copies"]
    assert copies.detail.startswith("4.53.1 in ")
    assert copies.detail.endswith("the first is imported")


def test_a_bare_machine_has_nothing_and_that_is_fine(tmp_path: Path) -> None:
    found = read_software({}, tmp_path, [str(tmp_path / "none")])
    lines = list(overview.software_findings(found))
    assert [(each.name, each.status) for each in lines] == [("container", "ok"), ("installed", "ok")]
    assert lines[0].detail == "none"
