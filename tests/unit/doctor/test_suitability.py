"""Whether a machine can run an artifact: what it lacks is named with the remedy, and what cannot be compared is said."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.unit.doctor.conftest import Fake, add_container

from trtbuild.doctor import examine_for
from trtbuild.doctor.devices import device_findings
from trtbuild.doctor.finding import Finding
from trtbuild.doctor.subject import ServedModel, read_subject
from trtbuild.errors import TrtbuildError

Machine = Callable[..., Fake]
Cli = Callable[..., tuple[int, str, str]]
BUILT = {"tensorrt": "10.14.1.48", "sm": 90}


def lines(folder: Path, fake: Fake) -> dict[str, Finding]:
    """Return the findings about an artifact by name."""
    return {finding.name: finding for finding in examine_for(folder, fake.survey()) if finding.section == "artifact"}


def write_engine(
    folder: Path, *, version: str = "1.2.1", built: dict[str, Any] | None = BUILT, megabytes: int = 1, **mapping: int
) -> Path:
    """Write an engine folder whose rank files are holes of the given size."""
    folder.mkdir(parents=True)
    config = {"version": version, "pretrained_config": {"mapping": mapping}, "build_config": {"max_batch_size": 8}}
    (folder / "config.json").write_text(json.dumps(config))
    if built is not None:
        (folder / "manifest.json").write_text(json.dumps({"kind": "engine", **built}))
    for rank in range(mapping.get("tp_size", 1) * mapping.get("pp_size", 1)):
        with (folder / f"rank{rank}.engine").open("wb") as file:
            file.truncate(megabytes * 2**20)
    return folder


def write_model(repository: Path, name: str, backend: str, **parameters: str) -> None:
    """Write a model with a config.pbtxt only."""
    (repository / name / "1").mkdir(parents=True)
    entries = "".join(f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n' for key, value in parameters.items())  # fmt: skip
    (repository / name / "config.pbtxt").write_text(f'backend: "{backend}"\n{entries}')


@pytest.fixture
def server(machine: Machine) -> Callable[..., Fake]:
    """Return a function that makes a machine inside the container of TensorRT-LLM 1.2.1, with GPUs."""

    def make(*, tensorrt_llm: str = "1.2.1", tensorrt: str = "10.14.1.48", backends: tuple[str, ...] = ("python", "tensorrtllm"), **facts: Any) -> Fake:  # fmt: skip
        fake = machine()
        environment = add_container(fake.root, tensorrt_llm=tensorrt_llm, tensorrt=tensorrt, backends=backends)
        environment |= {"NVIDIA_TRITON_SERVER_VERSION": "26.07", **facts.pop("environment", {})}
        return machine(**{"gpus": 2, "mpirun": "mpirun (Open MPI) 4.1.7", "environment": environment, **facts})

    return make


def test_an_engine_in_its_own_container_on_its_own_gpus_can_run(tmp_path: Path, server: Callable[..., Fake]) -> None:
    found = lines(write_engine(tmp_path / "engine", tp_size=2), server())
    assert {finding.status for finding in found.values()} == {"ok"}
    assert found["artifact"].detail.endswith(
        "2 ranks, 0.00 GiB, built by TensorRT-LLM 1.2.1, TensorRT 10.14.1.48, SM90"
    )
    assert {"gpu count", "gpu memory", "shared memory", "gpu links", "mpirun", "driver", "triton backends"} <= set(
        found
    )


@pytest.mark.parametrize(
    ("facts", "name", "status", "says"),
    [
        ({"gpus": 1}, "gpu count", "fail", "2 GPUs needed, 1 visible"),
        ({"environment": {"CUDA_VISIBLE_DEVICES": "1"}}, "gpu count", "fail", "1 visible, 2 in the machine"),
        ({"sm": "8.9", "name": "NVIDIA L4"}, "architecture", "fail", "built for SM90, this machine has SM89"),
        ({"tensorrt": "10.13.3.9"}, "tensorrt", "fail", "10.14.1.48, this machine has 10.13.3.9"),
        ({"tensorrt_llm": "1.2.0"}, "backend", "fail", "built by TensorRT-LLM 1.2.1, this machine has 1.2.0"),
        ({"memory": "1"}, "gpu memory", "fail", "0.00 GiB of weights"),
        ({"memory": "100", "free": "2"}, "gpu memory", "warn", "free"),
        ({"memory": "[N/A]", "free": "[N/A]"}, "gpu memory", "warn", "not compared"),
        ({"shm_bytes": 64 * 2**20}, "shared memory", "warn", "64 MiB in /dev/shm, less than the 1024 MiB"),
        ({"shm_bytes": None}, "shared memory", "warn", "0 MiB"),
        ({"mpirun": ""}, "mpirun", "fail", "2 ranks are started by it"),
        ({"is_root": True}, "mpirun", "ok", "--allow-run-as-root"),
        ({"link": "SYS"}, "gpu links", "warn", "crosses the host"),
        ({"driver": "580.95.05"}, "driver", "warn", "older than 590.44.01"),
        ({"driver": "580.95.05", "name": "NVIDIA GeForce RTX 5090"}, "driver", "fail", "older than 590.44.01"),
        ({"backends": ("python", "onnxruntime")}, "triton backends", "fail", "missing: tensorrtllm"),
        ({"ulimits": {"memlock": 65536}}, "ulimit memlock", "warn", "65536"),
    ],
)  # fmt: skip
def test_what_the_machine_lacks_is_named(
    tmp_path: Path, server: Callable[..., Fake], facts: dict[str, Any], name: str, status: str, says: str
) -> None:
    found = lines(write_engine(tmp_path / "engine", tp_size=2, megabytes=2), server(**facts))[name]
    assert (found.status, says in found.detail) == (status, True), found
    assert found.remedy or status == "ok" or "not compared" in found.detail


def test_without_a_gpu_it_says_what_is_missing_and_what_was_not_compared(tmp_path: Path, machine: Machine) -> None:
    found = lines(write_engine(tmp_path / "engine", tp_size=2), machine())
    assert (found["gpu count"].status, found["gpu count"].detail) == ("fail", "2 GPUs needed; there is none here")
    assert "not compared, there is no GPU here" in found["architecture"].detail
    assert "not compared, there is none here" in found["tensorrt"].detail
    assert "26.07-trtllm-python-py3" in found["tensorrt-llm"].remedy
    assert found["mpirun"].status == found["triton backends"].status == "warn"


def test_one_rank_asks_for_neither_shared_memory_nor_mpi(tmp_path: Path, server: Callable[..., Fake]) -> None:
    found = lines(write_engine(tmp_path / "engine"), server(gpus=1, mpirun="", shm_bytes=64 * 2**20))
    assert not {"shared memory", "mpirun", "gpu links"} & set(found)


def test_an_engine_without_a_manifest_does_not_say_what_built_it(tmp_path: Path, server: Callable[..., Fake]) -> None:
    found = lines(write_engine(tmp_path / "engine", built=None, tp_size=2), server())["engine"]
    assert (found.status, found.detail) == ("warn", "it does not say which TensorRT and which kind of GPU built it")


def test_an_engine_of_an_older_generation_is_refused(tmp_path: Path, server: Callable[..., Fake]) -> None:
    folder = tmp_path / "engine"
    folder.mkdir()
    (folder / "config.json").write_text('{"version": "0.7.1", "builder_config": {"tensor_parallel": 2}}')
    found = lines(folder, server())
    assert found["generation"].status == found["backend"].status == "fail"
    assert "TensorRT-LLM 0.7.1" in found["generation"].detail


def test_a_hugging_face_folder_of_newer_transformers_is_a_notice(tmp_path: Path, machine: Machine) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "transformers_version": "99.0"}')
    found = lines(tmp_path, machine(gpus=1))["transformers"]
    assert (found.status, "99.0" in found.detail) == ("warn", True)


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a build folder without weights."""

    def make(target: str, **sections: Any) -> Path:
        folder = tmp_path / "build"
        folder.mkdir()
        content = {"model": {"path": str(tmp_path)}, "target": target, **sections}
        (folder / "trtbuild.yaml").write_text(json.dumps(content))
        return folder

    return make


