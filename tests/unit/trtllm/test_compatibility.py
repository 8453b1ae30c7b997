"""Which artifacts go with which installation: every kind of mismatch is found, names both sides and what fits."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trtbuild.errors import TrtbuildError
from trtbuild.trtllm.artifact import GENERATIONS, Artifact, read_artifact
from trtbuild.trtllm.compatibility import (
    Copy,
    Installed,
    compare,
    containers_with,
    require_compatible,
    same_version,
)
from trtbuild.trtllm.versions import RELEASES, Feature, find_release

ENGINE = Artifact(
    "engine", "engine", tensorrt_llm="0.21.0", tensorrt="10.11.0.33", sm=90, world_size=2, generation=GENERATIONS[1]
)
HERE = Installed("this machine", "0.21.0", "10.11.0.33", sms=(90, 90))
Write = Callable[..., Path]


def one(artifact: Artifact | None, installed: Installed) -> Any:
    """Return the only mismatch."""
    (found,) = compare(artifact, installed)
    return found


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes an engine folder from its config.json and what its manifest says about the build."""

    def make(config: dict[str, Any], built_with: dict[str, Any] | None = None, *, name: str = "engine") -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        if built_with is not None:
            (folder / "manifest.json").write_text(json.dumps({"kind": "engine", **built_with}))
        return folder

    return make


def config(version: str = "0.21.0", **mapping: int) -> dict[str, Any]:
    """Return a small config.json of an engine of today's generation."""
    return {"version": version, "pretrained_config": {"mapping": mapping}, "build_config": {"max_batch_size": 8}}


def test_what_belongs_together_is_not_complained_about() -> None:
    assert compare(ENGINE, HERE) == []
    assert compare(ENGINE, Installed.of_release(find_release("0.21.0"), sms=(90,))) == []


def test_what_is_not_known_is_not_guessed() -> None:
    assert compare(ENGINE, Installed()) == []
    assert compare(None, Installed()) == []


@pytest.mark.parametrize("built", ["10.11.0.32", "10.11.1.33", "10.13.3.9", "9.2.0.5"])
def test_an_engine_needs_the_very_same_tensorrt(built: str) -> None:
    found = one(replace(ENGINE, tensorrt=built), HERE)
    assert (found.rule, found.severity) == ("tensorrt", "error")
    assert f"TensorRT {built}" in found.message
    assert "10.11.0.33" in found.message
    assert "pip install tensorrt" in found.remedy


def test_a_foreign_tensorrt_is_answered_with_the_image_that_carries_it() -> None:
    engine = replace(ENGINE, tensorrt_llm="1.0.0", tensorrt="10.11.0.33")
    with pytest.raises(TrtbuildError) as error:
        require_compatible(engine, Installed.of_release(find_release("1.1.0")))
    assert "10.11.0.33" in error.value.message
    assert "10.13.3.9" in error.value.message
    assert "1.1.0 (26.02)" in error.value.message
    assert "nvcr.io/nvidia/tritonserver:25.10-trtllm-python-py3" in error.value.hint


def test_a_version_written_shorter_agrees_where_it_is_written() -> None:
    assert same_version("10.9", "10.9.0.34")
    assert same_version("10.14.1.48.post1", "10.14.1.48")
    assert not same_version("10.9", "10.10.0.31")


@pytest.mark.parametrize(
    ("engine", "backend", "severity"),
    [
        ("0.7.1", "0.8.0", "error"),
        ("1.2.0", "1.2.1", "error"),
        ("1.2.1", "1.2.0", "error"),
        ("1.1.0", "1.2.1", "error"),
        ("not-a-version", "1.2.1", "error"),
        ("1.2.0rc8", "1.2.0", "warning"),
        ("1.2.0", "1.2.0", None),
        ("1.2.0+cu13", "1.2.0", None),
        ("0.17.0", "0.17.0.post1", None),
    ],
)
def test_engine_and_backend_are_of_one_release(engine: str, backend: str, severity: str | None) -> None:
    found = compare(Artifact("engine", "engine", engine), Installed("this machine", backend))
    assert [each.severity for each in found if each.rule == "backend"] == ([severity] if severity else [])
    for each in found:
        assert engine in each.message
        assert backend in each.message
        assert f"rebuild the engine with TensorRT-LLM {backend}" in each.remedy


