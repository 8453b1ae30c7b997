"""The parameters of an engine's core model come from the fields it was built with; what the engine lacks is refused (field report EB22)."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.repo.context import RepoContext
from trtbuild.repo.proto import parse_config
from trtbuild.repo.render import render

Context = Callable[..., RepoContext]
#: What the C++ backend reads of these (Triton specification 1.8), typed in by hand.
KNOWN = {
    "gpt_model_type", "gpt_model_path", "max_beam_width", "batch_scheduler_policy", "max_tokens_in_paged_kv_cache",
    "kv_cache_free_gpu_mem_fraction", "kv_cache_host_memory_bytes", "max_attention_window_size", "enable_kv_cache_reuse",
    "enable_chunked_context", "executor_worker_path", "exclude_input_in_output", "cancellation_check_period_ms",
    "stats_check_period_ms", "decoding_mode", "lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size",
    "gpu_weights_percent", "lora_cache_max_adapter_size", "lora_cache_optimal_adapter_size", "lora_cache_gpu_memory_fraction",
    "lora_cache_host_memory_bytes", "tokenizer_dir", "guided_decoding_backend", "xgrammar_tokenizer_info_path",
    "FORCE_CPU_ONLY_INPUT_TENSORS",
}  # fmt: skip


@pytest.fixture
def built(engine: Path) -> Callable[..., None]:
    """Return a function that changes build_config and its plugin_config of the engine."""

    def change(plugins: dict[str, Any] | None = None, **build: Any) -> None:
        file = engine / "config.json"
        content = json.loads(file.read_text())
        content["build_config"] |= build
        if plugins is not None:
            content["build_config"]["plugin_config"] = plugins
        file.write_text(json.dumps(content))

    return change


@pytest.fixture
def written(context: Context, tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Return a function that renders for an engine and returns the parameters of its core model."""

    def write(**sections: Any) -> dict[str, str]:
        repository = render(context(target="tensorrt", **sections), tmp_path / "out", force=True).path
        config = parse_config((repository / "tensorrt_llm" / "config.pbtxt").read_text())
        return {key: value.string_value for key, value in config.parameters.items()}

    return write


def test_every_field_reaches_the_backend(written: Callable[..., dict[str, str]], built: Callable[..., None]) -> None:
    built({"use_paged_context_fmha": True, "lora_plugin": "auto"}, weight_streaming=True, max_beam_width=4)
    found = written(
        limits={"max_beam_width": 4},
        kv_cache={
            "max_tokens": 4096, "free_gpu_memory_fraction": 0.8, "enable_block_reuse": False, "host_cache_bytes": 2**30,
            "max_attention_window": [128, 256],
        },
        scheduling={"policy": "max_utilization", "chunked_context": False},
        engine={"weight_streaming": True, "gpu_weights_percent": 0.5},
        lora={"target_modules": ["attn_qkv"], "max_rank": 16, "device_cache_fraction": 0.1, "host_cache_bytes": 1024},
    )  # fmt: skip
    expected = {
        "max_beam_width": "4", "max_tokens_in_paged_kv_cache": "4096", "kv_cache_free_gpu_mem_fraction": "0.8",
        "enable_kv_cache_reuse": "false", "kv_cache_host_memory_bytes": "1073741824", "max_attention_window_size": "128,256",
        "batch_scheduler_policy": "max_utilization", "enable_chunked_context": "false", "gpu_weights_percent": "0.5",
        "lora_cache_max_adapter_size": "16", "lora_cache_optimal_adapter_size": "8", "lora_cache_gpu_memory_fraction": "0.1",
        "lora_cache_host_memory_bytes": "1024", "decoding_mode": "beam_search",
    }  # fmt: skip
    assert {key: found.get(key) for key in expected} == expected
    assert set(found) <= KNOWN


def test_what_is_not_asked_for_is_left_to_the_backend(written: Callable[..., dict[str, str]]) -> None:
    found = written()
    assert found["enable_chunked_context"] == found["enable_kv_cache_reuse"] == "true"
    assert found["batch_scheduler_policy"] == "guaranteed_no_evict"
    for key in ("decoding_mode", "gpu_weights_percent", "kv_cache_host_memory_bytes", "max_attention_window_size"):
        assert key not in found
    assert not [key for key in found if key.startswith(("lora_", "lookahead_"))]


