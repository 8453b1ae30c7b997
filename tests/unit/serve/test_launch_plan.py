"""Launch plans: ranks from the engine, ports of rank 0 only, GPU lists, versions, and the texts of every way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from serve_helpers import write_echo

from trtbuild.cli.launch_options import WAY_NAMES
from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.serve.launch.facts import read_facts
from trtbuild.serve.launch.make import Wanted, make_plan
from trtbuild.serve.launch.plan import SHARED_MEMORY_BYTES, LaunchPlan
from trtbuild.serve.launch.systemd import _join, _quote
from trtbuild.serve.launch.ways import WAYS, Extras, write
from trtbuild.serve.ports import Ports

Cli = Callable[..., tuple[int, str, str]]
GOLDENS = Path(__file__).parents[2] / "goldens" / "launch"
PORTS = Ports(8000, 8001, 8002)
CONFIG = """
name: "%s"
backend: "tensorrtllm"
max_batch_size: 4
input [{ name: "input_ids" data_type: TYPE_INT32 dims: [-1] }]
output [{ name: "output_ids" data_type: TYPE_INT32 dims: [-1] }]
parameters { key: "gpt_model_path" value: { string_value: "%s" } }
%s
"""


def write_engine(folder: Path, *, tp: int = 1, pp: int = 1, version: str = "1.2.1", **built: Any) -> Path:
    """Write the folder of an engine, whole as far as names go, and what a manifest says about its build."""
    folder.mkdir(parents=True)
    for rank in range(tp * pp):
        (folder / f"rank{rank}.engine").write_bytes(b"engine")
    mapping = {"tp_size": tp, "pp_size": pp, "world_size": tp * pp}
    config = {"version": version, "pretrained_config": {"mapping": mapping}, "build_config": {"max_batch_size": 4}}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if built:
        manifest = {"schema_version": 1, "kind": "engine", **built}
        (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return folder


def write_build(folder: Path, *, seen_as: str | None = None, extra: str = "", spec: str = "", **engine: Any) -> Path:
    """Write a build folder with an engine and a repository, whose paths are those here or as a container sees them."""
    write_engine(folder / "engine", **engine)
    (folder / "trtbuild.yaml").write_text(f"model: {{path: model}}\ntarget: tensorrt\n{spec}", encoding="utf-8")
    write_model(folder / "repository", "tensorrt_llm", f"{seen_as or folder}/engine", extra)
    return folder


def write_model(repository: Path, name: str, engine: str, extra: str = "") -> None:
    """Write a model that serves an engine."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(CONFIG % (name, engine, extra), encoding="utf-8")


def devices(text: str) -> str:
    """Return the parameter gpu_device_ids."""
    return f'parameters {{ key: "gpu_device_ids" value: {{ string_value: "{text}" }} }}'


def plan_of(folder: Path, way: str, *, engine: Path | None = None, **wanted: Any) -> LaunchPlan:
    """Return the plan of a folder, on the usual ports of loopback."""
    typed = Wanted("127.0.0.1", PORTS, **{"name": "qwen", **wanted})
    return make_plan(read_facts(folder, engine=engine), typed, WAYS[way].place)


def text_of(plan: LaunchPlan, way: str, **extras: Any) -> str:
    """Return the only file of a way."""
    (text,) = WAYS[way].files(plan, Extras(**extras)).values()
    return text


@pytest.mark.parametrize("way", ["mpirun", "docker", "slurm", "kubernetes", "systemd"])
def test_world_size_comes_from_the_engine_and_only_rank_0_opens_ports(tmp_path: Path, way: str) -> None:
    plan = plan_of(write_build(tmp_path / "build", tp=2, pp=2), way)
    assert (plan.world_size, len(plan.ranks)) == (4, 4)
    assert [rank.serves for rank in plan.ranks] == [True, False, False, False]
    assert "--model-control-mode=none" in plan.ranks[0].command
    assert "--http-port=8000" in plan.ranks[0].command
    prefixes = set()
    for rank in plan.ranks:
        prefixes |= {word for word in rank.command if "shm-region-prefix-name" in word}
    assert len(prefixes) == 4
    for rank in plan.ranks[1:]:
        assert {"--allow-http=false", "--allow-grpc=false", "--allow-metrics=false"} <= set(rank.command)
        assert {"--model-control-mode=explicit", "--load-model=tensorrt_llm"} <= set(rank.command)
        assert not [word for word in rank.command if "port" in word]
    assert plan.command.count(":") == 3


