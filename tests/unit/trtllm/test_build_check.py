"""What trtllm-build wrote is compared with what was asked for; what it may word or choose itself is no difference."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.trtllm.conftest import FAKE
from tests.unit.trtllm.engine_jobs import make_job

from trtbuild.errors import ToolFailed
from trtbuild.targets.base import Job
from trtbuild.trtllm.build_check import check_engine
from trtbuild.trtllm.build_options import arguments, requested
from trtbuild.trtllm.versions import RELEASES, Feature


@pytest.fixture
def built(
    build_folder: Callable[[Job], Path], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Path, dict[str, Any]]]:
    """Return a function that runs the stand-in in this process and returns the engine folder and its configuration."""

    def build(job: Job, *, version: str = "1.2.1") -> tuple[Path, dict[str, Any]]:
        folder = build_folder(job)
        (folder / "engine").mkdir()
        for name, value in {"VERSION": version, "CHANGE": "{}", "RECORD": "", "BUILD": ""}.items():
            monkeypatch.setenv(f"FAKE_TRTLLM_{name}", value)
        monkeypatch.setattr(
            sys, "argv", ["trtllm-build", *arguments(job, folder / "checkpoint", folder / "engine", workers=1)]
        )
        runpy.run_path(str(FAKE), run_name="__main__")
        return folder / "engine", json.loads((folder / "engine" / "config.json").read_text())

    return build


@pytest.mark.parametrize("release", [each.name for each in RELEASES if each.has(Feature.ENGINE)])
def test_every_release_s_arguments_are_taken_by_a_builder_of_that_release(
    release: str, built: Callable[..., tuple[Path, dict[str, Any]]]
) -> None:
    job = make_job(release=release)
    folder, _ = built(job, version=release)
    engine, notes = check_engine(job, folder, requested(job))
    assert (engine.version, notes) == (release, [])


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        ("build_config", {"max_batch_size": 32}, "max_batch_size was to be 64, and is 32"),
        ("build_config", {"max_num_tokens": 4096}, "max_num_tokens was to be 8192, and is 4096"),
        ("build_config", {"max_seq_len": 8192}, "max_seq_len was to be 4096, and is 8192"),
        ("build_config", {"kv_cache_type": "CONTINUOUS"}, "kv_cache_type was to be paged, and is CONTINUOUS"),
        ("build_config", {"weight_streaming": True}, "weight_streaming was to be false, and is true"),
        ("plugin_config", {"use_paged_context_fmha": False}, "use_paged_context_fmha was to be true, and is false"),
        ("plugin_config", {"tokens_per_block": 64}, "tokens_per_block was to be 32, and is 64"),
        ("plugin_config", {"gemm_plugin": None}, "gemm_plugin was to be auto, and is none"),
        ("plugin_config", {"gemm_swiglu_plugin": "fp8"}, "gemm_swiglu_plugin was to be disable, and is fp8"),
        ("pretrained_config", {"mapping": {"world_size": 2, "tp_size": 1, "pp_size": 2}}, "tp_size was to be 2, and is 1; pp_size was to be 1"),
        ("pretrained_config", {"dtype": "float16"}, "dtype was to be bfloat16, and is float16"),
        ("pretrained_config", {"quantization": {"quant_algo": "FP8"}}, "quant_algo was to be none, and is FP8"),
        ("pretrained_config", {"quantization": {"kv_cache_quant_algo": "INT8"}}, "kv_cache_quant_algo was to be none, and is INT8"),
    ],
)  # fmt: skip
def test_an_engine_that_is_not_what_was_asked_for_is_refused(
    section: str, change: dict[str, Any], message: str, job: Job, built: Callable[..., tuple[Path, dict[str, Any]]]
) -> None:
    folder, config = built(job)
    (config["build_config"]["plugin_config"] if section == "plugin_config" else config[section]).update(change)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ToolFailed, match=message):
        check_engine(job, folder, requested(job))


@pytest.mark.parametrize(
    ("build", "plugins"),
    [({"max_input_len": 4096}, {}), ({"kv_cache_type": "KVCacheType.PAGED"}, {}), ({}, {"gemm_plugin": "bfloat16"}), ({}, {"use_fused_mlp": False}),
     ({}, {"nccl_plugin": None}), ({"plugin_config": {}}, {}), ({"lora_config": {}}, {})],
)  # fmt: skip
def test_what_the_builder_may_word_or_choose_itself_is_no_difference(
    build: dict[str, Any], plugins: dict[str, Any], job: Job, built: Callable[..., tuple[Path, dict[str, Any]]]
) -> None:
    folder, config = built(job)
    config["build_config"]["plugin_config"].update(plugins)
    config["build_config"].update(build)
    (folder / "config.json").write_text(json.dumps(config))
    check_engine(job, folder, requested(job))


def test_drafts_may_make_lengths_larger_but_not_smaller(built: Callable[..., tuple[Path, dict[str, Any]]]) -> None:
    job = make_job(speculative={"mode": "lookahead"}, limits={"max_seq_len": 4096})
    folder, config = built(job)
    config["build_config"]["max_seq_len"] += 15
    (folder / "config.json").write_text(json.dumps(config))
    check_engine(job, folder, requested(job))
    config["build_config"]["max_seq_len"] = 4095
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ToolFailed, match="max_seq_len was to be 4096, and is 4095"):
        check_engine(job, folder, requested(job))


def test_weights_beside_a_fast_build_are_looked_for(built: Callable[..., tuple[Path, dict[str, Any]]]) -> None:
    job = make_job(engine={"fast_build": True})
    folder, _ = built(job)
    assert check_engine(job, folder, requested(job))[1] == []
    (folder / "rank0_managed_weights.safetensors").unlink()
    assert "rank0_managed_weights.safetensors are not there" in check_engine(job, folder, requested(job))[1][0]


@pytest.mark.parametrize("content", ["{", '{"builder_config": {}}', '{"version": "1.2.1"}'])
def test_a_configuration_of_another_kind_is_refused(
    content: str, job: Job, built: Callable[..., tuple[Path, dict[str, Any]]]
) -> None:
    folder, _ = built(job)
    (folder / "config.json").write_text(content)
    with pytest.raises(ToolFailed, match="trtllm-build wrote an unusable engine"):
        check_engine(job, folder, requested(job))
