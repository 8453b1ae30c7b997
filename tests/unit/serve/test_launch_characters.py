"""Folders of odd names: quoted where a way of launching has a spelling for them, refused by name where it has none."""

from __future__ import annotations

import csv
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from test_launch_plan import plan_of, text_of, write_build

from trtbuild.errors import UsageError

ODD = 'q"u$o%t,e:s'


def mapped(tmp_path: Path, name: str) -> Path:
    """Write a build folder of a name, rendered for containers."""
    return write_build(tmp_path / name, seen_as="/deployment")


def test_docker_is_given_any_folder_as_csv(tmp_path: Path) -> None:
    command = shlex.split(text_of(plan_of(mapped(tmp_path, ODD), "docker"), "docker"), comments=True)
    [line] = [command[at + 1] for at, word in enumerate(command) if word == "--mount"]
    [fields] = csv.reader([line])
    assert fields == ["type=bind", f"source={tmp_path}/{ODD}", "target=/deployment", "readonly"]
    plain = plan_of(mapped(tmp_path, "plain"), "docker")
    assert f"type=bind,source={tmp_path}/plain,target=/deployment,readonly" in text_of(plain, "docker")


@pytest.mark.parametrize("character", [",", ":", " ", "#", "\\"])
def test_slurm_refuses_what_its_mounts_cannot_say(tmp_path: Path, character: str) -> None:
    with pytest.raises(UsageError, match="which --container-mounts of --with slurm cannot say") as failure:
        plan_of(mapped(tmp_path, f"a{character}b"), "slurm")
    assert f"has '{character}', which" in failure.value.message
    assert plan_of(mapped(tmp_path, 'a"$%b'), "slurm").files[0].target == "/deployment"


def test_kubernetes_takes_any_folder_here_and_no_colon_in_the_container(tmp_path: Path) -> None:
    assert plan_of(mapped(tmp_path, ODD), "kubernetes").files[0].target == "/deployment"
    with pytest.raises(UsageError, match="/de:ployment has ':', which mountPath of --with kubernetes cannot say"):
        plan_of(write_build(tmp_path / "build", seen_as="/de:ployment"), "kubernetes")


def test_kubernetes_expands_nothing(tmp_path: Path) -> None:
    plan = plan_of(mapped(tmp_path, "build"), "kubernetes")
    odd = replace(plan, command=("tritonserver", "$(HOME)/a$$b"), environment={"A": "$(HOME)"})
    container = next(iter(yaml.safe_load_all(text_of(odd, "kubernetes"))))["spec"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["tritonserver", "$$(HOME)/a$$$$b"]
    assert {"name": "A", "value": "$$(HOME)"} in container["env"]


@pytest.mark.parametrize("way", ["docker", "kubernetes", "systemd"])
@pytest.mark.parametrize("character", ["$", " ", "\xfc", "'"])
def test_a_place_from_which_triton_cannot_start_models_is_refused(tmp_path: Path, way: str, character: str) -> None:
    build = write_build(tmp_path / f"a{character}b")
    with pytest.raises(UsageError, match="its Python backend cannot handle") as failure:
        plan_of(build, way)
    assert f"cannot handle '{character}' there" in failure.value.message
    assert plan_of(build, "mpirun").repository == str(build / "repository")
