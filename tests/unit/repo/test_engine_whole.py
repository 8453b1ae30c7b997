"""What is rendered can be served: the engine is there, whole, and the one of the deployment and its checkpoint, whoever built it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.repo.conftest import cut_engine

from trtbuild import manifest
from trtbuild.errors import TrtbuildError
from trtbuild.repo.context import RepoContext
from trtbuild.repo.render import render

Context = Callable[..., RepoContext]
Cli = Callable[..., tuple[int, str, str]]


def _change(folder: Path, *place: str, value: Any) -> None:
    """Set a value in config.json."""
    content = json.loads((folder / "config.json").read_text())
    node = content
    for key in place[:-1]:
        node = node.setdefault(key, {})
    node[place[-1]] = value
    (folder / "config.json").write_text(json.dumps(content))


def test_an_engine_folder_that_does_not_exist_is_an_error(checkpoint: Path, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(json.dumps({"model": {"path": str(checkpoint)}, "target": "tensorrt"}))
    options = ("--checkpoint", checkpoint, "--engine", tmp_path / "nope", "-o", tmp_path / "out")
    code, _, err = cli("render", tmp_path / "t.yaml", *options)
    assert code == 1
    assert f"{tmp_path / 'nope'} is no engine folder: it does not exist" in err
    assert "--engine-later" in err
    assert not (tmp_path / "out").exists()
    code, _, err = cli("render", tmp_path / "t.yaml", *options, "--engine-later")
    assert code == 0, err
    assert f"{tmp_path / 'nope'} holds no engine yet" in err
    assert "TYPE_FP16" in (tmp_path / "out" / "tensorrt_llm" / "config.pbtxt").read_text()


@pytest.mark.parametrize("option", [("--engine", "engine"), ("--engine-later",)])
def test_another_target_has_no_engine(option: tuple[str, ...], checkpoint: Path, cli: Cli, tmp_path: Path) -> None:
    code, _, err = cli(
        "render", checkpoint, "--checkpoint", checkpoint, "--target", "reference", "-o", tmp_path, *option
    )
    assert code == 2
    assert "the target is reference, which has no engine" in err


def test_of_an_engine_that_comes_later_the_configuration_counts_when_it_is_there(
    context: Context, engine: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (engine / "rank0.engine").unlink()
    with caplog.at_level(logging.WARNING, logger="trtbuild"):
        assert context(target="tensorrt", engine_later=True).max_batch_size == 16
    assert "holds no engine yet" not in caplog.text
    with pytest.raises(TrtbuildError, match="exceeds max_batch_size=16"):
        context(target="tensorrt", engine_later=True, limits={"max_batch_size": 17})


@pytest.mark.parametrize("is_listed", [True, False])
@pytest.mark.parametrize(
    ("name", "harm", "message"),
    [
        ("rank1.engine", "gone", "rank1.engine is missing"),
        ("rank1.engine", "empty", "rank1.engine (is empty|has 0 bytes, and 6 were written)"),
        ("config.json", "gone", "config.json"),
        ("config.json", "cut", "config.json is not valid JSON"),
    ],
)
def test_an_engine_that_is_not_whole_is_refused_with_the_file(
    context: Context, engine: Path, name: str, harm: str, message: str, is_listed: bool
) -> None:
    cut_engine(engine, tp_size=2)
    if is_listed:
        manifest.write(engine, manifest.header("engine"))
    context(target="tensorrt", parallel={"tp_size": 2})
    file = engine / name
    if harm == "gone":
        file.unlink()
    else:
        os.truncate(file, 0 if harm == "empty" else file.stat().st_size - 3)
    with pytest.raises(TrtbuildError, match=message) as error:
        context(target="tensorrt", parallel={"tp_size": 2})
    assert "download" not in error.value.hint


def test_a_rank_that_was_cut_is_found_by_the_manifest(context: Context, engine: Path) -> None:
    manifest.write(engine, manifest.header("engine"))
    os.truncate(engine / "rank0.engine", 5)
    with pytest.raises(TrtbuildError, match=r"rank0\.engine has 5 bytes, and 6 were written"):
        context(target="tensorrt")


def test_an_engine_needs_the_tokenizer_of_its_checkpoint_and_not_the_weights(
    context: Context, checkpoint: Path, engine: Path
) -> None:
    manifest.write(checkpoint, manifest.header("checkpoint"))
    (checkpoint / "rank0.safetensors").unlink()
    context(target="tensorrt")
    with pytest.raises(TrtbuildError, match=r"rank0\.safetensors is missing"):
        context(target="reference")
    (checkpoint / "tokenizer" / "tokenizer_config.json").unlink()
    with pytest.raises(TrtbuildError, match=r"tokenizer_config\.json is missing"):
        context(target="tensorrt")


@pytest.mark.parametrize(
    ("sections", "place", "value", "message"),
    [
        ({"parallel": {"tp_size": 2}}, (), None, "tp_size was to be 2, and is 1"),
        ({"parallel": {"pp_size": 2}}, (), None, "pp_size was to be 2, and is 1"),
        ({}, ("pretrained_config", "architecture"), "GPTForCausalLM", "architecture was to be LlamaForCausalLM, and is GPTForCausalLM"),
        ({}, ("pretrained_config", "vocab_size"), 256, "vocab_size was to be 128, and is 256"),
        ({}, ("pretrained_config", "quantization", "quant_algo"), "FP8", "quant_algo was to be none, and is FP8"),
        ({}, ("pretrained_config", "quantization", "kv_cache_quant_algo"), "INT8", "kv_cache_quant_algo was to be none, and is INT8"),
        ({"engine": {"gemm_plugin": "fp8"}}, ("build_config", "plugin_config", "gemm_plugin"), None, "gemm_plugin was to be fp8, and is none"),
        ({"engine": {"gather_context_logits": True}}, ("build_config", "gather_context_logits"), False, "gather_context_logits was to be true, and is false"),
        ({"kv_cache": {"tokens_per_block": 64}}, ("build_config", "plugin_config", "tokens_per_block"), 32, "tokens_per_block was to be 64, and is 32"),
        ({"lora": {"target_modules": ["attn_q"], "max_rank": 16}}, ("build_config", "lora_config"), {"max_lora_rank": 8}, "max_lora_rank was to be 16, and is 8"),
    ],
)  # fmt: skip
def test_an_engine_of_another_model_cut_or_plugins_is_refused_whoever_built_it(
    context: Context, checkpoint: Path, engine: Path, sections: dict[str, Any], place: tuple[str, ...], value: Any, message: str
) -> None:  # fmt: skip
    _change(checkpoint, "quantization", value={"quant_algo": None, "kv_cache_quant_algo": None})
    if place:
        _change(engine, *place, value=value)
    with pytest.raises(TrtbuildError, match=message) as error:
        context(target="tensorrt", **sections)
    assert "is not the engine of this deployment" in error.value.message


def test_plugins_that_the_deployment_leaves_open_may_be_any(context: Context, engine: Path) -> None:
    plugins = {"gemm_plugin": "bfloat16", "moe_plugin": "auto", "use_paged_context_fmha": True, "tokens_per_block": 32}
    _change(engine, "build_config", "plugin_config", value=plugins)
    context(target="tensorrt")


@pytest.mark.parametrize("value", [None, "16"])
def test_an_engine_that_does_not_say_its_batch_is_named(context: Context, engine: Path, value: Any) -> None:
    _change(engine, "build_config", "max_batch_size", value=value)
    with pytest.raises(TrtbuildError, match=r"engine/config\.json: max_batch_size of build_config is"):
        context(target="tensorrt")


@pytest.mark.parametrize("version", ["1.2.0", "1.2.0rc3", "0.20.0"])
def test_the_manifest_of_the_repository_states_the_release_that_built_the_engine(
    context: Context, engine: Path, tmp_path: Path, version: str
) -> None:
    _change(engine, "version", value=version)
    made = render(context(target="tensorrt"), tmp_path / "out").path
    stated = json.loads((made / "manifest.json").read_text())["context"]["tensorrt_llm"]
    assert stated == version