@pytest.mark.parametrize("typed", [1, 2])
def test_a_world_size_that_is_not_the_engines_is_refused(tmp_path: Path, typed: int) -> None:
    build = write_build(tmp_path / "build", tp=2, pp=2)
    with pytest.raises(UsageError, match=rf"--world-size {typed} .*is for 4 rank"):
        plan_of(build, "docker", world_size=typed)
    assert plan_of(build, "docker", world_size=4).world_size == 4


def test_an_engine_that_is_elsewhere_needs_its_folder_or_a_number(tmp_path: Path) -> None:
    write_model(tmp_path / "repository", "tensorrt_llm", "/elsewhere/engine")
    mounts = ((str(tmp_path / "engine"), "/elsewhere/engine"),)
    options: dict[str, Any] = {"mounts": mounts, "image": "mine"}
    with pytest.raises(TrtbuildError, match="ranks is not known") as failure:
        plan_of(tmp_path / "repository", "docker", **options)
    assert "--world-size" in failure.value.hint
    assert plan_of(tmp_path / "repository", "docker", **options, world_size=2).world_size == 2
    engine = write_engine(tmp_path / "engine", tp=4)
    assert plan_of(tmp_path / "repository", "docker", engine=engine, **options).world_size == 4


def test_mpirun_gives_its_ranks_the_grace_time(tmp_path: Path) -> None:
    plan = plan_of(write_build(tmp_path / "a", tp=2), "mpirun", grace_s=60)
    assert plan.environment["OMPI_MCA_odls_base_sigkill_timeout"] == "60"
    assert "OMPI_MCA_odls_base_sigkill_timeout" not in plan_of(write_build(tmp_path / "b"), "mpirun").environment


def test_a_gpu_list_is_renumbered_and_the_plan_says_so(tmp_path: Path) -> None:
    build = write_build(tmp_path / "build", tp=4)
    plan = plan_of(build, "mpirun", gpus=("4,5,6,7",), gpus_per_node=8)
    assert plan.environment["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"
    assert "GPU 4 is 0, GPU 5 is 1, GPU 6 is 2, GPU 7 is 3" in plan.notes[-1]
    docker = plan_of(build, "docker", gpus=("4,5,6,7",))
    assert "CUDA_VISIBLE_DEVICES" not in docker.environment  # a container sees its own only, from 0
    assert """--gpus '"device=4,5,6,7"'""" in text_of(docker, "docker")


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        (("a=0,1,2,3", "b=3,4,5,6"), "b gets GPU 3 and so does a"),
        (("a=0,1,2,3", "b=4,5,6"), "b has 4 ranks and gets 3 GPUs"),
        (("a=0,1,2,3", "b=4,5,6,9"), "b gets GPU 9; there are 0 to 7"),
        (("a=0,0,1,2", "b=4,5,6,7"), "a gets GPU 0 more than once"),
        (("a=0,1,2,3",), "says nothing about b"),
        (("0,1,2,3",), "not a list of GPUs for a model"),
        (("a=0,1,2,3", "a=4,5,6,7"), "given twice"),
        (("a=0-3", "b=4,5,6,7"), "not a list of GPUs"),
    ],
)
def test_lists_that_overlap_or_do_not_fit_are_refused(tmp_path: Path, lists: tuple[str, ...], message: str) -> None:
    repository = two_models(tmp_path, "", "")
    with pytest.raises(UsageError, match=message):
        plan_of(repository, "mpirun", gpus=lists, gpus_per_node=8)