def test_a_build_for_the_cpu_needs_no_gpu(build: Callable[..., Path], machine: Machine) -> None:
    folder = build("reference", serving={"http_port": 0, "grpc_port": 0, "metrics_port": 0})
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "config.json").write_text('{"architecture": "x", "mapping": {"tp_size": 4}}')
    found = lines(folder, machine())
    assert "the reference target runs on the CPU" in found["gpu"].detail
    assert not {"gpu count", "tensorrt-llm"} & set(found)


def test_weights_that_exceed_the_memory_of_the_cpu_are_warned_about(
    build: Callable[..., Path], machine: Machine
) -> None:
    folder = build("reference")
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "config.json").write_text('{"architecture": "x"}')
    (folder / "checkpoint" / "rank0.safetensors").write_bytes(bytes(1000))
    assert lines(folder, machine(memory_bytes=1000))["memory"].status == "warn"
    assert lines(folder, machine())["memory"].status == "ok"


def test_a_build_that_has_rank_files_only_is_no_engine_yet(
    build: Callable[..., Path], server: Callable[..., Fake]
) -> None:
    folder = build("tensorrt", tensorrt_llm="1.1.0", hardware={"gpu": "l4"})
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "config.json").write_text('{"architecture": "x", "mapping": {"tp_size": 2}}')
    found = lines(folder, server())
    assert (found["artifact"].status, "trtllm-build" in found["artifact"].remedy) == ("warn", True)
    assert (found["tensorrt-llm"].status, "states 1.1.0, here is 1.2.1" in found["tensorrt-llm"].detail) == (
        "fail",
        True,
    )
    assert "trtbuild.yaml says SM89, here is SM90" in found["hardware.gpu"].detail
    write_engine(folder / "engine", tp_size=2)
    assert read_subject(folder).artifact.kind == "engine"  # type: ignore[union-attr]  # it was just written


