"""A rendered repository with a draft model: what doctor and every way of launching make of its two engines."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.unit.repo import lint_cases

from trtbuild.doctor.devices import device_findings
from trtbuild.doctor.subject import read_subject
from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.nvidia import Gpus
from trtbuild.repo.lint import check
from trtbuild.serve.launch.facts import read_facts
from trtbuild.serve.launch.make import Wanted, make_plan
from trtbuild.serve.launch.plan import LaunchPlan
from trtbuild.serve.launch.ways import WAYS
from trtbuild.serve.ports import Ports


def rendered(root: Path, *, mine: dict[str, Any], its: dict[str, Any]) -> Path:
    """Render two engines of two ranks each, with their sections `serving`."""
    two = {"tp_size": 2}
    return lint_cases.make(
        root, draft={"parallel": two, "serving": {"mode": "orchestrator", **its}}, target="tensorrt", parallel=two,
        speculative={"mode": "draft_target"}, serving={"mode": "orchestrator", **mine},
    ).repository  # fmt: skip


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return rendered(tmp_path, mine={"gpu_device_ids": "2,3"}, its={"gpu_device_ids": "0,1"})


def plan_of(repository: Path, way: str, **wanted: Any) -> LaunchPlan:
    typed = Wanted("127.0.0.1", Ports(8000, 8001, 8002), **{"name": "pair", **wanted})
    return make_plan(read_facts(repository), typed, WAYS[way].place)


@pytest.mark.parametrize("way", ["mpirun", "docker"])
def test_one_orchestrator_starts_the_workers_of_both(repository: Path, way: str) -> None:
    plan = plan_of(repository, way)
    assert (plan.mode, plan.world_size, len(plan.ranks)) == ("orchestrator", 4, 1)
    assert plan.environment["TRTLLM_ORCHESTRATOR"] == "1"


@pytest.mark.parametrize("ids", [{}, {"gpu_device_ids": "0,1"}])
def test_a_draft_model_on_its_targets_gpus_takes_no_others(tmp_path: Path, ids: dict[str, str]) -> None:
    repository = rendered(tmp_path, mine=ids, its=ids)
    assert [(model.name, model.shares) for model in read_subject(repository).models] == [
        ("tensorrt_llm", False),
        ("tensorrt_llm_draft", True),
    ]
    assert check(repository).findings == ()
    plan = plan_of(repository, "docker", gpus_per_node=2)
    assert (plan.mode, plan.world_size, plan.nodes) == ("orchestrator", 2, 1)
    assert [word for word in plan.command if "cuda-memory-pool" in word] == [
        f"--cuda-memory-pool-byte-size={number}:0" for number in range(2)
    ]
    assert plan_of(repository, "docker", gpus=("tensorrt_llm=4,5",)).gpus == (4, 5)


@pytest.mark.parametrize("theirs", ["0,1", "2,3"])
def test_workers_that_are_started_beforehand_are_those_of_both_models(tmp_path: Path, theirs: str) -> None:
    mine = {"gpu_device_ids": "0,1", "participant_ids": "1,2"}
    repository = rendered(tmp_path, mine=mine, its={"gpu_device_ids": theirs, "participant_ids": "3,4"})
    plan = plan_of(repository, "mpirun")
    assert (len(plan.ranks), plan.environment["TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES"]) == (5, "0")


def test_lists_of_gpus_are_held_against_the_configurations(repository: Path) -> None:
    lists = ("tensorrt_llm=6,7", "tensorrt_llm_draft=4,5")
    with pytest.raises(TrtbuildError, match="gpu_device_ids of tensorrt_llm are 2,3; with these lists it has 0,1"):
        plan_of(repository, "mpirun", gpus=lists)
    assert plan_of(repository, "mpirun", gpus=lists[::-1]).mode == "orchestrator"


def test_a_leader_is_refused(repository: Path) -> None:
    with pytest.raises(UsageError, match="--mode leader"):
        plan_of(repository, "mpirun", mode="leader")


def test_doctor_knows_the_gpus_of_both(repository: Path) -> None:
    subject = read_subject(repository)
    assert [(model.name, model.world_size, model.devices) for model in subject.models] == [
        ("tensorrt_llm", 2, ((2, 3),)),
        ("tensorrt_llm_draft", 2, ((0, 1),)),
    ]
    [finding] = device_findings(subject.models, Gpus())
    assert (finding.status, finding.detail) == ("ok", "tensorrt_llm on 2,3; tensorrt_llm_draft on 0,1")


def test_without_the_engines_the_lists_of_gpus_tell_their_ranks(repository: Path) -> None:
    shutil.rmtree(repository.parent / "engine")
    assert plan_of(repository, "mpirun").world_size == 4


def test_without_an_engine_and_lists_of_gpus_nothing_is_guessed(tmp_path: Path) -> None:
    repository = rendered(tmp_path, mine={}, its={})
    shutil.rmtree(tmp_path / "engine")
    with pytest.raises(TrtbuildError, match="its number of ranks is not known"):
        plan_of(repository, "mpirun")