def test_an_engine_that_states_no_version_is_warned_about() -> None:
    found = one(replace(ENGINE, tensorrt_llm=""), HERE)
    assert (found.rule, found.severity) == ("backend", "warning")


@pytest.mark.parametrize(
    ("sm", "sms", "severity"),
    [(89, (90,), "error"), (90, (89, 89), "error"), (90, (89, 90), "warning"), (90, (90, 90), None), (None, (90,), None)],
)  # fmt: skip
def test_an_engine_runs_on_the_kind_of_gpu_that_built_it(
    sm: int | None, sms: tuple[int, ...], severity: str | None
) -> None:
    found = compare(replace(ENGINE, sm=sm), replace(HERE, sms=sms))
    assert [each.severity for each in found] == ([severity] if severity else [])
    for each in found:
        assert f"SM{sm}" in each.message
        assert "SM89" in each.message + each.remedy or "SM90" in each.message


def test_the_label_of_a_container_is_compared_with_its_content() -> None:
    found = compare(None, Installed("this machine", "0.21.0", "10.13.3.9", tag="25.08"))
    assert [each.message for each in found] == ["the label 25.08 stands for TensorRT 10.11.0.33, inside is 10.13.3.9"]
    (found,) = compare(None, Installed("this machine", "1.2.0rc8", tag="26.03"))
    assert "stands for TensorRT-LLM 1.2.0, inside is 1.2.0rc8" in found.message
    assert compare(None, Installed("this machine", "1.0.3.2510", "10.13.3.9", tag="25.11")) == []
    assert compare(None, Installed("this machine", "9.9.9", tag="99.01")) == []


def test_left_over_copies_of_tensorrt_are_listed_with_their_places() -> None:
    copies = (
        Copy("tensorrt", "10.11.0.33", "/usr/local/lib/python3.12/dist-packages"),
        Copy("libnvinfer.so", "10.11.0", "/usr/lib/x86_64-linux-gnu/libnvinfer.so.10.11.0"),
        Copy("libnvinfer.so", "10.9.0", "/opt/old/libnvinfer.so.10.9.0"),
    )
    found = one(None, Installed(tensorrt="10.11.0.33", copies=copies))
    assert (found.rule, found.severity) == ("copies", "warning")
    assert "2 versions of TensorRT" in found.message
    assert all(copy.path in found.message for copy in copies)
    assert compare(None, Installed(copies=copies[:2])) == []


@pytest.mark.parametrize(("wrote", "has", "noticed"), [("99.0", "5.24.0", True), ("4.53.1", "4.53.1", False), ("4.9.0", "4.53.1", False)])  # fmt: skip
def test_a_model_of_newer_transformers_is_a_notice_and_no_obstacle(wrote: str, has: str, noticed: bool) -> None:
    lines = require_compatible(Artifact("model", "model", transformers=wrote), Installed(transformers=has))
    assert len(lines) == noticed
    assert all(wrote in line and has in line for line in lines)


OLD = {
    "builder_config": {"name": "llama", "tensor_parallel": 2, "pipeline_parallel": 2, "precision": "float16"},
    "plugin_config": {"use_context_fmha_for_generation": False},
}


def test_the_generation_of_an_engine_is_told_by_its_keys(write: Write) -> None:
    old, new = read_artifact(write(OLD, name="old")), read_artifact(write(config(tp_size=2, pp_size=2)))
    assert (old.generation, new.generation) == GENERATIONS
    assert (old.world_size, new.world_size) == (4, 4)


