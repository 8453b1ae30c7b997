"""Launch files beside a repository, and GPUs of several models and servers (field reports SE05 and LM06)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.repo import lint_cases as cases
from tests.unit.repo.lint_cases import Case, parameter

from trtbuild.repo.lint import check
from trtbuild.serve.launch.ways import WAYS

Cli = Callable[..., tuple[int, str, str]]
SERVER = "tritonserver --model-repository=/models/repository"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Return a good repository for an engine of two ranks."""
    return cases.make(tmp_path_factory.mktemp("made"), target="tensorrt", tensorrt_llm="1.2.1", parallel={"tp_size": 2})


@pytest.fixture
def case(made: Case, tmp_path: Path) -> Case:
    """Return a copy, which a test may change."""
    return cases.copy(made, tmp_path / "case")


def rules(case: Case, **options: object) -> set[str]:
    """Return the rules that find something."""
    return {finding.rule for finding in check(case.repository, **options).findings}  # type: ignore[arg-type] # options of check


class TestExposure:
    @pytest.mark.parametrize(
        "text",
        [
            f"docker run -p 127.0.0.1:8000:8000 -v ./repository:/models/repository:ro tritonserver {SERVER}\n",
            f"docker run -p [::1]:8000:8000 --mount type=bind,source=./repository,target=/models,readonly tritonserver {SERVER}\n",
            f"docker run --network host tritonserver {SERVER} --http-address=127.0.0.1 --grpc-address=127.0.0.1\n",
            f"docker run -v ./logs:/var/log -v ./cache:/modelsets tritonserver {SERVER}\n",
            f"# docker run --privileged -p 8000:8000 tritonserver {SERVER}\ndocker run tritonserver {SERVER}\n",
            "docker run -p 5432:5432 postgres\n",
            f"docker run --privileged=false --cap-drop ALL tritonserver {SERVER}\n",
        ],
    )
    def test_what_a_server_needs_is_fine(self, case: Case, text: str) -> None:
        cases.write("run.sh", text)(case)
        assert check(case.repository).findings == ()

    @pytest.mark.parametrize(
        ("name", "text", "found"),
        [
            ("a.yaml", 'services:\n  a:\n    command: ["tritonserver"]\n    ports: ["8000"]\n    privileged: true\n', {"privileged"}),
            ("a.yaml", "services:\n  a:\n    command: tritonserver\n    network_mode: host\n", {"open-port"}),
            ("a.yaml", "services:\n  a:\n    command: tritonserver\n    pid: host\n    cap_add:\n      - SYS_ADMIN\n", {"privileged"}),
            ("a.yaml", f"services:\n  a:\n    command: {SERVER}\n    volumes:\n      - ./repository:/models/repository\n", {"writable-repository"}),
            ("pod.yml", "spec:\n  hostNetwork: true\n  containers:\n    - command: [tritonserver]\n", {"open-port"}),
            ("pod.yml", "spec:\n  hostPID: true\n  containers:\n    - securityContext: {}\n      command: [tritonserver]\n", {"privileged"}),
            ("unit.service", f"[Service]\nExecStart=docker run -p 0.0.0.0:8001:8001 triton {SERVER} --model-control-mode=poll\n", {"open-port", "model-control"}),
        ],
    )  # fmt: skip
    def test_more_than_that_is_found_in_files_of_every_kind(
        self, case: Case, name: str, text: str, found: set[str]
    ) -> None:
        cases.write(name, text)(case)
        assert rules(case) == found

    @pytest.mark.parametrize("way", [way for way in WAYS if way != "local"])
    def test_what_trtbuild_writes_is_closed(self, case: Case, way: str, cli: Cli) -> None:
        (case.root / "serve.sh").unlink()
        mount = ("--mount", f"{case.root}=/deployment") if way in ("docker", "kubernetes", "slurm") else ()
        code, _, err = cli("serve", case.repository, "--with", way, "-o", case.root / "launch", *mount)
        assert code == 0, err
        written = [file for file in (case.root / "launch").rglob("*") if file.is_file()]
        assert written
        for file in written:
            (case.root / file.name).write_bytes(file.read_bytes())
        assert check(case.repository).findings == ()


def test_rendering_minds_no_launch_file_of_somebody(case: Case, cli: Cli) -> None:
    cases.write("run.sh", "docker run --privileged nvcr.io/nvidia/tritonserver:25.06-py3 tritonserver --model-control-mode=poll\n")(case)  # fmt: skip
    assert rules(case) == {"model-control", "privileged", "launch-image"}
    cases.write(
        "trtbuild.yaml", f"model: {{path: {case.root / 'checkpoint'}}}\ntarget: tensorrt\nparallel: {{tp_size: 2}}\n"
    )(case)
    folders = ("--checkpoint", case.root / "checkpoint", "--engine", case.root / "engine")
    code, _, err = cli("render", case.root / "trtbuild.yaml", *folders, "-o", case.root / "again")
    assert code == 0, err