def test_the_pytorch_target_is_cut_as_the_deployment_says(build: Callable[..., Path], machine: Machine) -> None:
    folder = build("pytorch", parallel={"tp_size": 4}, tensorrt_llm="1.2")
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "config.json").write_text('{"architectures": ["X"], "transformers_version": "4.40.0"}')
    (folder / "checkpoint" / "model.safetensors").write_bytes(bytes(4 * 2**20))
    found = lines(folder, machine(gpus=4, memory="2"))
    assert found["gpu count"].detail == "4 visible, 4 needed"
    assert "mpirun" not in found
    assert "26.07" in found["tensorrt-llm"].remedy
    assert found["gpu memory"].status == "ok"


def test_taken_ports_of_a_build_are_each_named(build: Callable[..., Path], machine: Machine) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as one, closing(socket.create_server(("127.0.0.1", 0))) as two:
        first, second = one.getsockname()[1], two.getsockname()[1]
        folder = build("reference", serving={"http_port": first, "grpc_port": second, "metrics_port": 0})
        found = lines(folder, machine())
    assert found["ports"].status == "warn"
    assert f"{first} is already in use" in found["ports"].detail
    assert f"{second} is already in use" in found["ports"].detail
    assert "neither a checkpoint nor an engine" in found["note"].detail


def test_a_repository_leads_to_its_engine(tmp_path: Path, server: Callable[..., Fake]) -> None:
    engine = write_engine(tmp_path / "engine", tp_size=2)
    write_model(tmp_path / "repository", "tensorrt_llm", "tensorrtllm", gpt_model_path=str(engine))
    write_model(tmp_path / "repository", "preprocessing", "python")
    subject = read_subject(tmp_path / "repository")
    assert (subject.target, subject.world_size, subject.backends) == ("tensorrt", 2, {"tensorrtllm", "python"})
    assert {finding.status for finding in lines(tmp_path / "repository", server()).values()} == {"ok"}