def two_models(tmp_path: Path, a: str, b: str) -> Path:
    """Write a repository of two engines for four ranks each, with their gpu_device_ids."""
    for name, ids in (("a", a), ("b", b)):
        engine = write_engine(tmp_path / f"engine-{name}", tp=4)
        write_model(tmp_path / "models", name, str(engine), devices(ids) if ids else "")
    return tmp_path / "models"


def test_several_models_take_an_orchestrator_and_lists_that_the_configurations_share(tmp_path: Path) -> None:
    repository = two_models(tmp_path, "0,1,2,3", "4,5,6,7")
    plan = plan_of(repository, "mpirun", gpus=("a=4,5,6,7", "b=0,1,2,3"))
    assert (plan.mode, len(plan.ranks), plan.world_size) == ("orchestrator", 1, 8)
    assert plan.environment["TRTLLM_ORCHESTRATOR"] == "1"
    assert plan.environment["CUDA_VISIBLE_DEVICES"] == "4,5,6,7,0,1,2,3"
    assert "--cuda-memory-pool-byte-size=7:0" in plan.command
    with pytest.raises(TrtbuildError, match=r"gpu_device_ids of a are 0,1,2,3; with these lists it has 4,5,6,7"):
        plan_of(repository, "mpirun", gpus=("b=0,1,2,3", "a=4,5,6,7"))
    with pytest.raises(UsageError, match="leader serves one TensorRT-LLM model"):
        plan_of(repository, "mpirun", mode="leader")
    with pytest.raises(UsageError, match="--with slurm"):
        plan_of(repository, "slurm")


def test_two_models_without_or_with_contradicting_lists_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TrtbuildError, match="name no GPUs, so all begin at GPU 0"):
        plan_of(two_models(tmp_path / "1", "", ""), "mpirun")
    with pytest.raises(TrtbuildError, match="GPU 3 is listed by a and b"):
        plan_of(two_models(tmp_path / "2", "0,1,2,3", "3,4,5,6"), "mpirun")
    with pytest.raises(TrtbuildError, match="list GPU 9; there are 0 to 7"):
        plan_of(two_models(tmp_path / "3", "0,1,2,3", "4,5,6,9"), "mpirun", gpus_per_node=8)


def test_the_image_is_that_of_the_engines_release(tmp_path: Path) -> None:
    assert "tritonserver:25.10-trtllm" in plan_of(write_build(tmp_path / "a", version="1.0.0"), "docker").image
    assert "tritonserver:26.07-trtllm" in plan_of(write_build(tmp_path / "b"), "docker").image
    assert plan_of(write_build(tmp_path / "c"), "mpirun").image == ""


def test_an_image_of_another_release_or_tensorrt_is_refused_with_the_one_that_fits(tmp_path: Path) -> None:
    other = "nvcr.io/nvidia/tritonserver:25.10-trtllm-python-py3"
    with pytest.raises(TrtbuildError, match=r"built by TensorRT-LLM 1\.2\.1, container 25\.10 has 1\.0\.0") as failure:
        plan_of(write_build(tmp_path / "a"), "docker", image=other)
    assert "tritonserver:26.07-trtllm-python-py3" in failure.value.hint
    build = write_build(tmp_path / "b", version="1.0.0", spec="tensorrt_llm: 1.2.1\n")
    with pytest.raises(TrtbuildError, match=r"built by TensorRT-LLM 1\.0\.0, TensorRT-LLM 1\.2\.1 .* has 1\.2\.1"):
        plan_of(build, "docker")
    assert "look with" in plan_of(write_build(tmp_path / "c"), "docker", image="mine:1").notes[0]


