"""Launching what `trtbuild render` wrote: processes and environment come from the repository's manifest, whatever launches it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trtbuild.cli.launch_options import WAY_NAMES
from trtbuild.repo.deployment import context_of
from trtbuild.repo.render import render
from trtbuild.spec import parse

Cli = Callable[..., tuple[int, str, str]]
ORCHESTRATOR = {"mode": "orchestrator", "gpu_device_ids": "0,1;2,3"}
PRESTARTED = {**ORCHESTRATOR, "participant_ids": "1,2;3,4"}


@pytest.fixture
def rendered(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that renders the repository of an engine for two GPUs, with settings of `serving`."""

    def make(*, seen_as: str | None = None, **serving: Any) -> Path:
        checkpoint, engine = tmp_path / "checkpoint", tmp_path / "engine"
        (checkpoint / "tokenizer").mkdir(parents=True)
        sizes = {"vocab_size": 128, "max_position_embeddings": 256, "logits_dtype": "float16"}
        (checkpoint / "config.json").write_text(json.dumps({"architecture": "LlamaForCausalLM", **sizes}))
        (checkpoint / "tokenizer" / "tokenizer.json").write_text("{}")
        (checkpoint / "tokenizer" / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
        engine.mkdir()
        for rank in range(2):
            (engine / f"rank{rank}.engine").write_bytes(b"engine")
        mapping = {"tp_size": 2, "pp_size": 1, "world_size": 2}
        built = {"version": "1.2.1", "build_config": {"max_batch_size": 16}}
        (engine / "config.json").write_text(
            json.dumps({**built, "pretrained_config": {"logits_dtype": "float16", "mapping": mapping}})
        )
        deployment = parse(
            {"model": {"path": str(checkpoint)}, "target": "tensorrt", "parallel": {"tp_size": 2}, "serving": serving},
            origin="test",
        )
        path_map = (str(tmp_path), seen_as) if seen_as else None
        context = context_of(deployment, checkpoint_dir=checkpoint, engine_dir=engine, path_map=path_map)
        return render(context, tmp_path / "repository").path

    return make


def dry_run(cli: Cli, repository: Path, way: str, *more: object) -> str:
    """Return what would run."""
    ports = ("--http-port", 8000, "--grpc-port", 8001, "--metrics-port", 8002)
    code, out, err = cli("serve", repository, "--with", way, "--dry-run", *ports, *more)
    assert code == 0, err
    return out


def ranks(text: str) -> int:
    """Return how many tritonservers a text starts."""
    return text.count("shm-region-prefix-name")


@pytest.mark.parametrize("way", [way for way in WAY_NAMES if way != "local"])
def test_leader_mode_starts_a_process_for_each_rank(cli: Cli, rendered: Callable[..., Path], way: str) -> None:
    text = dry_run(cli, rendered(), way)
    assert ranks(text) == 2
    assert "TRTLLM_ORCHESTRATOR" not in text


@pytest.mark.parametrize("way", ["mpirun", "docker", "kubernetes", "systemd"])
def test_an_orchestrator_that_spawns_is_one_process_with_its_variable(
    cli: Cli, rendered: Callable[..., Path], way: str
) -> None:
    text = dry_run(cli, rendered(**ORCHESTRATOR), way)
    assert ranks(text) == 1
    assert "TRTLLM_ORCHESTRATOR" in text
    assert "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES" not in text
    assert "cuda-memory-pool-byte-size=3:0" in text


@pytest.mark.parametrize("way", ["mpirun", "docker", "kubernetes", "systemd"])
def test_workers_that_are_started_beforehand_are_processes_beside_the_orchestrator(
    cli: Cli, rendered: Callable[..., Path], way: str
) -> None:
    text = dry_run(cli, rendered(**PRESTARTED), way)
    assert ranks(text) == 5
    assert text.count("load-model=tensorrt_llm") == 4
    assert text.count("TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES") == 1
    assert text.count("cuda-memory-pool-byte-size=3:0") == 5


def test_slurm_refuses_what_was_rendered_for_an_orchestrator(cli: Cli, rendered: Callable[..., Path]) -> None:
    code, _, err = cli("serve", rendered(**ORCHESTRATOR), "--with", "slurm", "--dry-run")
    assert code == 2
    assert "orchestrator mode spawns its workers" in err


@pytest.mark.parametrize(("serving", "typed"), [({}, "orchestrator"), (ORCHESTRATOR, "leader")])
def test_another_mode_than_the_repositorys_is_refused(
    cli: Cli, rendered: Callable[..., Path], serving: dict[str, str], typed: str
) -> None:
    code, _, err = cli("serve", rendered(**serving), "--with", "mpirun", "--mode", typed, "--dry-run")
    assert code == 2
    assert f"--mode {typed}, and " in err
    assert f"set serving.mode: {typed} and render again" in err


@pytest.mark.parametrize(("serving", "gpus"), [({}, "2"), (ORCHESTRATOR, "4"), (PRESTARTED, "4")])
def test_without_the_engine_the_manifest_tells_the_gpus(
    cli: Cli, rendered: Callable[..., Path], tmp_path: Path, serving: dict[str, str], gpus: str
) -> None:
    repository = rendered(seen_as="/deployment", **serving)
    mount = f"{tmp_path}=/deployment"
    text = dry_run(cli, repository, "docker", "--mount", mount, "--image", "mine")
    assert f"--gpus {gpus}" in text
    code, _, err = cli("serve", repository, "--with", "docker", "--mount", mount, "--image", "mine", "--world-size", 3, "--dry-run")  # fmt: skip
    assert (code, "--world-size 3 and the model disagree" in err) == (2, True)


def test_an_engine_for_other_ranks_than_the_repository_was_rendered_for_is_refused(
    cli: Cli, rendered: Callable[..., Path], tmp_path: Path
) -> None:
    repository = rendered()
    config = tmp_path / "engine" / "config.json"
    config.write_text(
        config.read_text().replace('"tp_size": 2', '"tp_size": 4').replace('"world_size": 2', '"world_size": 4')
    )
    code, _, err = cli("serve", repository, "--with", "docker", "--dry-run")
    assert code == 1
    assert "was rendered for 2 process(es) in leader mode, and 4 GPU(s) take 4" in err


def test_a_manifest_that_was_edited_badly_is_named(cli: Cli, rendered: Callable[..., Path]) -> None:
    repository = rendered()
    manifest = json.loads((repository / "manifest.json").read_text())
    manifest["context"]["world_size"] = "two"
    (repository / "manifest.json").write_text(json.dumps(manifest))
    code, _, err = cli("serve", repository, "--with", "docker", "--dry-run")
    assert (code, "manifest.json states world_size 'two'" in err) == (1, True)


@pytest.fixture
def laptop(rendered: Callable[..., Path], tmp_path: Path) -> Path:
    """A build folder for two ranks that holds rank files and a rendered repository, and no engine."""
    rendered()
    shutil.rmtree(tmp_path / "engine")
    config = tmp_path / "checkpoint" / "config.json"
    mapping = {"tp_size": 2, "pp_size": 1, "world_size": 2}
    config.write_text(json.dumps({**json.loads(config.read_text()), "mapping": mapping}))
    (tmp_path / "trtbuild.yaml").write_text(f"model: {{path: {tmp_path}}}\ntarget: tensorrt\ntensorrt_llm: 1.2.1\n")
    return tmp_path


@pytest.mark.parametrize("way", [way for way in WAY_NAMES if way != "local"])
@pytest.mark.parametrize("has_rank_files", [True, False])
def test_launch_files_can_be_written_before_there_is_an_engine(
    cli: Cli, laptop: Path, way: str, has_rank_files: bool
) -> None:
    if not has_rank_files:
        (laptop / "checkpoint" / "config.json").unlink()
    assert ranks(dry_run(cli, laptop, way)) == 2
    assert ranks(dry_run(cli, laptop, way, "--world-size", 2)) == 2
    code, _, err = cli("serve", laptop, "--with", way, "--world-size", 3, "--dry-run")
    assert (code, "is for 2 rank(s)" in err) == (2, True)


@pytest.mark.parametrize("way", ["local", "mpirun", "systemd"])
def test_a_machine_that_lacks_the_engine_is_told_so(cli: Cli, laptop: Path, way: str) -> None:
    _, _, err = cli("serve", laptop, "--with", way, "--dry-run")
    assert f"note: it would not start: {laptop}/repository names {laptop}/engine, and nothing is there yet; build it there" in err  # fmt: skip
    assert "--path-map" not in err


def test_rank_files_for_other_ranks_than_the_manifests_are_refused(cli: Cli, laptop: Path) -> None:
    config = laptop / "checkpoint" / "config.json"
    config.write_text(config.read_text().replace('"tp_size": 2', '"tp_size": 4').replace('"world_size": 2', '"world_size": 4'))  # fmt: skip
    code, _, err = cli("serve", laptop, "--with", "docker", "--dry-run")
    assert (code, "rendered for 2 process(es) in leader mode, and 4 GPU(s) take 4" in err) == (1, True)
