"""An engine that plain trtllm-build wrote, as in a container, is checked like our own and taken over with a manifest."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trtbuild import manifest
from trtbuild.trtllm.build_tool import VARIABLE

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def settings(make_model: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a trtbuild.yaml of two ranks for the target tensorrt."""
    model = make_model()
    (model / "tokenizer.json").write_text("{}")
    (model / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')

    def write(**sections: Any) -> Path:
        content = {
            "model": {"path": str(model)},
            "target": "tensorrt",
            "tensorrt_llm": "1.2.1",
            "parallel": {"tp_size": 2},
        }
        (tmp_path / "t.yaml").write_text(json.dumps({**content, **sections}))
        return tmp_path / "t.yaml"

    return write


Settings = Callable[..., Path]


@pytest.fixture
def out(
    settings: Settings, builder: Callable[..., Path], cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Return a build folder of a machine without the tool: its checkpoint, and in engine/ what the command that it shows has written."""
    folder = tmp_path / "build"
    assert cli("build", settings(), "-o", folder, "--until", "checkpoint")[0] == 0
    builder()
    tool = os.environ[VARIABLE]
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("PATH", "/nonexistent")
    code, _, err = cli("build", settings(), "-o", folder)
    assert code == 1
    assert "have `trtbuild build --engine DIR` take the engine over" in err
    command = err.splitlines()[-1].split()
    (folder / "engine").mkdir()
    subprocess.run([tool, *command[command.index("trtllm-build") + 1 :]], check=True, capture_output=True)
    return folder


def _change(folder: Path, *place: str, value: Any) -> None:
    content = json.loads((folder / "config.json").read_text())
    node = content
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = value
    (folder / "config.json").write_text(json.dumps(content))


def test_an_engine_that_was_written_into_the_build_becomes_its_own(out: Path, settings: Settings, cli: Cli) -> None:
    code, _, err = cli("build", settings(), "-o", out)
    assert (code, "was not made by this build" in err, "--engine takes an engine over" in err) == (1, True, True)
    inode = (out / "engine" / "rank1.engine").stat().st_ino
    code, text, err = cli("build", settings(), "-o", out, "--engine", out / "engine", "--json")
    assert code == 0, err
    assert json.loads(text)["stages"] == {"checkpoint": "kept", "engine": "done"}
    assert (out / "engine" / "rank1.engine").stat().st_ino == inode, "nothing is copied"
    made = json.loads((out / "engine" / "manifest.json").read_text())
    assert (made["kind"], made["tensorrt_llm"], made["tensorrt"], made["sm"]) == ("engine", "1.2.1", None, None)
    assert made["adopted_from"] == str(out / "engine")
    assert {"rank0.engine", "rank1.engine", "config.json"} <= set(made["files"])
    for more in ((), ("--engine", out / "engine")):
        assert json.loads(cli("build", settings(), "-o", out, *more, "--json")[1])["unchanged"]
    code, _, err = cli("render", out, "-q")
    assert code == 0, err
    assert json.loads((out / "repository" / "manifest.json").read_text())["context"]["tensorrt_llm"] == "1.2.1"
    assert cli("lint", out / "repository")[0] == 0


def test_an_engine_from_elsewhere_is_copied_and_knows_what_its_manifest_knew(
    out: Path, settings: Settings, cli: Cli, tmp_path: Path
) -> None:
    source = (out / "engine").rename(tmp_path / "elsewhere")
    manifest.write(source, {**manifest.header("engine"), "tensorrt": "10.14.1.48", "sm": 90, "driver": "590.44.01"})
    code, _, err = cli("build", settings(), "-o", out, "--engine", source)
    assert code == 0, err
    made = json.loads((out / "engine" / "manifest.json").read_text())
    assert (made["tensorrt"], made["sm"], made["driver"], made["adopted_from"]) == (
        "10.14.1.48",
        90,
        "590.44.01",
        str(source),
    )
    assert (out / "engine" / "rank0.engine").read_bytes() == b"engine of rank 0"
    assert (out / "engine" / "rank0.engine").stat().st_nlink == (source / "rank0.engine").stat().st_nlink == 1
    code, _, err = cli("build", settings(hardware={"gpu": "a100"}), "-o", out, "--engine", source, "--force")
    assert code == 1
    assert "it was built for SM90, and hardware.gpu is a100" in err


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("version",), "1.1.0", "the engine is of TensorRT-LLM 1.1.0, and trtbuild.yaml asks for 1.2.1"),
        (("build_config", "max_batch_size"), 2, "max_batch_size was to be"),
        (("build_config", "plugin_config", "gemm_plugin"), "float16", "gemm_plugin was to be auto, and is float16"),
        (("pretrained_config", "quantization", "kv_cache_quant_algo"), "FP8", "kv_cache_quant_algo was to be none, and is FP8"),
        (("pretrained_config", "mapping"), {"tp_size": 1, "pp_size": 2, "world_size": 2}, "tp_size was to be 2, and is 1"),
        (("pretrained_config", "mapping"), {"tp_size": 1, "world_size": 1}, "has rank1.engine beyond the 1 rank of its config.json"),
        (("pretrained_config", "hidden_size"), 128, "is not of this checkpoint: hidden_size was to be 64, and is 128"),
    ],
)  # fmt: skip
def test_an_engine_that_is_not_what_was_asked_for_is_refused(
    out: Path, settings: Settings, cli: Cli, place: tuple[str, ...], value: Any, message: str
) -> None:
    _change(out / "engine", *place, value=value)
    code, _, err = cli("build", settings(), "-o", out, "--engine", out / "engine")
    assert code == 1
    assert message in err
    assert not (out / "engine" / "manifest.json").exists()


def test_an_engine_that_lacks_a_rank_is_refused_before_anything_is_converted(
    out: Path, settings: Settings, cli: Cli, tmp_path: Path
) -> None:
    (out / "engine" / "rank1.engine").unlink()
    code, _, err = cli("build", settings(), "-o", tmp_path / "new", "--engine", out / "engine")
    assert code == 1
    assert "rank1.engine is missing" in err
    assert not list(tmp_path.glob("*new*"))


@pytest.mark.parametrize(
    ("name", "message"),
    [("nope", "is not a folder"), ("build", "did you mean"), ("build/checkpoint", "is not an engine folder")],
)
def test_what_is_no_engine_is_refused(
    out: Path, settings: Settings, cli: Cli, tmp_path: Path, name: str, message: str
) -> None:
    code, _, err = cli("build", settings(), "-o", tmp_path / "new", "--engine", tmp_path / name)
    assert (code, message in err) == (1, True), err


def test_an_engine_can_be_taken_over_into_a_new_folder(out: Path, settings: Settings, cli: Cli, tmp_path: Path) -> None:
    code, text, err = cli("build", settings(), "-o", tmp_path / "new", "--engine", out / "engine", "--json")
    assert code == 0, err
    assert json.loads(text)["stages"] == {"checkpoint": "done", "engine": "done"}
    assert (out / "engine" / "rank0.engine").is_file()


@pytest.mark.parametrize("option", [("--target", "pytorch"), ("--until", "checkpoint")])
def test_where_there_is_no_engine_none_is_taken_over(
    settings: Settings, cli: Cli, tmp_path: Path, option: tuple[str, ...]
) -> None:
    code, _, err = cli("build", settings(), "-o", tmp_path / "new", "--engine", tmp_path, *option)
    assert code == 2
    assert "--engine names an engine" in err


def test_an_interrupted_takeover_leaves_both_folders_as_they_were(
    out: Path, settings: Settings, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (out / "engine").rename(tmp_path / "elsewhere")
    whole = shutil.copy2

    def interrupted(one: os.PathLike[str], other: str, **options: Any) -> Any:
        if os.fspath(one).endswith("rank1.engine"):
            raise KeyboardInterrupt
        return whole(one, other, **options)

    monkeypatch.setattr(shutil, "copy2", interrupted)
    assert cli("build", settings(), "-o", out, "--engine", source)[0] == 130
    assert not (out / "engine").exists()
    assert (source / "rank1.engine").is_file()
    monkeypatch.setattr(shutil, "copy2", whole)
    assert cli("build", settings(), "-o", out, "--engine", source)[0] == 0
    assert (out / "engine" / "rank1.engine").read_bytes() == b"engine of rank 1"


def test_an_engine_that_was_written_over_in_place_can_be_taken_over_again(
    out: Path, settings: Settings, cli: Cli
) -> None:
    assert cli("build", settings(), "-o", out, "--engine", out / "engine")[0] == 0
    (out / "engine" / "rank0.engine").write_bytes(b"built again in the container")
    code, _, err = cli("build", settings(), "-o", out, "--engine", out / "engine")
    assert (code, f"remove {out / 'engine' / 'manifest.json'}" in err) == (1, True)
    (out / "engine" / "manifest.json").unlink()
    code, text, err = cli("build", settings(), "-o", out, "--engine", out / "engine", "--json")
    assert (code, json.loads(text)["stages"]["engine"]) == (0, "done"), err
    assert (out / "engine" / "rank0.engine").read_bytes() == b"built again in the container"


def test_verify_finds_ranks_that_were_swapped(out: Path, settings: Settings, cli: Cli) -> None:
    engine = out / "engine"
    assert cli("build", settings(), "-o", out, "--engine", engine)[0] == 0
    assert cli("verify", out)[0] == cli("verify", engine)[0] == 0
    first, second = ((engine / f"rank{rank}.engine").read_bytes() for rank in range(2))
    (engine / "rank0.engine").write_bytes(second)
    (engine / "rank1.engine").write_bytes(first)
    assert json.loads(cli("build", settings(), "-o", out, "--json")[1])["unchanged"], "names and sizes are the same"
    for folder, prefix in ((out, "engine/"), (engine, "")):
        code, text, _ = cli("verify", folder, "--json")
        assert code == 3
        assert [each["file"] for each in json.loads(text)["findings"]] == [
            f"{prefix}rank0.engine",
            f"{prefix}rank1.engine",
        ]
    made = json.loads((engine / "manifest.json").read_text())
    del made["files"]
    (engine / "manifest.json").write_text(json.dumps(made))
    code, _, err = cli("verify", engine)
    assert (code, "files is missing" in err) == (1, True)