def test_folders_are_mounted_where_the_repository_says(tmp_path: Path) -> None:
    here = plan_of(write_build(tmp_path / "a"), "docker")
    assert [(mount.source, mount.target) for mount in here.files] == [(str(tmp_path / "a"), str(tmp_path / "a"))]
    there = plan_of(write_build(tmp_path / "b", seen_as="/deployment"), "docker")
    assert [(mount.source, mount.target) for mount in there.files] == [(str(tmp_path / "b"), "/deployment")]
    assert there.repository == "/deployment/repository"
    with pytest.raises(UsageError, match="names /nowhere/else, which is neither here nor"):
        extra = 'parameters { key: "tokenizer_dir" value: { string_value: "/nowhere/else" } }'
        plan_of(write_build(tmp_path / "c", extra=extra), "docker")
    with pytest.raises(TrtbuildError, match="names /deployment/engine, not to be found here"):
        plan_of(tmp_path / "b", "systemd")


def test_several_nodes_are_for_those_ways_that_can(tmp_path: Path) -> None:
    build = write_build(tmp_path / "build", tp=4, pp=2, seen_as="/deployment", spec="hardware: {count: 4}\n")
    plan = plan_of(build, "slurm")
    assert (plan.nodes, plan.gpus_per_node) == (2, 4)
    with pytest.raises(UsageError, match="8 ranks need more than the 4 GPUs"):
        plan_of(build, "docker")
    with pytest.raises(UsageError, match="evenly"):
        plan_of(build, "slurm", gpus_per_node=3)
    with pytest.raises(UsageError, match="the scheduler does"):
        plan_of(build, "slurm", gpus=("0,1",))


def test_ports_must_be_numbers_and_differ(tmp_path: Path) -> None:
    facts = read_facts(write_build(tmp_path / "build"))
    for ports, message in ((Ports(0, 8001, 8002), "--http-port 0"), (Ports(8000, 8000, 8002), "must differ")):
        with pytest.raises(UsageError, match=message):
            make_plan(facts, Wanted("127.0.0.1", ports), WAYS["docker"].place)


@pytest.mark.parametrize("way", ["mpirun", "slurm", "systemd"])
def test_where_the_network_is_the_machines_only_loopback_is_listened_on(tmp_path: Path, way: str) -> None:
    seen_as = "/deployment" if way == "slurm" else None
    text = text_of(plan_of(write_build(tmp_path / "build", seen_as=seen_as), way), way)
    assert "--http-address=127.0.0.1" in text and "--grpc-address=127.0.0.1" in text and "0.0.0.0" not in text


def test_docker_is_not_root_read_only_on_loopback_and_has_shared_memory(tmp_path: Path) -> None:
    text = text_of(plan_of(write_build(tmp_path / "build", tp=2, seen_as="/deployment"), "docker"), "docker")
    for wanted in ("--user 1000:1000", "--read-only", "--cap-drop ALL", "-p 127.0.0.1:8000:8000", "readonly", "--shm-size=2g"):  # fmt: skip
        assert wanted in text
    assert "--privileged" not in text
    assert "--model-control-mode=none" in text
    assert "mpirun" in text and "--allow-run-as-root" not in text


def documents(plan: LaunchPlan, **extras: Any) -> dict[str, Any]:
    """Return the Kubernetes manifests by kind."""
    return {document["kind"]: document for document in yaml.safe_load_all(text_of(plan, "kubernetes", **extras))}


def check_pod(spec: dict[str, Any], gpus: int) -> None:
    """Assert what every pod must have."""
    assert spec["securityContext"]["runAsNonRoot"] is True
    (container,) = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] and not container["securityContext"]["allowPrivilegeEscalation"]  # fmt: skip
    assert container["resources"]["limits"] == container["resources"]["requests"] == {"nvidia.com/gpu": gpus}
    (shm,) = [volume for volume in spec["volumes"] if volume["name"] == "shm"]
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": f"{SHARED_MEMORY_BYTES >> 30}Gi"}
    paths = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert paths["shm"]["mountPath"] == "/dev/shm"
    assert paths["models"]["readOnly"] is True