@pytest.mark.parametrize(
    ("generation", "backend", "refused"),
    [(0, "1.2.1", True), (0, "0.8.0", True), (0, "", True), (0, "0.7.1", False), (1, "0.7.1", True), (1, "0.21.0", False)],
)  # fmt: skip
def test_an_engine_of_another_generation_is_refused_and_renaming_keys_is_not_suggested(
    generation: int, backend: str, refused: bool
) -> None:
    engine = replace(ENGINE, tensorrt_llm="0.7.0", tensorrt="", generation=GENERATIONS[generation])
    found = [each for each in compare(engine, Installed("this machine", backend)) if each.rule == "generation"]
    assert bool(found) is refused
    for each in found:
        assert "0.7.0" in each.message
        assert {key.key for key in GENERATIONS} == {
            word for word in ("builder_config", "build_config") if word in each.message
        }
        assert "build the engine again" in each.remedy
        assert "rename" not in each.remedy


def test_the_manifest_beside_an_engine_says_what_built_it(write: Write) -> None:
    built = {"tensorrt": "10.11.0.33", "sm": "sm_90a", "driver": "575.57.08"}
    engine = read_artifact(write(config(world_size=4), built))
    assert (engine.tensorrt_llm, engine.tensorrt, engine.sm, engine.driver) == ("0.21.0", "10.11.0.33", 90, "575.57.08")
    assert engine.world_size == 4
    other = write(config(), {"gpu": "NVIDIA H100 80GB HBM3", "sm": None}, name="other")
    assert read_artifact(other).sm == 90


def test_a_tensorrt_that_was_not_seen_and_a_manifest_of_something_else_say_nothing(write: Write) -> None:
    assert read_artifact(write(config(), {"tensorrt": "10.11.0.33", "tensorrt_is_measured": False})).tensorrt == ""
    other = write(config(), {"kind": "build", "tensorrt": "10.11.0.33", "sm": 90}, name="other")
    assert (read_artifact(other).tensorrt, read_artifact(other).sm) == ("", None)


@pytest.mark.parametrize(
    ("sm", "number"), [(90, 90), ("90", 90), ("9.0", 90), ("sm_100", 100), ("12.0", 120), ("?", None)]
)
def test_sm_numbers_are_read_however_they_are_written(write: Write, sm: object, number: int | None) -> None:
    assert read_artifact(write(config(), {"sm": sm})).sm == number


def test_the_bytes_of_each_rank_are_counted(write: Write) -> None:
    folder = write(config(tp_size=2))
    (folder / "rank0.engine").write_bytes(bytes(10))
    (folder / "rank0_managed_weights.safetensors").write_bytes(bytes(5))
    assert read_artifact(folder).rank_bytes == ()
    (folder / "rank1.engine").write_bytes(bytes(7))
    assert read_artifact(folder).rank_bytes == (15, 7)


@pytest.mark.parametrize("content", [{"hello": 1}, {**config(), "pretrained_config": {"mapping": {"tp_size": "two"}}}])
def test_a_config_that_makes_no_sense_is_refused(write: Write, content: dict[str, Any]) -> None:
    with pytest.raises(TrtbuildError, match=r"config\.json"):
        read_artifact(write(content))


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrtbuildError, match=r"has no config\.json"):
        read_artifact(tmp_path)


def test_every_release_with_engines_and_a_container_fits_itself() -> None:
    for release in RELEASES:
        if release.has(Feature.ENGINE) and release.containers:
            boxes = containers_with(tensorrt_llm=release.name, tensorrt=release.tensorrt)
            assert release.container in boxes
            engine = replace(ENGINE, tensorrt_llm=release.name, tensorrt=release.tensorrt)
            assert compare(engine, Installed.of_release(release, sms=(90,))) == []


@pytest.mark.parametrize(("wrote", "noticed"), [("99.0", True), ("4.40.0", False), (None, False), (5, False)])
def test_planning_notices_a_model_of_newer_transformers_and_reads_it_all_the_same(
    make_model: Callable[..., Path], cli: Callable[..., tuple[int, str, str]], wrote: object, noticed: bool
) -> None:
    pytest.importorskip("transformers")
    model = make_model()
    file = model / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "transformers_version": wrote}))
    code, out, err = cli("plan", model, "--target", "tensorrt", "--json")
    assert code == 0, err
    warnings = json.loads(out)["conversion"]["warnings"]
    assert any("written by transformers 99.0" in line for line in warnings) is noticed