def test_lookahead_has_its_three_sizes(written: Callable[..., dict[str, str]]) -> None:
    found = written(speculative={"mode": "lookahead", "lookahead": [5, 4, 3]})
    assert found["decoding_mode"] == "lookahead"
    assert [found[f"lookahead_{name}_size"] for name in ("window", "ngram", "verification_set")] == ["5", "4", "3"]


@pytest.mark.parametrize(
    ("sections", "keys"),
    [
        ({"scheduling": {"chunked_context": False}}, "kv_cache.enable_block_reuse needs use_paged_context_fmha"),
        ({"kv_cache": {"enable_block_reuse": False}}, "scheduling.chunked_context needs use_paged_context_fmha"),
        ({}, "kv_cache.enable_block_reuse and scheduling.chunked_context need use_paged_context_fmha"),
    ],
)
def test_an_engine_without_paged_attention_serves_neither_reuse_nor_chunks(
    sections: dict[str, Any], keys: str, context: Context, built: Callable[..., None]
) -> None:
    built({"use_paged_context_fmha": False})
    with pytest.raises(TrtbuildError, match=keys) as error:
        context(target="tensorrt", **sections)
    assert ": false, or build the engine with engine.use_paged_context_fmha: true" in error.value.hint


def test_without_either_it_serves(context: Context, built: Callable[..., None]) -> None:
    built({"use_paged_context_fmha": False})
    off = {"scheduling": {"chunked_context": False}, "kv_cache": {"enable_block_reuse": False}}
    assert context(target="tensorrt", **off).engine_parameters["enable_kv_cache_reuse"] is False


@pytest.mark.parametrize("plugins", [None, {}, {"gemm_plugin": None}])
def test_an_engine_that_does_not_say_is_warned_about(
    plugins: dict[str, Any] | None, context: Context, built: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    built(plugins)
    with caplog.at_level(logging.WARNING, logger="trtbuild"):
        context(target="tensorrt")
    assert "does not say whether use_paged_context_fmha was enabled" in caplog.text


def test_an_engine_that_has_it_is_not(
    context: Context, built: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    built({"use_paged_context_fmha": True})
    with caplog.at_level(logging.WARNING, logger="trtbuild"):
        context(target="tensorrt")
    assert "use_paged_context_fmha" not in caplog.text


@pytest.mark.parametrize(
    ("name", "asked", "has"), [("max_seq_len", 200, 128), ("max_num_tokens", 8192, 4096), ("max_beam_width", 2, 1)]
)
def test_a_limit_beyond_the_engine_s_is_refused(
    name: str, asked: int, has: int, context: Context, built: Callable[..., None]
) -> None:
    built(**{name: has})
    with pytest.raises(
        TrtbuildError, match=rf"limits.{name}={asked} in trtbuild.yaml exceeds {name}={has} in .*config"
    ):
        context(target="tensorrt", limits={name: asked})


@pytest.mark.parametrize(
    ("sections", "plugins", "build", "field"),
    [
        ({"engine": {"weight_streaming": True}}, {}, {"weight_streaming": False}, "engine.weight_streaming"),
        ({"lora": {"target_modules": ["attn_qkv"]}}, {"lora_plugin": None}, {}, "lora"),
        ({"speculative": {"mode": "lookahead"}}, {}, {"max_draft_len": 0}, "speculative.mode"),
    ],
)
def test_what_an_engine_was_not_built_for_is_refused(
    sections: dict[str, Any], plugins: dict[str, Any], build: dict[str, Any], field: str, context: Context,
    built: Callable[..., None],
) -> None:  # fmt: skip
    built(plugins, **build)
    with pytest.raises(TrtbuildError, match=f"{field} in trtbuild.yaml, and .* is of an engine built without"):
        context(target="tensorrt", **sections)


def test_a_policy_that_the_backend_does_not_know_is_refused(context: Context) -> None:
    with pytest.raises(UsageError, match="static_batch is unknown to Triton"):
        context(target="tensorrt", scheduling={"policy": "static_batch"})


def test_the_reference_has_no_parameters_of_engines(context: Context) -> None:
    assert context().engine_parameters == {}