def test_kubernetes_has_probes_gpus_and_shared_memory(tmp_path: Path) -> None:
    found = documents(plan_of(write_build(tmp_path / "build", tp=2, seen_as="/deployment"), "kubernetes"))
    assert set(found) == {"Deployment", "Service"}
    pod = found["Deployment"]["spec"]["template"]
    check_pod(pod["spec"], 2)
    (container,) = pod["spec"]["containers"]
    assert container["startupProbe"]["httpGet"]["path"] == "/v2/health/ready"
    assert container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"] >= 960
    assert pod["spec"]["terminationGracePeriodSeconds"] > 30
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert found["Service"]["spec"]["type"] == "ClusterIP"
    assert found["Service"]["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert {port["name"] for port in container["ports"]} == {each["targetPort"] for each in found["Service"]["spec"]["ports"]}  # fmt: skip
    assert "--model-control-mode=none" in container["command"]


POD = {"type": "object", "required": ["spec"], "properties": {"spec": {"type": "object", "required": ["containers"]}}}
#: The part of LeaderWorkerSet v1 that is used (sigs.k8s.io/lws, api/leaderworkerset/v1).
LWS_SCHEMA = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "leaderworkerset.x-k8s.io/v1"},
        "spec": {
            "type": "object",
            "additionalProperties": False,
            "required": ["leaderWorkerTemplate"],
            "properties": {
                "replicas": {"type": "integer", "minimum": 0},
                "startupPolicy": {"enum": ["LeaderCreated", "LeaderReady"]},
                "leaderWorkerTemplate": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["workerTemplate"],
                    "properties": {
                        "size": {"type": "integer", "minimum": 1},
                        "restartPolicy": {"enum": ["RecreateGroupOnPodRestart", "None", "Default"]},
                        "leaderTemplate": POD,
                        "workerTemplate": POD,
                    },
                },
            },
        },
    },
}


def test_several_nodes_are_a_leader_worker_set(tmp_path: Path) -> None:
    build = write_build(tmp_path / "build", tp=4, pp=2, seen_as="/deployment", spec="hardware: {count: 4}\n")
    plan = plan_of(build, "kubernetes")
    with pytest.raises(UsageError, match="--kubectl-image"):
        text_of(plan, "kubernetes")
    found = documents(plan, kubectl_image="kubectl:1")
    jsonschema.validate(found["LeaderWorkerSet"], LWS_SCHEMA)
    template = found["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
    assert template["size"] == 2
    leader, worker = template["leaderTemplate"]["spec"], template["workerTemplate"]["spec"]
    check_pod(leader, 4)
    check_pod(worker, 4)
    assert "startupProbe" in leader["containers"][0] and "startupProbe" not in worker["containers"][0]
    assert leader["serviceAccountName"] == found["RoleBinding"]["subjects"][0]["name"] == "qwen"
    assert worker["automountServiceAccountToken"] is False
    assert found["Service"]["spec"]["selector"].items() <= template["leaderTemplate"]["metadata"]["labels"].items()
    assert not found["Service"]["spec"]["selector"].items() <= template["workerTemplate"]["metadata"]["labels"].items()
    assert found["Role"]["rules"][1] == {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]}
    scripts = found["ConfigMap"]["data"]
    assert scripts["start.sh"].count("-n 1") == 8


def test_the_leader_waits_for_its_workers_and_gives_mpirun_all_hosts(tmp_path: Path) -> None:
    build = write_build(tmp_path / "build", tp=4, pp=2, seen_as="/deployment", spec="hardware: {count: 4}\n")
    script = documents(plan_of(build, "kubernetes"), kubectl_image="kubectl:1")["ConfigMap"]["data"]["start.sh"]
    tools = tmp_path / "tools"
    tools.mkdir()
    # The first answer lacks the worker.
    kubectl = f'#!/bin/sh\n[ -e {tools}/asked ] && printf "qwen-0-1\\n"\ntouch {tools}/asked\nprintf ""\n'
    for name, text in (("kubectl", kubectl), ("mpirun", '#!/bin/sh\nprintf "%s\\n" "$@"\n'), ("sleep", "#!/bin/sh\n")):
        (tools / name).write_text(text, encoding="utf-8")
        (tools / name).chmod(0o755)
    file = tmp_path / "start.sh"
    file.write_text(script.replace("/trtbuild-tools", str(tools)), encoding="utf-8")
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "POD_NAME": "qwen-0", "GROUP_KEY": "k"}
    done = subprocess.run(["sh", file], env=environment, capture_output=True, text=True, timeout=30, check=True)
    words = done.stdout.splitlines()
    assert words[words.index("--host") + 1] == "qwen-0:4,qwen-0-1:4"
    assert words.count("tritonserver") == 8


