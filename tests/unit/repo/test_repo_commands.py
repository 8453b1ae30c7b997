"""`trtbuild render` and `trtbuild lint` as a user types them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.conftest import GOLDENS

import trtbuild

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def build(checkpoint: Path) -> Path:
    """Return a build folder for the target tensorrt, with an engine in it."""
    folder = checkpoint.parent
    content = {"model": {"path": str(checkpoint)}, "target": "tensorrt"}
    (folder / "trtbuild.yaml").write_text(yaml.safe_dump(content))
    return folder


@pytest.fixture
def rendered(build: Path, engine: Path, cli: Cli) -> Path:
    assert cli("render", build, "--quiet")[0] == 0
    return build / "repository"


def test_a_build_folder_is_rendered_into_itself(build: Path, engine: Path, cli: Cli) -> None:
    code, out, _ = cli("render", build, "--json", "--quiet")
    assert code == 0
    assert json.loads(out) == {
        "repository": str(build / "repository"),
        "variant": "engine",
        "models": ["ensemble", "postprocessing", "preprocessing", "tensorrt_llm", "tensorrt_llm_bls"],
    }
    assert cli("lint", build / "repository", "--quiet")[:2] == (0, "")


def test_a_configuration_and_a_checkpoint_are_rendered_where_one_wants(
    build: Path, checkpoint: Path, engine: Path, tmp_path: Path, cli: Cli
) -> None:
    arguments = ["render", build / "trtbuild.yaml", "--checkpoint", checkpoint, "--engine", engine, "-q"]
    assert cli(*arguments, "-o", tmp_path / "out")[0] == 0
    assert (tmp_path / "out" / "ensemble" / "config.pbtxt").is_file()


def test_what_force_does_not_replace_is_refused_before_force_is_suggested(
    build: Path, rendered: Path, cli: Cli
) -> None:
    (rendered / "notes").write_text("mine")
    code, _, err = cli("render", build)
    assert (code, "holds files that were not rendered: notes" in err, "--force" in err) == (1, True, False)
    assert cli("render", build, "--force")[2] == err
    code, _, err = cli("render", build, "-o", build)
    assert (code, "--force" in err) == (2, False), err


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("gone", 1, "gone does not exist"),
        ("gone.yaml", 1, "gone.yaml does not exist"),
        ("empty", 2, "empty is no build folder, and no output folder is given"),
    ],
)
def test_a_source_that_is_not_there_is_what_is_wrong(
    tmp_path: Path, cli: Cli, name: str, code: int, words: str
) -> None:
    (tmp_path / "empty").mkdir()
    found, _, err = cli("render", tmp_path / name)
    assert (found, words in err) == (code, True), err


def test_paths_are_those_of_the_container(build: Path, engine: Path, tmp_path: Path, cli: Cli) -> None:
    assert cli("render", build, "--path-map", f"{tmp_path}=/models", "-q")[0] == 0
    assert '"/models/engine"' in (build / "repository" / "tensorrt_llm" / "config.pbtxt").read_text()


def test_the_reference_target_serves_a_unified_folder_with_its_tokenizer(
    checkpoint: Path, tmp_path: Path, cli: Cli
) -> None:
    model, out = tmp_path / "model", tmp_path / "unified"
    shutil.copytree(GOLDENS / "gpt2" / "source", model)
    for file in (checkpoint / "tokenizer").iterdir():
        shutil.copyfile(file, model / file.name)
    assert cli("convert", model, "-o", out, "--target", "pytorch")[0] == 0
    code, _, err = cli("render", model, "--target", "reference", "--checkpoint", out, "-o", tmp_path / "repository")
    assert code == 0, err
    assert str(out) in (tmp_path / "repository" / "preprocessing" / "config.pbtxt").read_text()
    code, _, err = cli("render", model, "--target", "pytorch", "--checkpoint", out, "-o", tmp_path / "other")
    assert code == 0, err
    assert (tmp_path / "other" / "tensorrt_llm" / "1" / "model.yaml").is_file()


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (["--path-map", "nonsense"], 2, "is not HERE=THERE"),
        (["--path-map", "/a=relative"], 2, "absolute THERE"),
        (["--checkpoint", "missing"], 1, "is no checkpoint"),
    ],
)
def test_a_wrong_option_is_explained(
    build: Path, engine: Path, cli: Cli, change: list[str], code: int, message: str
) -> None:
    found, _, err = cli("render", build, *change)
    assert found == code
    assert message in err
    assert not (build / "repository").exists()


def test_without_a_build_folder_the_output_and_the_checkpoint_must_be_named(
    build: Path, tmp_path: Path, cli: Cli
) -> None:
    code, _, err = cli("render", build / "trtbuild.yaml")
    assert code == 2
    assert "add -o DIR" in err
    code, _, err = cli("render", build / "trtbuild.yaml", "-o", tmp_path / "out")
    assert code == 2
    assert "--checkpoint DIR" in err


def test_findings_are_one_line_each_and_exit_with_3(rendered: Path, cli: Cli) -> None:
    file = rendered / "tensorrt_llm_bls" / "config.pbtxt"
    file.write_text(file.read_text().replace("decoupled: true", "decoupled: false"))
    code, out, err = cli("lint", rendered)
    [line] = out.splitlines()
    assert code == 3
    assert line.startswith("decoupled-differs: error: tensorrt_llm_bls/config.pbtxt:4: decoupled is false")
    assert "1 error(s), 0 warning(s)" in err


def test_findings_as_json(rendered: Path, cli: Cli) -> None:
    (rendered / "ensemble" / "config.pbtxt").unlink()
    code, out, _ = cli("lint", rendered, "--json")
    [finding] = json.loads(out)["findings"]
    assert code == 3
    assert finding.keys() == {"rule", "severity", "file", "line", "message", "fix", "fixable"}
    assert (finding["rule"], finding["file"]) == ("syntax", "ensemble/config.pbtxt")


def test_the_configuration_messages_load_alone_and_agree_with_the_client_s(rendered: Path) -> None:
    script = (
        "import sys; from trtbuild.repo.lint import lint; from pathlib import Path; assert lint(Path(sys.argv[1])) == [];"
        "print(sorted({'torch', 'numpy', 'grpc', 'tritonclient'} & set(sys.modules)));"
        "import tritonclient.grpc; from trtbuild.repo.proto import parse_config;"
        "print(parse_config('name: \"x\"') == tritonclient.grpc.model_config_pb2.ModelConfig(name='x'))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(trtbuild.__file__).parents[1])}
    result = subprocess.run(
        [sys.executable, "-c", script, str(rendered)], capture_output=True, text=True, check=True, env=environment
    )
    assert result.stdout.split("\n")[:2] == ["[]", "True"]


def test_a_repository_that_does_not_exist_is_an_error(tmp_path: Path, cli: Cli) -> None:
    code, _, err = cli("lint", tmp_path / "missing")
    assert code == 1
    assert "is not a folder" in err