def test_an_engine_that_lies_elsewhere_is_said_not_to_be_looked_at(tmp_path: Path, server: Callable[..., Fake]) -> None:
    write_model(tmp_path / "repository", "tensorrt_llm", "tensorrtllm", gpt_model_path="/models/engine")
    found = lines(tmp_path / "repository", server())
    assert found["note"].detail.startswith("tensorrt_llm: /models/engine is not here")


def test_an_llm_api_model_says_its_ranks(tmp_path: Path) -> None:
    write_model(tmp_path / "repository", "tensorrt_llm", "python")
    (tmp_path / "repository" / "tensorrt_llm" / "1" / "model.yaml").write_text("model: x\ntensor_parallel_size: 4\n")
    subject = read_subject(tmp_path / "repository")
    assert (subject.target, subject.world_size) == ("pytorch", 4)


@pytest.mark.parametrize(
    ("first", "second", "gpus", "says"),
    [
        ("0,1,2,3", "3,4,5,6", 8, "GPU 3 is listed by a and b"),
        ("0,1,2,3", "4,5,6", 8, "b lists 3 GPUs (4,5,6) and has 4 ranks"),
        ("0,1,2,3", "6,7,8,9", 8, "b lists GPU 8,9; there are 0 to 7"),
        ("0,1,2,3", "4,4,5,6", 8, "b lists GPU 4 more than once"),
        ("0,1,2,3", "4,5,6,7", 8, ""),
        ("0,1,2,3;4,5,6,7", "", 8, ""),
        ("", "", 8, "name no GPUs"),
    ],
)
def test_device_lists_of_two_models_must_fit_the_gpus(
    tmp_path: Path, machine: Machine, first: str, second: str, gpus: int, says: str
) -> None:
    engine = write_engine(tmp_path / "engine", tp_size=4)
    for name, ids in (("a", first), ("b", second)):
        more = {"gpu_device_ids": ids} if ids else {}
        write_model(tmp_path / "repository", name, "tensorrtllm", gpt_model_path=str(engine), **more)
    found = lines(tmp_path / "repository", machine(gpus=gpus))["gpu_device_ids"]
    assert found.status == ("ok" if not says else "warn" if "name no" in says else "fail")
    assert says in found.detail


def test_renumbered_devices_are_explained(machine: Machine) -> None:
    gpus = machine(gpus=8, environment={"CUDA_VISIBLE_DEVICES": "4,5,6,7"}).survey().gpus
    (fits,) = device_findings([ServedModel("a", 2, ((0, 1),))], gpus)
    assert (fits.status, "0 is GPU 4, 1 is GPU 5" in fits.detail) == ("ok", True)
    (outside,) = device_findings([ServedModel("a", 2, ((4, 5),))], gpus)
    assert (outside.status, "there are 0 to 3" in outside.detail) == ("fail", True)


@pytest.mark.parametrize("content", ["", '{"hello": 1}', "not json"])
def test_what_is_no_artifact_is_an_error_that_says_what_to_name(tmp_path: Path, content: str) -> None:
    if content:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(TrtbuildError):
        read_subject(tmp_path)
    with pytest.raises(TrtbuildError, match="is not a folder"):
        read_subject(tmp_path / "none")


def test_device_lists_that_are_no_numbers_are_an_error(tmp_path: Path) -> None:
    engine = write_engine(tmp_path / "engine")
    write_model(tmp_path / "repository", "a", "tensorrtllm", gpt_model_path=str(engine), gpu_device_ids="zero")
    with pytest.raises(TrtbuildError, match="gpu_device_ids is 'zero'"):
        read_subject(tmp_path / "repository")


def test_the_command_exits_with_3_where_the_artifact_cannot_run(tmp_path: Path, cli: Cli) -> None:
    write_engine(tmp_path / "engine", tp_size=64)
    code, out, err = cli("doctor", "--for", tmp_path / "engine", "--json")
    report = json.loads(out)
    assert (code, report["ok"]) == (3, False)
    assert "gpu count" in err
    assert {"artifact", "gpu", "software", "system"} == {finding["section"] for finding in report["findings"]}
    assert cli("doctor", "--for", tmp_path / "none")[0] == 1