@pytest.mark.parametrize(("way", "tp"), [("slurm", 2), ("systemd", 2), ("systemd", 1), ("slurm", 1)])
def test_scripts_and_units_are_those_of_the_golden_files(tmp_path: Path, way: str, tp: int) -> None:
    seen_as = "/deployment" if way == "slurm" else None
    text = text_of(plan_of(write_build(tmp_path / "build", tp=tp, seen_as=seen_as), way), way)
    golden = GOLDENS / f"{way}-tp{tp}.txt"
    text = text.replace(str(tmp_path), "/srv")
    if "TRTBUILD_WRITE_GOLDENS" in os.environ:
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("way", ["local", "mpirun", "docker", "slurm"])
def test_scripts_are_bash(tmp_path: Path, way: str) -> None:
    name = "it's" if way == "slurm" else "a b it's"  # pyxis parts mounts at blanks
    seen_as = "/deployment" if WAYS[way].place.in_container else None
    plan = plan_of(write_build(tmp_path / name, tp=2, seen_as=seen_as), way)
    subprocess.run(["bash", "-n"], input=text_of(plan, way), text=True, check=True)


def test_the_tasks_of_a_slurm_job_run_the_command_of_their_rank(tmp_path: Path) -> None:
    script = text_of(plan_of(write_build(tmp_path / "build", tp=2, seen_as="/deployment"), "slurm"), "slurm")
    tools = tmp_path / "bin"
    tools.mkdir()
    srun = '#!/bin/bash\nwhile [ "$1" != bash ]; do shift; done\nfor SLURM_PROCID in 0 1; do export SLURM_PROCID; "$@"; done\n'  # fmt: skip
    for name, text in (("srun", srun), ("tritonserver", '#!/bin/sh\necho "$SLURM_PROCID $*"\n')):
        (tools / name).write_text(text, encoding="utf-8")
        (tools / name).chmod(0o755)
    environment = {"PATH": f"{tools}:{os.environ['PATH']}"}
    done = subprocess.run(["bash"], input=script, env=environment, capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first.startswith("0 --id=qwen ") and "--http-port=8000" in first
    assert second.startswith("1 --id=qwen_rank1 ") and "--allow-http=false" in second


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_the_unit_is_one_for_systemd(tmp_path: Path) -> None:
    plan = plan_of(write_build(tmp_path / "build"), "systemd")
    text = text_of(plan, "systemd").replace("/opt/tritonserver/bin/tritonserver", "/bin/true")
    unit = tmp_path / "qwen.service"
    unit.write_text(text, encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60, check=False)
    assert str(unit) not in done.stderr and "qwen.service" not in done.stderr, done.stderr


def test_words_of_a_unit_mean_themselves() -> None:
    assert _quote("a%b") == "a%%b"
    assert _quote('say "x"') == '"say \\"x\\""'
    assert _join(["echo", "$HOME"]) == "echo \\\n  $$HOME"


def test_the_llm_api_starts_its_own_workers_on_one_machine_and_is_launched_on_several(tmp_path: Path) -> None:
    repository = write_echo(tmp_path / "build" / "repository")
    (repository / "echo" / "1" / "model.yaml").write_text("model: /deployment/checkpoint\ntensor_parallel_size: 4\n", encoding="utf-8")  # fmt: skip
    (tmp_path / "build" / "checkpoint").mkdir()
    spec = "model: {path: model}\ntarget: pytorch\ntensorrt_llm: 1.2.1\nparallel: {tp_size: 4}\n"
    (tmp_path / "build" / "trtbuild.yaml").write_text(spec, encoding="utf-8")
    plan = plan_of(tmp_path / "build", "docker")
    assert (plan.variant, plan.world_size, len(plan.ranks)) == ("llmapi", 4, 1)
    assert plan.command[0] == "tritonserver"
    spread = plan_of(tmp_path / "build", "slurm", gpus_per_node=2)
    assert [rank.command[0] for rank in spread.ranks] == ["trtllm-llmapi-launch"] * 4
    with pytest.raises(UsageError, match="orchestrator is for engines"):
        plan_of(tmp_path / "build", "docker", mode="orchestrator")


def test_the_reference_variant_takes_no_gpu(tmp_path: Path) -> None:
    repository = write_echo(tmp_path / "repository")
    plan = plan_of(repository, "kubernetes")
    assert (plan.world_size, plan.image) == (0, "trtbuild-demo")
    assert plan.command[:3] == ("trtbuild", "serve", "/deployment")
    assert "nvidia.com/gpu" not in text_of(plan, "kubernetes")
    with pytest.raises(UsageError, match="not a list of GPUs for a model"):
        plan_of(repository, "docker", gpus=("0",))


def test_a_dry_run_prints_what_would_run_and_files_are_written_with_o(tmp_path: Path, cli: Cli) -> None:
    build = write_build(tmp_path / "build", tp=2, seen_as="/deployment")
    code, out, err = cli("serve", build, "--with", "docker", "--dry-run")
    assert (code, err) == (0, ""), err
    assert out.startswith("#!/bin/bash\n") and "docker" in out
    code, text, _ = cli("serve", build, "--with", "kubernetes", "--name", "qwen")
    assert (code, text) == (0, text_of(plan_of(build, "kubernetes", grace_s=10), "kubernetes"))
    assert cli("serve", build, "--with", "kubernetes", "--name", "qwen", "-o", tmp_path / "out")[:2] == (0, f"{tmp_path / 'out' / 'qwen.yaml'}\n")  # fmt: skip
    assert (tmp_path / "out" / "qwen.yaml").read_text(encoding="utf-8") == text
    code, _, err = cli("serve", build, "--with", "kubernetes", "--name", "qwen", "-o", tmp_path / "out")
    assert (code, "--force" in err) == (1, True)
    code, out, _ = cli("serve", build, "--with", "slurm", "--json")
    assert (code, json.loads(out)["plan"]["world_size"]) == (0, 2)
    assert cli("serve", build, "--with", "docker", "--world-size", "1", "--dry-run")[0] == 2


def test_a_local_start_of_several_ranks_is_refused(tmp_path: Path, cli: Cli) -> None:
    build = write_build(tmp_path / "build", tp=2)
    code, _, err = cli("serve", build, "--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")
    assert (code, "use --with mpirun" in err) == (2, True), err


def test_the_options_name_every_way() -> None:
    assert tuple(WAYS) == WAY_NAMES


def test_files_are_replaced_with_force_only(tmp_path: Path) -> None:
    write({"a.sh": "1"}, tmp_path, force=False)
    with pytest.raises(TrtbuildError, match="exists"):
        write({"a.sh": "2"}, tmp_path, force=False)
    (path,) = write({"a.sh": "2"}, tmp_path, force=True)
    assert path.read_text(encoding="utf-8") == "2" and os.access(path, os.X_OK)


@pytest.mark.parametrize("way", ["docker", "slurm", "kubernetes", "systemd"])
def test_ports_that_are_written_down_are_numbers(tmp_path: Path, way: str) -> None:
    facts = read_facts(write_build(tmp_path / "build", seen_as=None if way == "systemd" else "/deployment"))
    with pytest.raises(UsageError, match=f"--http-port 0, --metrics-port 0: .* --with {way} are fixed") as failure:
        make_plan(facts, Wanted("127.0.0.1", Ports(0, 8001, 0)), WAYS[way].place)
    assert failure.value.hint.endswith("such as --http-port 8000 --metrics-port 8002")