class TestDevices:
    def test_a_gpu_that_is_not_there_is_refused(self, case: Case, cli: Cli) -> None:
        parameter("gpu_device_ids", "0,9")(case)
        assert cli("lint", case.repository)[0] == 0
        code, out, _ = cli("lint", case.repository, "--gpus", "8")
        assert code == 3
        assert "devices-missing: error: tensorrt_llm/config.pbtxt:" in out
        assert "gpu_device_ids names GPU 9, and the server sees 0 to 7 (--gpus)" in out

    def test_ranks_without_a_list_need_gpus_too(self, case: Case, cli: Cli) -> None:
        assert cli("lint", case.repository, "--gpus", "2")[0] == 0
        assert "its ranks need GPU 1" in cli("lint", case.repository, "--gpus", "1")[1]

    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("CUDA_VISIBLE_DEVICES=4,5,6,7 tritonserver --model-repository repository\n", {"devices-missing"}),
            ("CUDA_VISIBLE_DEVICES=2,3,4,5,6,7 tritonserver --model-repository repository\n", set()),
            ("CUDA_VISIBLE_DEVICES=4,5,6,7 tritonserver --model-repository elsewhere\n", set()),
            ("CUDA_VISIBLE_DEVICES=0,1 tritonserver --model-repository repository\nCUDA_VISIBLE_DEVICES=2 tritonserver\n", set()),
            ("CUDA_VISIBLE_DEVICES=$GPUS tritonserver --model-repository repository\n", set()),
        ],
    )  # fmt: skip
    def test_ids_count_within_those_that_the_server_sees(self, case: Case, text: str, found: set[str]) -> None:
        parameter("gpu_device_ids", "4,5")(case)
        cases.write("serve.sh", text)(case)
        assert rules(case) == found

    @pytest.mark.parametrize(
        ("mine", "theirs", "severity", "message"),
        [
            ("0,1", "2,3", None, ""),
            ("0,1", "1,2", "error", "gpu_device_ids: GPU 1 is also that of tensorrt_llm of "),
            ("0,1", None, "warning", "gpu_device_ids: GPU 0 is also that of tensorrt_llm of "),
            (
                None,
                "1,2",
                "warning",
                "without gpu_device_ids it begins at GPU 0; GPU 1 is also that of tensorrt_llm of ",
            ),
        ],
    )
    def test_two_servers_on_one_machine_share_no_gpu(
        self, case: Case, made: Case, tmp_path: Path, mine: str | None, theirs: str | None, severity: str | None, message: str
    ) -> None:  # fmt: skip
        other = cases.copy(made, tmp_path / "other")
        for each, ids in ((case, mine), (other, theirs)):
            if ids is not None:
                parameter("gpu_device_ids", ids)(each)
        findings = check(case.repository, beside=[other.repository]).findings
        assert [(each.rule, each.severity) for each in findings] == ([("devices-overlap", severity)] if severity else [])  # fmt: skip
        assert all(each.message.startswith(message + str(other.repository)) for each in findings if message)

    def test_two_models_without_lists_both_begin_at_gpu_0(self, case: Case) -> None:
        second = case.repository / "second"
        (second / "1").mkdir(parents=True)
        text = case.config("tensorrt_llm").read_text().replace('name: "tensorrt_llm"', 'name: "second"')
        (second / "config.pbtxt").write_text(text)
        [finding] = check(case.repository).findings
        assert (finding.rule, finding.severity) == ("devices-overlap", "warning")
        assert "GPU 0, 1 is also that of second" in finding.message

    def test_a_repository_beside_that_is_none_is_an_error(self, case: Case, cli: Cli, tmp_path: Path) -> None:
        code, _, err = cli("lint", case.repository, "--beside", tmp_path / "nothing")
        assert code == 1
        assert "is not a folder" in err


class TestRanks:
    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("mpirun -n 2 tritonserver --model-repository repository\n", set()),
            ("mpirun -n 1 tritonserver --model-repository repository : -n 1 tritonserver\n", set()),
            ("mpirun -n 1 \\\n  tritonserver --model-repository repository\n", {"launch-ranks"}),
            ("launch_triton_server.py --world_size=2 --model_repo repository\n", set()),
            ("launch_triton_server.py --world_size=4 --model_repo repository\n", {"launch-ranks"}),
            ("launch_triton_server.py --multi-model --world_size=1 --model_repo repository\n", set()),
            ("TRTLLM_ORCHESTRATOR=1 mpirun -n 1 tritonserver --model-repository repository\n", set()),
            ("launch_triton_server.py --world_size=4 --model_repo elsewhere\n", set()),
        ],
    )
    def test_as_many_are_started_as_the_engine_has(self, case: Case, text: str, found: set[str]) -> None:
        cases.write("serve.sh", text)(case)
        assert rules(case) == found

    @pytest.mark.parametrize(
        ("image", "found"),
        [
            ("26.07-trtllm-python-py3", set()),
            ("26.04-trtllm-python-py3", set()),
            ("25.12-trtllm-python-py3", {"launch-image"}),
            ("99.01-trtllm-python-py3", set()),
            ("26.07-py3", {"launch-image"}),
            ("26.07-py3-sdk", set()),
        ],
    )
    def test_the_image_can_run_the_engine(self, case: Case, image: str, found: set[str]) -> None:
        cases.write("serve.sh", f"docker run nvcr.io/nvidia/tritonserver:{image} tritonserver\n")(case)
        assert rules(case) == found
