"""What is seen before a start: cut engines, and backends that the server here does not have."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from serve_helpers import write_echo
from test_launch_plan import write_build, write_engine, write_model

from trtbuild.serve.launch.facts import read_facts
from trtbuild.serve.launch.obstacles import lacking
from trtbuild.serve.locate import ServerInstall
from trtbuild.trtllm.versions import find_release

Cli = Callable[..., tuple[int, str, str]]
LLM_API = 'name: "tensorrt_llm"\nbackend: "python"\n%s'


def server(folder: Path, *backends: str) -> Path:
    """Write what looks like a server with backends, and would leave a file behind if it were started."""
    for name in ("python", *backends):
        (folder / "backends" / name).mkdir(parents=True)
    binary = folder / "bin" / "tritonserver"
    binary.parent.mkdir()
    binary.write_text(f"#!/bin/sh\ntouch {folder}/started\nexit 9\n", encoding="utf-8")
    binary.chmod(0o755)
    return binary


def install(binary: Path) -> ServerInstall:
    return ServerInstall(binary, "system", binary.parents[1] / "backends", None, None, None)


def test_an_engine_is_not_given_to_a_server_without_the_backend(tmp_path: Path, cli: Cli) -> None:
    build = write_build(tmp_path / "build")
    binary = server(tmp_path / "server")
    code, out, err = cli("serve", build, "--server", binary)
    assert (code, out) == (1, "")
    assert f"{binary} has no backend 'tensorrtllm', which tensorrt_llm needs" in err
    container = find_release("1.2.1").container
    assert container is not None
    assert f"serve it in {container.image}: --with docker" in err
    assert not (tmp_path / "server" / "started").exists()
    code, out, err = cli("serve", build, "--server", binary, "--dry-run")
    assert (code, str(binary) in out, "note: it would not start" in err) == (0, True, True)
    assert "has no backend" not in cli("serve", build, "--with", "docker", "--dry-run")[2]


def test_a_server_with_the_backend_lacks_nothing(tmp_path: Path) -> None:
    facts = read_facts(write_build(tmp_path / "build"))
    assert lacking(facts, install(server(tmp_path / "server", "tensorrtllm"))) == []
    alone = ServerInstall(tmp_path / "tritonserver", "system", None, None, None, None)
    assert lacking(facts, alone) == []


@pytest.mark.parametrize("place", [".", "1"])
def test_a_model_may_bring_its_backend(tmp_path: Path, place: str) -> None:
    folder = tmp_path / "repository" / "own"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text('name: "own"\nbackend: "mine"\n', encoding="utf-8")
    binary = server(tmp_path / "server")
    (found,) = lacking(read_facts(tmp_path / "repository"), install(binary))
    assert "no backend 'mine', which own needs" in found.message
    (folder / place / "libtriton_mine.so").touch()
    assert lacking(read_facts(tmp_path / "repository"), install(binary)) == []


@pytest.mark.parametrize(
    ("platform", "lacks"), [("onnxruntime_onnx", "onnxruntime"), ("ensemble", None), ("tensorrt_plan", "tensorrt")]
)
def test_platforms_have_backends(tmp_path: Path, platform: str, lacks: str | None) -> None:
    folder = tmp_path / "repository" / "own"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(f'name: "own"\nplatform: "{platform}"\n', encoding="utf-8")
    found = lacking(read_facts(tmp_path / "repository"), install(server(tmp_path / "server")))
    assert [f"'{lacks}'" in each.message for each in found] == ([True] if lacks else [])


@pytest.mark.parametrize(
    ("parameter", "lacks"),
    [("", True), ('parameters { key: "EXECUTION_ENV_PATH" value: { string_value: "/env.tar.gz" } }', False)],
)
def test_the_llm_api_needs_its_package(tmp_path: Path, parameter: str, lacks: bool) -> None:
    version = tmp_path / "repository" / "tensorrt_llm" / "1"
    version.mkdir(parents=True)
    (version / "model.py").touch()
    (version / "model.yaml").write_text("model: some/name\n", encoding="utf-8")
    (version.parent / "config.pbtxt").write_text(LLM_API % parameter, encoding="utf-8")
    found = lacking(read_facts(tmp_path / "repository"), install(server(tmp_path / "server")))
    assert ["no tensorrt_llm" in each.message for each in found] == [True] * lacks


@pytest.mark.parametrize(
    ("harm", "message"),
    [("gone", "rank1.engine is missing"), ("empty", "rank1.engine is empty"), ("cut", "rank1.engine has 3 bytes, and 6 were written")],
)  # fmt: skip
@pytest.mark.parametrize("seen_as", [None, "/models"])
def test_a_cut_engine_is_not_started(tmp_path: Path, cli: Cli, harm: str, message: str, seen_as: str | None) -> None:
    build = write_build(tmp_path / "build", tp=2, seen_as=seen_as)
    listed = {f"rank{rank}.engine": {"bytes": 6} for rank in range(2)}
    manifest = {"schema_version": 1, "kind": "engine", "files": listed}
    (build / "engine" / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    options = ("--with", "docker", "--dry-run")
    assert "would not start" not in cli("serve", build, *options)[2]
    file = build / "engine" / "rank1.engine"
    file.write_bytes(b"" if harm == "empty" else b"eng")
    if harm == "gone":
        file.unlink()
    code, _, err = cli("serve", build, *options)
    assert (code, message in err) == (0, True), err


def test_a_cut_engine_of_an_engine_folder_is_an_error_when_it_runs(tmp_path: Path, cli: Cli) -> None:
    engine = write_engine(tmp_path / "engine")
    write_model(tmp_path / "repository", "tensorrt_llm", str(engine))
    (engine / "rank0.engine").write_bytes(b"")
    binary = server(tmp_path / "server", "tensorrtllm")
    code, _, err = cli("serve", tmp_path / "repository", "--server", binary)
    assert (code, "rank0.engine is empty" in err, "build it again" in err) == (1, True, True), err
    assert not (tmp_path / "server" / "started").exists()


def test_what_the_build_of_a_checkpoint_left_must_be_there(tmp_path: Path, cli: Cli) -> None:
    build = tmp_path / "build"
    write_echo(build / "repository")
    checkpoint = build / "checkpoint"
    checkpoint.mkdir()
    (build / "trtbuild.yaml").write_text("model: {path: model}\ntarget: reference\n", encoding="utf-8")
    config = build / "repository" / "echo" / "config.pbtxt"
    config.write_text(f'{config.read_text()}\nparameters {{ key: "checkpoint_dir" value: {{ string_value: "{checkpoint}" }} }}\n')  # fmt: skip
    stage = {"key": "k", "outputs": ["checkpoint"], "files": {"checkpoint/rank0.safetensors": {"bytes": 6}}}
    manifest = {"schema_version": 1, "kind": "build", "stages": {"convert": stage}}
    (build / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    code, _, err = cli("serve", build, "--server", server(tmp_path / "server"))
    assert (code, "rank0.safetensors is missing" in err) == (1, True), err
