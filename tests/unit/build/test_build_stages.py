"""The stages of a build: kept while their inputs are the same, done when missing, replaced on demand only."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.build.conftest import Recorder
from tests.unit.memory.shapes import write_ids

from trtbuild.convert import work
from trtbuild.errors import ToolFailed

Cli = Callable[..., tuple[int, str, str]]


Settings = Callable[..., Path]


def _stages(out: str) -> dict[str, str]:
    stages: dict[str, str] = json.loads(out)["stages"]
    return stages


def _inode(folder: Path) -> int:
    return (folder / "checkpoint" / "rank0.safetensors").stat().st_ino


def test_a_build_stops_where_it_is_told_and_goes_on_later(
    target: type[Recorder], settings: Settings, cli: Cli, tmp_path: Path
) -> None:
    out = tmp_path / "build"
    code, text, err = cli("build", settings(), "-o", out, "--until", "checkpoint", "--json")
    assert (code, _stages(text)) == (0, {"checkpoint": "done"})
    assert "for 1.2.1" in err
    inode = _inode(out)
    (out / "repository").mkdir()
    code, text, _ = cli("build", settings(), "-o", out, "--json")
    assert (code, _stages(text)) == (0, {"checkpoint": "kept", "engine": "done"})
    assert (_inode(out), target.runs) == (inode, 1)
    assert (out / "repository").is_dir(), "nothing was replaced, so what others put there stays"
    code, text, _ = cli("build", settings(), "-o", out, "--json")
    assert (json.loads(text)["unchanged"], target.runs) == (True, 1)


def test_an_engine_of_other_limits_replaces_only_itself_and_only_by_force(
    target: type[Recorder], settings: Settings, cli: Cli, tmp_path: Path
) -> None:
    out = tmp_path / "build"
    assert cli("build", settings(limits={"max_batch_size": 8}), "-o", out)[0] == 0
    inode = _inode(out)
    (out / "repository").mkdir()
    code, _, err = cli("build", settings(limits={"max_batch_size": 9}), "-o", out)
    assert code == 1
    assert "--force" in err
    assert (out / "engine" / "size").read_text() == "8"
    code, text, _ = cli("build", settings(limits={"max_batch_size": 9}), "-o", out, "--force", "--json")
    assert (code, _stages(text)) == (0, {"checkpoint": "kept", "engine": "done"})
    assert ((out / "engine" / "size").read_text(), _inode(out)) == ("9", inode)
    assert not (out / "repository").exists(), "it was rendered for the engine that is gone"


@pytest.mark.parametrize(
    "change", [{"serving": {"http_port": 9000}}, {"kv_cache": {"max_tokens": 4096}}, {"engine": {"log_level": "debug"}}]
)
def test_what_no_stage_depends_on_is_only_written_down(
    target: type[Recorder], settings: Settings, cli: Cli, tmp_path: Path, change: dict[str, Any]
) -> None:
    out = tmp_path / "build"
    assert cli("build", settings(), "-o", out)[0] == 0
    code, text, _ = cli("build", settings(**change), "-o", out, "--json")
    assert (code, json.loads(text)["unchanged"], target.runs) == (0, True, 1)
    ((section, values),) = change.items()
    ((key, value),) = values.items()
    assert f"  {key}: {value}" in (out / "trtbuild.yaml").read_text(), section


def test_from_does_a_stage_again_and_skips_the_ones_before(
    target: type[Recorder], settings: Settings, cli: Cli, tmp_path: Path
) -> None:
    out = tmp_path / "build"
    code, _, err = cli("build", settings(), "-o", out, "--from", "engine")
    assert code == 2
    assert "--from checkpoint" in err
    assert cli("build", settings(), "-o", out)[0] == 0
    inode = _inode(out)
    (out / "repository").mkdir()
    code, text, _ = cli("build", settings(), "-o", out, "--from", "engine", "--json")
    assert (code, _stages(text)) == (0, {"checkpoint": "kept", "engine": "done"})
    assert (_inode(out), target.runs) == (inode, 2)
    assert (out / "repository").is_dir(), "it was rendered for an engine of the same inputs"
    code, _, err = cli("build", settings(limits={"max_batch_size": 3}), "-o", out, "--from", "engine")
    assert (code, target.runs) == (1, 2)
    assert "holds engine of other inputs" in err
    assert "--force" in err
    code, _, err = cli("build", settings(parallel={"tp_size": 1}), "-o", out, "--from", "engine", "--force")
    assert code == 2
    assert "for these inputs" in err


@pytest.mark.parametrize("failure", [ToolFailed("no space on the GPU", hint="free some"), KeyboardInterrupt()])
def test_a_failed_engine_costs_no_checkpoint(
    target: type[Recorder],
    settings: Settings,
    cli: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failure: BaseException,
) -> None:
    out = tmp_path / "build"
    target.failure = failure
    code, _, err = cli("build", settings(), "-o", out)
    assert code in (1, 130)
    assert "the same command goes on from there" in err
    assert not out.exists()
    target.failure = None
    monkeypatch.setattr(work, "convert_into", None)  # not called again
    assert cli("build", settings(), "-o", out)[0] == 0
    assert (out / "checkpoint" / "rank1.safetensors").is_file()


def test_a_stage_whose_result_is_gone_is_done_again(
    target: type[Recorder], settings: Settings, cli: Cli, tmp_path: Path
) -> None:
    out = tmp_path / "build"
    assert cli("build", settings(), "-o", out)[0] == 0
    (out / "checkpoint" / "rank1.safetensors").unlink()
    code, text, err = cli("build", settings(), "-o", out, "--json")
    assert (code, _stages(text)["checkpoint"]) == (0, "done"), err
    assert (out / "checkpoint" / "rank1.safetensors").is_file()


def test_the_manifest_says_what_was_built_for_what(
    target: type[Recorder], settings: Settings, cli: Cli, tmp_path: Path
) -> None:
    out = tmp_path / "build"
    assert cli("build", settings(tensorrt_llm="1.1"), "-o", out)[0] == 0
    written = json.loads((out / "manifest.json").read_text())
    assert (written["schema_version"], written["tensorrt_llm"], written["target"]) == (1, "1.1.0", "tensorrt")
    assert written["stages"]["engine"]["engine_bytes"] == 1
    assert written["stages"]["engine"]["outputs"] == ["engine"]


def test_a_folder_that_is_quantized_already_is_planned_and_copied(cli: Cli, tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "goldens" / "llama" / "hf" / "nvfp4"
    code, text, err = cli("plan", source, "--target", "pytorch", "--gpu", "b200", "--json")
    assert code == 0, err
    plan = json.loads(text)
    held = (source / "model.safetensors").stat().st_size
    of_weights = ("weights", "scales", "embedding", "head")
    weights = sum(line["bytes"] for line in plan["memory"]["ranks"][0]["lines"] if line["name"] in of_weights)
    assert 0.95 < weights / held < 1, "the file has a header and the same tensors"
    assert (plan["conversion"]["read_bytes"], plan["conversion"]["write_bytes"], plan["disk_bytes"]) == (
        held,
        held,
        held,
    )
    code, text, err = cli("build", source, "--target", "pytorch", "-o", tmp_path / "build", "--json")
    assert code == 0, err
    assert (tmp_path / "build" / "checkpoint" / "model.safetensors").stat().st_size == held
    assert (tmp_path / "build" / "llm_api.yaml").is_file()
    assert json.loads(cli("build", source, "--target", "pytorch", "-o", tmp_path / "build", "--json")[1])["unchanged"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"limits": {"max_batch_size": 9}}, "holds engine of other inputs: limits.max_batch_size was 8, now 9"),
        (
            {"quantization": {"scheme": "fp8"}, "tensorrt_llm": "1.1"},
            "holds checkpoint and engine of other inputs: quantization.scheme was none, now fp8; tensorrt_llm was null, now '1.1'",
        ),
        ({"lora": {"target_modules": ["attn_q"] * 30}}, "lora.target_modules was [], now [attn_q, "),
    ],
)
def test_the_stage_and_what_changed_are_named(
    target: type[Recorder], settings: Settings, cli: Cli, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    out = tmp_path / "build"
    before: dict[str, Any] = {"limits": {"max_batch_size": 8}}
    ids = tmp_path / "ids.safetensors"
    write_ids(ids)
    change.setdefault("quantization", {})["calibration"] = {"file": str(ids)}
    before["quantization"] = {"calibration": {"file": str(ids)}}
    assert cli("build", settings(**before), "-o", out)[0] == 0
    file = settings(**{**before, **change})
    code, _, err = cli("build", file, "-o", out)
    assert (code, said in err) == (1, True), err
    assert max(map(len, err.splitlines())) < 400
    # What was changed is known from what was built, not from a file that anybody may have edited.
    shutil.copy(file, out / "trtbuild.yaml")
    assert said in cli("build", out, "-o", out)[2]
    assert cli("build", file, "-o", out, "--force")[0] == 0


def test_a_model_that_changed_in_its_place_is_named(
    target: type[Recorder], settings: Settings, cli: Cli, tmp_path: Path
) -> None:
    out, file = tmp_path / "build", settings()
    model = Path(json.loads(file.read_text())["model"]["path"])
    assert cli("build", file, "-o", out)[0] == 0
    os.utime(model / "model.safetensors", ns=(1, 1))
    assert f"weights of {model} changed (model.safetensors)" in cli("build", file, "-o", out)[2]
    (model / "config.json").write_text((model / "config.json").read_text() + " ")
    assert f"config.json of {model} changed" in cli("build", file, "-o", out)[2]
    assert cli("build", file, "-o", out, "--force")[0] == 0
    made = json.loads((out / "manifest.json").read_text())
    made["stages"]["checkpoint"]["inputs"]["trtbuild"] = "0.0.1"
    made["stages"]["checkpoint"]["key"] = "of another version"
    (out / "manifest.json").write_text(json.dumps(made))
    assert "holds checkpoint of other inputs: trtbuild was 0.0.1, now " in cli("build", file, "-o", out)[2]
    for part in ("inputs", "source"):
        del made["stages"]["checkpoint"][part]
    (out / "manifest.json").write_text(json.dumps(made))
    assert "holds checkpoint of other inputs\n" in cli("build", file, "-o", out)[2]


def test_a_file_that_changed_under_its_name_is_named(
    target: type[Recorder], settings: Settings, cli: Cli, tmp_path: Path
) -> None:
    out, ids = tmp_path / "build", write_ids(tmp_path / "ids.safetensors")
    file = settings(quantization={"calibration": {"file": str(ids)}})
    assert cli("build", file, "-o", out)[0] == 0
    os.utime(ids, ns=(1, 1))
    code, _, err = cli("build", file, "-o", out)
    assert (code, "what is in quantization.calibration.file changed" in err) == (1, True), err
