"""An artifact that lost a file, or is put together of others, is a failed line that names the file, on any machine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.doctor.conftest import Fake
from tests.unit.doctor.test_suitability import lines, write_engine, write_model

from trtbuild import manifest

Machine = Callable[..., Fake]
Cli = Callable[..., tuple[int, str, str]]


def _contents(folder: Path, machine: Machine) -> str:
    found = lines(folder, machine())["contents"]
    assert found.status == "fail"
    assert found.remedy
    return found.detail


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """Return an engine folder of two ranks without a manifest, as plain trtllm-build leaves it."""
    return write_engine(tmp_path / "engine", tp_size=2, built=None)


def _listed(engine: Path) -> Path:
    manifest.write(engine, {**manifest.header("engine"), "tensorrt_llm": "1.2.1"})
    return engine


def test_what_is_whole_has_no_such_line(engine: Path, machine: Machine) -> None:
    assert "contents" not in lines(engine, machine())
    assert "contents" not in lines(_listed(engine), machine())


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_rank_that_is_gone_is_named(engine: Path, machine: Machine, is_listed: bool) -> None:
    if is_listed:
        _listed(engine)
    (engine / "rank1.engine").unlink()
    assert _contents(engine, machine) == f"{engine / 'rank1.engine'} is missing"


def test_a_rank_of_no_bytes_is_named_even_without_a_manifest(engine: Path, machine: Machine) -> None:
    os.truncate(engine / "rank0.engine", 0)
    assert _contents(engine, machine) == f"{engine / 'rank0.engine'} is empty"


def test_a_cut_rank_is_named_with_both_sizes(engine: Path, machine: Machine) -> None:
    os.truncate(_listed(engine) / "rank0.engine", 1000)
    assert _contents(engine, machine) == f"{engine / 'rank0.engine'} has 1,000 bytes, and 1,048,576 were written"


def test_ranks_of_another_engine_are_too_many(engine: Path, machine: Machine) -> None:
    (engine / "rank2.engine").write_bytes(b"x")
    assert "has rank2.engine beyond the 2 ranks of its config.json" in _contents(engine, machine)


@pytest.mark.parametrize("harm", ["cut", "gone"])
def test_an_engine_without_a_readable_configuration_is_a_failed_line(
    engine: Path, machine: Machine, cli: Cli, harm: str
) -> None:
    file = engine / "config.json"
    file.write_text(file.read_text()[:-4]) if harm == "cut" else file.unlink()
    assert ("is not valid JSON" if harm == "cut" else "has no config.json") in _contents(engine, machine)
    code, out, _ = cli("doctor", "--for", engine, "--json")
    assert (code, json.loads(out)["ok"]) == (3, False)


def test_a_build_and_its_repository_name_a_file_once(
    build: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(build / "repository", "tensorrt_llm", "tensorrtllm", gpt_model_path=str(build / "engine"))
    (build / "engine" / "rank0.engine").unlink()
    monkeypatch.chdir(build.parent)
    assert _contents(Path("build"), machine) == "build/engine/rank0.engine is missing"


@pytest.mark.parametrize("value", ["two", 0, True, 10**9, [1]])
def test_a_number_of_ranks_that_is_none_is_a_failed_line(build: Path, machine: Machine, value: object) -> None:
    config = json.loads((build / "engine" / "config.json").read_text())
    config["pretrained_config"]["mapping"] = {"tp_size": value}
    (build / "engine" / "config.json").write_text(json.dumps(config))
    assert f"tp_size = {value!r} is no number of ranks" in _contents(build, machine)


def test_a_manifest_that_cannot_be_read_is_a_failed_line(engine: Path, machine: Machine) -> None:
    (engine / "manifest.json").write_text("{")
    assert "manifest.json is not valid JSON" in _contents(engine, machine)


def test_a_repository_is_looked_at_through_the_folder_it_names(engine: Path, machine: Machine, tmp_path: Path) -> None:
    write_model(tmp_path / "repository", "tensorrt_llm", "tensorrtllm", gpt_model_path=str(engine))
    assert "contents" not in lines(tmp_path / "repository", machine())
    (engine / "config.json").unlink()
    assert "has no config.json" in _contents(tmp_path / "repository", machine)


@pytest.fixture
def build(make_model: Callable[..., Path], cli: Cli, tmp_path: Path) -> Path:
    """Return a build folder for target tensorrt that ends with the checkpoint, with an engine of one rank that was put there by hand."""
    options = ("--target", "tensorrt", "--until", "checkpoint")
    assert cli("build", make_model(), "-o", tmp_path / "build", *options)[0] == 0
    write_engine(tmp_path / "build" / "engine", built=None)
    return tmp_path / "build"


def test_a_build_is_looked_at_stage_by_stage(build: Path, machine: Machine) -> None:
    assert "contents" not in lines(build, machine())
    (build / "checkpoint" / "rank0.safetensors").unlink()
    (build / "engine" / "rank0.engine").unlink()
    found = _contents(build, machine)
    assert f"{build / 'checkpoint' / 'rank0.safetensors'} is missing" in found
    assert f"{build / 'engine' / 'rank0.engine'} is missing" in found


def test_the_manifest_of_a_build_is_one_of_its_files(build: Path, machine: Machine) -> None:
    (build / "manifest.json").write_text('{"kind": "build"')
    assert "manifest.json is not valid JSON" in _contents(build, machine)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("mapping", "tp_size"), 2, "tp_size was to be 1, and is 2"),
        (("hidden_size",), 128, "hidden_size was to be 64, and is 128"),
        (("quantization",), {"kv_cache_quant_algo": "FP8"}, "kv_cache_quant_algo was to be none, and is FP8"),
    ],
)
def test_an_engine_of_another_model_or_cut_is_not_the_one_of_the_build(
    build: Path, machine: Machine, place: tuple[str, ...], value: object, message: str
) -> None:
    config = json.loads((build / "engine" / "config.json").read_text())
    node = config["pretrained_config"]
    for key in place[:-1]:
        node = node.setdefault(key, {})
    node[place[-1]] = value
    (build / "engine" / "config.json").write_text(json.dumps(config))
    if "mapping" in place:
        (build / "engine" / "rank1.engine").write_bytes(b"x")
    assert message in _contents(build, machine)
