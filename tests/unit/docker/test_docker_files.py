"""The images and the compose file: pinned, not as root, healthy, bound to loopback, and of versions that the table knows."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from trtbuild.dockerfile import check_dockerfile, parse_dockerfile
from trtbuild.doctor.software import LIBRARY_FOLDERS
from trtbuild.doctor.system import SHM_FLOOR_BYTES, ULIMITS
from trtbuild.redaction import is_secret
from trtbuild.trtllm.versions import DEFAULT, IMAGE, find_release, release_of_tag

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    tomllib = pytest.importorskip("tomllib")

ROOT = Path(__file__).parents[3]
DOCKER = ROOT / "docker"
FILES = sorted(DOCKER.glob("*/Dockerfile"))
SIZES = {"k": 2**10, "m": 2**20, "g": 2**30}


def compose() -> dict[str, Any]:
    """Return the parsed compose file."""
    found = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def default(text: str) -> str:
    """Return the text with every ${NAME:-default} replaced by its default."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def constraints() -> dict[str, str]:
    """Return package -> pinned version."""
    lines = (DOCKER / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pins.items()}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_no_dockerfile_breaks_a_rule(file: Path) -> None:
    assert check_dockerfile(file.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_hadolint_finds_nothing(file: Path) -> None:
    tool = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if tool is None:
        pytest.skip("hadolint is not installed")
    answer = subprocess.run([tool, "--no-color", str(file)], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout) == (0, "")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_everything_that_is_copied_exists_and_reaches_the_builder(file: Path) -> None:
    kept = {
        line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line.startswith("!")
    }
    copies = [each.value for each in parse_dockerfile(file.read_text(encoding="utf-8")) if each.name == "COPY" and "--from" not in each.value]  # fmt: skip
    assert copies
    for value in copies:
        for source in value.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert source.partition("/")[0] in kept, source


def test_there_are_three_images() -> None:
    assert [file.parent.name for file in FILES] == ["client", "cpu-demo", "server"]


def test_the_tag_of_the_server_is_the_newest_of_the_default_release() -> None:
    text = (DOCKER / "server" / "Dockerfile").read_text(encoding="utf-8")
    arguments = dict(each.value.split("=", 1) for each in parse_dockerfile(text) if each.name == "ARG")
    tag = arguments["TRITON_TAG"]
    release = release_of_tag(tag)
    assert release is not None and release.name == DEFAULT
    assert release.container is not None and release.container.tag == tag
    image = next(each.value for each in parse_dockerfile(text) if each.name == "FROM" and "nvcr.io" in each.value)
    assert image.replace("${TRITON_TAG}", tag).replace("${TRITON_DIGEST}", "") == IMAGE.format(tag=tag)
    server = compose()["services"]["server"]
    assert default(server["build"]["args"]["TRITON_TAG"]) == tag
    assert default(server["image"]).endswith(f":{tag}")


def test_python_of_the_image_that_builds_the_wheel_is_that_of_the_container() -> None:
    for file in FILES:
        (tag,) = re.findall(r"^ARG PYTHON_TAG=(\S+)", file.read_text(encoding="utf-8"), re.M)
        assert re.fullmatch(r"\d+\.\d+\.\d+-slim-bookworm", tag)
        assert tag.startswith(find_release(DEFAULT).python + ".")


def test_no_image_installs_what_the_container_brings() -> None:
    for file in [*FILES, DOCKER / "server" / "install.sh"]:
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"pip[^\n]*install[^\n]*\b(?:tensorrt|torch|transformers)\b", text), file
    assert not set(constraints()) & {"torch", "transformers", "tensorrt", "tensorrt-llm", "pip"}


