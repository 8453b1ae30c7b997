"""The repository of target pytorch: one model, its arguments, and both places that say how it is served."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.lora.adapters import Q, pair, write_adapter

from trtbuild.repo.lint import lint
from trtbuild.repo.proto import datatype_name, parse_config

MakeModel = Callable[..., Path]
Cli = Callable[..., tuple[int, str, str]]

#: The stock model's tensors, written down by hand (Triton specification 2.1): name, type, dims, o optional, n newest only.
INPUTS = """
text_input STRING -1
streaming BOOL 1 o
sampling_param_best_of INT32 1 o
sampling_param_top_k INT32 1 o
sampling_param_max_tokens INT32 1 o
sampling_param_temperature FP32 1 o
sampling_param_top_p FP32 1 o
sampling_param_frequency_penalty FP32 1 o
sampling_param_presence_penalty FP32 1 o
sampling_param_stop STRING -1 o
sampling_param_seed UINT64 1 o
sampling_param_exclude_input_from_output BOOL 1 o
sampling_param_return_perf_metrics BOOL 1 o
return_finish_reason BOOL 1 o
return_stop_reason BOOL 1 o
return_cumulative_logprob BOOL 1 o
stop BOOL 1 o
"""
NEWEST_INPUTS = """
lora_id UINT64 1 o
lora_name STRING 1 o
lora_path STRING 1 o
lora_ckpt_source STRING 1 o
"""
OUTPUTS = """
text_output STRING -1
finish_reason STRING -1
stop_reason STRING -1
cumulative_logprob FP32 -1
kv_cache_reused_block INT32 1
kv_cache_missed_block INT32 1
kv_cache_hit_rate FP32 1
kv_cache_alloc_new_blocks INT32 1
kv_cache_alloc_total_blocks INT32 1
arrival_time_ns INT64 1
first_scheduled_time_ns INT64 1
first_token_time_ns INT64 1
last_token_time_ns INT64 1
acceptance_rate FP32 1
total_accepted_draft_tokens INT32 1
total_draft_tokens INT32 1
"""


def table(text: str) -> set[tuple[str, str, tuple[int, ...], bool]]:
    rows = (line.split() for line in text.strip().splitlines())
    return {(name, f"TYPE_{dtype}", (int(dims),), bool(flags)) for name, dtype, dims, *flags in rows}


def declared(tensors: Any, *, outputs: bool = False) -> set[tuple[str, str, tuple[int, ...], bool]]:
    return {
        (each.name, datatype_name(each.data_type), tuple(each.dims), False if outputs else each.optional)
        for each in tensors
    }


@pytest.fixture
def served(make_model: MakeModel, tmp_path: Path, cli: Cli) -> Callable[..., Path]:
    """Return a function that builds for target pytorch, renders and returns the repository."""

    def make(*options: object, **sections: Any) -> Path:
        model = make_model()
        (model / "tokenizer.json").write_text("{}")
        (model / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
        data = {"model": {"path": str(model)}, "target": "pytorch", **sections}
        (tmp_path / "trtbuild.yaml").write_text(yaml.safe_dump(data))
        code, _, err = cli("build", tmp_path / "trtbuild.yaml", "-o", tmp_path / "build", "-q")
        assert code == 0, err
        code, out, err = cli("render", tmp_path / "build", "--json", *options)
        assert code == 0, err
        assert json.loads(out)["models"] == ["tensorrt_llm"]
        return tmp_path / "build" / "repository"

    return make


def config(repository: Path) -> Any:
    return parse_config((repository / "tensorrt_llm" / "config.pbtxt").read_text(encoding="utf-8"))


def arguments(repository: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((repository / "tensorrt_llm" / "1" / "model.yaml").read_text(encoding="utf-8")))


@pytest.mark.parametrize("release", ["1.0", "1.2.1", "1.4"])
def test_the_tensors_are_those_of_the_stock_model_of_the_release(served: Callable[..., Path], release: str) -> None:
    found = config(served(tensorrt_llm=release))
    newest = table(NEWEST_INPUTS) if release == "1.4" else set()
    assert declared(found.input) == table(INPUTS) | newest
    assert declared(found.output, outputs=True) == table(OUTPUTS)


@pytest.mark.parametrize("streaming", [True, False])
def test_one_value_decides_in_both_places_how_the_model_is_served(served: Callable[..., Path], streaming: bool) -> None:
    repository = served(serving={"streaming": streaming})
    found, own = config(repository), arguments(repository)["triton_config"]
    assert found.HasField("model_transaction_policy")
    assert (found.model_transaction_policy.decoupled, found.max_batch_size) == (streaming, 0)
    assert own == {"decoupled": streaming, "max_batch_size": 0, "cancellation_check_period_ms": 100}
    assert lint(repository) == []


def test_the_model_gets_the_arguments_that_trtllm_serve_would_get(served: Callable[..., Path], tmp_path: Path) -> None:
    repository = served(llm_api={"extra": {"enable_autotuner": False}}, limits={"max_batch_size": 3})
    found = arguments(repository)
    del found["triton_config"]
    assert found.pop("model") == str(tmp_path / "build" / "checkpoint")
    assert found == yaml.safe_load((tmp_path / "build" / "llm_api.yaml").read_text())
    assert (found["max_batch_size"], found["enable_autotuner"]) == (3, False)


def test_paths_are_those_of_the_container(served: Callable[..., Path], tmp_path: Path) -> None:
    lora = {"adapters": [str(write_adapter(tmp_path / "adapter", {Q: pair(4, 64, 64, seed=0)}))]}
    found = arguments(served("--path-map", f"{tmp_path}=/models", lora=lora))
    assert found["model"] == "/models/build/checkpoint"
    assert found["lora_config"]["lora_dir"] == ["/models/adapter"]


def test_a_text_in_a_value_stays_one_value(served: Callable[..., Path]) -> None:
    words = ['a"b', "x: y", "é家", "a\nb"]
    extra = {"env_overrides": {"A": "b: c\n- d", "E": "${x}", "J": "{{ model }}"}}
    repository = served(serving={"stop_words": words}, llm_api={"extra": extra})
    assert arguments(repository)["env_overrides"] == extra["env_overrides"]
    assert json.loads(config(repository).parameters["stop_words"].string_value) == words


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("decoupled: true", "decoupled: false"), "triton_config.decoupled is false, tensorrt_llm/config.pbtxt says true"),
        (("max_batch_size: 0", "max_batch_size: 4"), "triton_config.max_batch_size is 4"),
        (("triton_config:", "other:"), "no triton_config"),
        (("triton_config:", "a: [\ntriton_config:"), "cannot be read"),
    ],
)  # fmt: skip
def test_lint_finds_settings_that_config_pbtxt_does_not_repeat(
    served: Callable[..., Path], change: tuple[str, str], message: str
) -> None:
    repository = served()
    file = repository / "tensorrt_llm" / "1" / "model.yaml"
    file.write_text(file.read_text().replace(*change))
    [finding] = [each for each in lint(repository) if each.rule != "llmapi-argument"]
    assert (finding.rule, finding.file) == ("llmapi-differs", "tensorrt_llm/1/model.yaml")
    assert message in finding.message


def test_lint_finds_the_trap_of_the_stock_model(served: Callable[..., Path]) -> None:
    """Stock files say how the model is served in model.yaml only."""
    repository = served()
    file = repository / "tensorrt_llm" / "config.pbtxt"
    file.write_text(file.read_text().replace("model_transaction_policy { decoupled: true }", ""))
    assert [finding.rule for finding in lint(repository)] == ["llmapi-differs"]


@pytest.mark.parametrize(
    ("sections", "options", "message"),
    [
        ({"serving": {"chat_template": True}}, (), "takes prompts as they are"),
        ({"tensorrt_llm": "0.21"}, (), "no PyTorch backend"),
        ({"llm_api": {"extra": {"use_cuda_graph": True}}}, (), "calls it cuda_graph_config"),
        ({}, ("--checkpoint", "ranks"), "holds rank files"),
    ],
)
def test_what_the_model_cannot_serve_is_refused(
    make_model: MakeModel, tmp_path: Path, cli: Cli, sections: dict[str, Any], options: tuple[str, ...], message: str
) -> None:
    model = make_model()
    (model / "tokenizer.json").write_text("{}")
    (model / "tokenizer_config.json").write_text('{"eos_token": "</s>", "chat_template": "x"}')
    assert cli("convert", model, "-o", tmp_path / "ranks", "--target", "tensorrt", "-q")[0] == 0
    assert cli("convert", model, "-o", tmp_path / "folder", "--target", "pytorch", "-q")[0] == 0
    data = {"model": {"path": str(model)}, "target": "pytorch", **sections}
    (tmp_path / "trtbuild.yaml").write_text(yaml.safe_dump(data))
    checkpoint = tmp_path / (options[1] if options else "folder")
    code, _, err = cli("render", tmp_path / "trtbuild.yaml", "--checkpoint", checkpoint, "-o", tmp_path / "out")
    assert code == 2
    assert message in err
    assert not (tmp_path / "out").exists()


GOLDENS = Path(__file__).parents[2] / "goldens"


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies a quantized golden folder, with a tokenizer and with changes to its JSON files."""

    def make(name: str, *, config: dict[str, Any] | None = None, quantization: dict[str, Any] | None = None) -> Path:
        made = tmp_path / "folder"
        shutil.copytree(GOLDENS / name, made)
        (made / "tokenizer.json").write_text("{}")
        (made / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
        for file, change in (("config.json", config), ("hf_quant_config.json", quantization)):
            if change is not None:
                data = json.loads((made / file).read_text()) if (made / file).is_file() else {"quantization": {}}
                (data["quantization"] if file.startswith("hf_") else data).update(change)
                (made / file).write_text(json.dumps(data))
        return made

    return make


def render_folder(cli: Cli, checkpoint: Path, tmp_path: Path, **sections: Any) -> tuple[int, str]:
    data = {"model": {"path": str(checkpoint)}, "target": "pytorch", **sections}
    (tmp_path / "trtbuild.yaml").write_text(yaml.safe_dump(data))
    code, _, err = cli("render", tmp_path / "trtbuild.yaml", "--checkpoint", checkpoint, "-o", tmp_path / "out")
    assert (tmp_path / "out").exists() is (code == 0)
    return code, err


@pytest.mark.parametrize(
    "name",
    ["llama/hf/fp8_kvfp8", "llama/hf/fp8_block", "llama/hf/fp8_pc_pt", "llama/hf/int4_awq_g64", "llama/hf/w4a8_awq_g64", "llama/hf/nvfp4", "mixtral/hf/fp8"],
)  # fmt: skip
def test_folders_of_modelopt_are_served(folder: Callable[..., Path], tmp_path: Path, cli: Cli, name: str) -> None:
    code, err = render_folder(cli, folder(name), tmp_path)
    assert code == 0, err
    found = arguments(tmp_path / "out")
    assert found.get("kv_cache_config", {}).get("dtype") == ("fp8" if "kvfp8" in name else None)


def relabelled(algo: str) -> dict[str, Any]:
    """Return changes that declare another format than the tensors have, in both files."""
    inline = {"quantization_config": {"quant_method": "modelopt", "quant_algo": algo}}
    return {"config": inline, "quantization": {"quant_algo": algo}}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("llama/hf/int8_sq", {}, "the nearest is fp8"),
        ("llama/source", {"config": {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 64}}}, "awq"),
        ("llama/source", {"config": {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 64}}}, "gptq"),
        ("llama/source", {"config": {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}}, "bitsandbytes"),
        ("llama/hf/int4_awq_g64", {"quantization": {"quant_algo": "W4A8_AWQ"}}, "says quant_algo 'W4A8_AWQ', config.json 'W4A16_AWQ'"),
        ("llama/hf/int4_awq_g64", relabelled("W4A8_AWQ"), "weight_scale_2"),
        ("llama/hf/fp8_block", relabelled("FP8"), "input_scale"),
        ("llama/hf/fp8_block", {"quantization": {"quant_algo": "W9A9"}}, "W9A9"),
    ],
)  # fmt: skip
def test_folders_that_the_llm_api_refuses_are_refused_here(
    folder: Callable[..., Path], tmp_path: Path, cli: Cli, name: str, change: dict[str, Any], message: str
) -> None:
    code, err = render_folder(cli, folder(name, **change), tmp_path)
    assert code in (1, 2)
    assert message in err
    assert "hint:" in err and "Traceback" not in err


def test_a_folder_of_a_later_transformers_is_noted_with_both_versions(
    folder: Callable[..., Path], tmp_path: Path, cli: Cli
) -> None:
    checkpoint = folder("llama/hf/fp8_block", config={"transformers_version": "99.0"})
    code, err = render_folder(cli, checkpoint, tmp_path, tensorrt_llm="1.1.0")
    assert code == 0
    assert "written by transformers 99.0, and TensorRT-LLM 1.1.0 has 4.56" in err