def test_the_demo_installs_with_the_script_of_make_demo() -> None:
    runs = [each.value for each in parse_dockerfile((DOCKER / "cpu-demo" / "Dockerfile").read_text()) if each.name == "RUN"]  # fmt: skip
    steps = re.findall(r"^\t.*scripts/bootstrap\.sh (\w+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert runs[0] == " && ".join(f"scripts/bootstrap.sh {step}" for step in steps)
    script = (ROOT / "scripts" / "bootstrap.sh").read_text(encoding="utf-8")
    (torch,) = re.findall(r"^default_torch='(.*)'$", script, re.M)
    assert f'ARG TORCH="{torch} --index-url' in (DOCKER / "cpu-demo" / "Dockerfile").read_text(encoding="utf-8")


def test_every_package_of_the_base_installation_is_pinned_within_its_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    pins = constraints()
    for text in [*project["project"]["dependencies"], *project["build-system"]["requires"]]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(pins[requirement.name.lower()]), text
    for file in FILES:
        for name, version in re.findall(r"(\w+)==([\w.]+)", file.read_text(encoding="utf-8")):
            assert name == "torch" or pins[name] == version


def test_ports_are_bound_to_loopback_and_nothing_runs_as_root() -> None:
    for name, service in compose()["services"].items():
        assert service["ports"]
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
        user = service["user"].partition(":")[0]
        assert user.isdecimal() and int(user) > 0, name
        assert "privileged" not in service
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        assert service.get("network_mode") != "host"


def test_the_server_takes_no_models_over_the_network_and_cannot_write_its_repository() -> None:
    server = compose()["services"]["server"]
    assert "--model-control-mode=none" in server["command"]
    assert all(volume["read_only"] for volume in server["volumes"])
    assert server["read_only"] is True
    file = (DOCKER / "server" / "Dockerfile").read_text(encoding="utf-8")
    assert '"--model-control-mode=none"' in file


def test_the_server_has_the_shared_memory_and_limits_that_doctor_asks_for() -> None:
    server = compose()["services"]["server"]
    size = re.fullmatch(r"(\d+)([kmg])b", default(server["shm_size"]))
    assert size is not None
    assert int(size[1]) * SIZES[size[2]] >= SHM_FLOOR_BYTES
    assert server["ulimits"] == {name: ULIMITS[name] for name in ("memlock", "stack")}
    (device,) = server["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])


def test_images_of_others_are_pinned_and_no_variable_is_a_secret() -> None:
    for service in compose()["services"].values():
        tag = default(service["image"]).rpartition(":")[2]
        assert re.search(r"\d+\.\d+", tag)
        assert not [name for name in service.get("environment", {}) if is_secret(name)]


def test_every_file_that_compose_mounts_exists() -> None:
    for service in compose()["services"].values():
        for volume in service.get("volumes", []):
            if isinstance(volume, str) and volume.startswith("./"):
                source, _, rest = volume.partition(":")
                assert (DOCKER / source).exists(), volume
                assert rest.endswith(":ro")


def test_prometheus_reads_the_metrics_port_and_grafana_reads_prometheus() -> None:
    scrape = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yaml").read_text())["scrape_configs"][0]
    assert scrape["static_configs"] == [{"targets": ["server:8002"]}]
    provisioning = DOCKER / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "trtbuild.yaml").read_text())["providers"]
    mounts = [volume.split(":") for volume in compose()["services"]["grafana"]["volumes"]]
    assert any(target == provider["options"]["path"] for _, target, *_ in mounts)


#: Family -> labels beyond model and version: Triton specification 6.1 and 6.2.
FAMILIES: dict[str, dict[str, set[str]]] = {
    "nv_trt_llm_request_metrics": {"request_type": {"active", "max", "scheduled", "context", "waiting"}},
    "nv_trt_llm_runtime_memory_metrics": {"memory_type": {"cpu", "gpu", "pinned"}},
    "nv_trt_llm_kv_cache_block_metrics": {"kv_cache_block_type": {"max", "free", "used", "tokens_per", "fraction", "reused"}},
    "nv_trt_llm_inflight_batcher_metrics": {
        "inflight_batcher_specific_metric": {"total_context_tokens", "generation_requests", "micro_batch_id", "paused_requests"}
    },
    "nv_llm_input_token_len": {}, "nv_llm_output_token_len": {},
    "nv_inference_request_success": {}, "nv_inference_request_failure": {"reason": {"REJECTED", "CANCELED", "BACKEND", "OTHER"}},
    "nv_inference_request_duration_us": {}, "nv_inference_queue_duration_us": {}, "nv_inference_pending_request_count": {},
    "nv_inference_first_response_histogram_ms": {}, "nv_gpu_memory_used_bytes": {}, "nv_gpu_memory_total_bytes": {}, "nv_gpu_utilization": {},
    "nv_gpu_power_usage": {},
}  # fmt: skip


def test_the_dashboard_asks_only_for_metrics_and_labels_that_exist() -> None:
    board = json.loads((DOCKER / "grafana" / "dashboards" / "triton.json").read_text(encoding="utf-8"))
    used = set()
    for panel in board["panels"]:
        assert panel["description"]
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "prometheus"
            for name, labels in re.findall(r"(nv_\w+?)(?:_bucket|_sum|_count)?\{([^}]*)\}", target["expr"]):
                name = name if name in FAMILIES else f"{name}_count"
                used.add(name)
                for label, values in re.findall(r'(\w+)=~?"([^"]*)"', labels):
                    if label != "model":
                        assert set(values.split("|")) <= FAMILIES[name][label], target["expr"]
            used |= set(re.findall(r"nv_gpu_\w+", target["expr"]))
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                known = {"model", "gpu_uuid", *(label for name in used for label in FAMILIES[name])}
                assert label in known, target["legendFormat"]
    assert used == set(FAMILIES)
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_doctor_looks_where_the_container_keeps_its_backend() -> None:
    assert "opt/tritonserver/backends/tensorrtllm" in LIBRARY_FOLDERS


def test_scripts_are_valid_bash() -> None:
    subprocess.run(["bash", "-n", str(DOCKER / "server" / "install.sh")], check=True)
