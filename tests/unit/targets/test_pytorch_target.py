"""The target pytorch: what it refuses before anything is converted, and what it writes beside the checkpoint."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from trtbuild.convert.run import plan_deployment
from trtbuild.errors import TrtbuildError
from trtbuild.gpus import find_gpu
from trtbuild.spec import parse
from trtbuild.targets.base import Job, check_job, load_target

MakeModel = Callable[..., Path]
Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def make_job(make_model: MakeModel) -> Callable[..., Job]:
    """Return a function that makes a job of sections of trtbuild.yaml; facts of the job can be replaced."""
    model = make_model()

    def make(*, dims: dict[str, Any] | None = None, gpu: str | None = None, release: str = "1.2.1", algo: Any = "", kv: Any = "", **sections: Any) -> Job:  # fmt: skip
        given = {"model": {"path": str(model)}, "target": "pytorch", "tensorrt_llm": release, **sections}
        deployment = parse(given, origin="test")
        job = Job.of(deployment, plan_deployment(deployment))
        changes: dict[str, Any] = {"dims": replace(job.dims, **(dims or {}))}
        changes |= {} if algo == "" else {"quant_algo": algo}
        changes |= {} if kv == "" else {"kv_cache_quant_algo": kv}
        changes |= {"gpu": find_gpu(gpu)} if gpu else {}
        return replace(job, **changes)

    return make


def check(job: Job) -> list[str]:
    return check_job(job)


EXPERTS = {"num_experts": 8, "experts_per_token": 2, "moe_intermediate_size": 64, "architecture": "MixtralForCausalLM"}


def test_a_plain_model_has_nothing_to_note(make_job: Callable[..., Job]) -> None:
    assert check(make_job()) == []


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"release": "0.21.0"}, "use one of 1.0.0"),
        ({"algo": "W8A8_SQ_PER_CHANNEL"}, "the nearest is fp8"),
        ({"algo": "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN"}, "no INT8 SmoothQuant"),
        ({"algo": "W4A16_GPTQ"}, "no GPTQ"),
        ({"algo": "W8A16"}, "fp8_per_channel_per_token"),
        ({"algo": "W4A16"}, "int4_awq"),
        ({"algo": "MXFP8"}, "does not load weights of format MXFP8"),
        ({"algo": "SOMETHING"}, "it loads FP8"),
        ({"kv": "INT8"}, "no INT8 KV cache"),
        ({"kv": "NVFP4", "gpu": "h100"}, "SM100 or SM103"),
        ({"kv": "NVFP4", "release": "1.0"}, "use auto, fp8"),
        ({"parallel": {"tp_size": 3}}, "num_attention_heads=4 cannot be split over tp=3"),
        ({"parallel": {"pp_size": 7}}, "cannot fill pp=7"),
        ({"parallel": {"tp_size": 2, "ep_size": 2}}, "has no experts"),
        ({"llm_api": {"attention_dp": True}}, "parallel.tp_size is 1"),
        ({"llm_api": {"moe_backend": "CUTLASS"}}, "has no experts"),
        ({"dims": EXPERTS, "algo": "W4A16_AWQ"}, "4-bit weights and 16-bit inputs"),
        ({"dims": EXPERTS, "llm_api": {"moe_backend": "TRTLLM"}}, "TRTLLM has no kernels in 1.2-era source; these have: CUTLASS"),
        ({"dims": EXPERTS, "algo": "FP8", "gpu": "h100", "llm_api": {"moe_backend": "TRTLLM"}}, "use llm_api.moe_backend CUTLASS"),
        ({"dims": EXPERTS, "llm_api": {"moe_backend": "AUTO"}, "release": "1.0"}, "is not allowed in TensorRT-LLM 1.0.3: use CUTLASS"),
        ({"dims": EXPERTS, "llm_api": {"moe_backend": "WIDEEP"}, "release": "1.4"}, "is not allowed in TensorRT-LLM 1.4.0rc4"),
        ({"limits": {"max_beam_width": 2}, "speculative": {"mode": "ngram", "max_draft_len": 2}}, "no beam search with speculation"),
        ({"speculative": {"mode": "medusa"}}, "the nearest is eagle3"),
        ({"speculative": {"mode": "lookahead"}}, "the nearest is ngram"),
        ({"speculative": {"mode": "redrafter"}}, "with target tensorrt"),
        ({"llm_api": {"extra": {"cuda_graph_config": {"batch_sizes": [4, 2]}}}}, "rising numbers"),
        ({"llm_api": {"extra": {"cuda_graph_config": {"batch_sizes": [1, 2], "max_batch_size": 4}}}}, "must agree"),
        ({"llm_api": {"extra": {"cuda_graph_config": {"batch_sizes": [1, 4], "max_batch_size": 4}}}, "release": "1.0"}, "leave max_batch_size out"),
        ({"llm_api": {"extra": {"disk_cache": 1}}}, "no argument 'disk_cache'"),
        ({"kv_cache": {"max_attention_window": [8, 8, 8, 8]}}, "the model has 3 layers"),
        ({"dims": {"architecture": "DeepseekV3ForCausalLM"}, "gpu": "h100"}, "set scheduling.chunked_context: false"),
        ({"dims": {"architecture": "DeepseekV3ForCausalLM"}, "gpu": "l40s", "scheduling": {"chunked_context": False}}, "set kv_cache.enable_block_reuse: false"),
        ({"dims": {"architecture": "DeepseekV2ForCausalLM"}, "release": "1.4"}, "no longer has"),
    ],
)  # fmt: skip
def test_what_the_backend_cannot_serve_is_refused_with_what_it_can(
    make_job: Callable[..., Job], facts: dict[str, Any], message: str
) -> None:
    with pytest.raises(TrtbuildError) as error:
        check(make_job(**facts))
    assert message in str(error.value)
    assert error.value.hint


@pytest.mark.parametrize(
    ("facts", "note"),
    [
        ({"kv": "FP8"}, "works without calibrated scales"),
        ({"dims": {"architecture": "GPTNeoXForCausalLM"}}, "unverified: GPTNeoXForCausalLM is not among"),
        ({"dims": {"architecture": "DeepseekV3ForCausalLM"}}, "hardware.gpu is not said"),
        ({"dims": EXPERTS, "algo": "fp8_pb_wo", "gpu": "b200"}, "unverified: experts of format FP8_BLOCK_SCALES on b200 (SM100): CUTLASS"),
        ({"dims": EXPERTS, "algo": "FP8_PER_CHANNEL_PER_TOKEN"}, "these have: none"),
        ({"dims": EXPERTS, "llm_api": {"moe_backend": "TRTLLM"}, "release": "1.4"}, "unverified: experts"),
        ({"limits": {"max_input_len": 100}}, "is not enforced"),
        ({"speculative": {"mode": "mtp", "max_draft_len": 1}}, "needs a model with layers for multi-token prediction"),
        ({"speculative": {"mode": "draft_target", "max_draft_len": 1, "draft_model": "/d"}}, "overlap scheduler is switched off"),
        ({"llm_api": {"extra": {"cuda_graph_config": {"batch_sizes": [1, 2]}}}}, "batches of more than 2 requests run without CUDA graphs"),
        ({"llm_api": {"extra": {"cuda_graph_config": {"max_batch_size": 512}}}}, "the larger ones are never used"),
        ({"release": "1.0.0"}, "concluded from those of 1.1"),
        ({"release": "1.4"}, "no TensorRT inside"),
        ({"release": "1.3", "llm_api": {"extra": {"kv_cache_config": {"disk_cache_size": 1}}}}, "unverified: kv_cache_config.disk_cache_size"),
    ],
)  # fmt: skip
def test_what_is_doubtful_is_noted(make_job: Callable[..., Job], facts: dict[str, Any], note: str) -> None:
    assert any(note in found for found in check(make_job(**facts)))


@pytest.mark.parametrize(
    ("algo", "backend", "gpu"),
    [(None, None, "a100"), ("FP8", None, "l4"), ("NVFP4", "TRTLLM", "b200"), ("FP8_BLOCK_SCALES", "DEEPGEMM", "b300"), ("FP8", "VANILLA", "h100")],
)  # fmt: skip
def test_experts_with_kernels_are_not_noted(make_job: Callable[..., Job], algo: str | None, backend: str | None, gpu: str) -> None:  # fmt: skip
    assert check(make_job(dims=EXPERTS, algo=algo, gpu=gpu, llm_api={"moe_backend": backend})) == []


def test_a_build_holds_the_arguments_and_the_command_and_records_both(
    make_model: MakeModel, cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "trtbuild.yaml").write_text(
        yaml.safe_dump(
            {
                "model": {"path": str(make_model())},
                "target": "pytorch",
                "tensorrt_llm": "1.1.0",
                "quantization": {"scheme": "fp8_per_channel_per_token"},
                "serving": {"address": "0.0.0.0", "http_port": 8080},
                "limits": {"max_batch_size": 8},
            }
        )
    )
    out = tmp_path / "out"
    code, text, err = cli("build", tmp_path / "trtbuild.yaml", "-o", out, "--json")
    assert code == 0, err
    written = yaml.safe_load((out / "llm_api.yaml").read_text())
    assert (written["max_batch_size"], written["max_seq_len"]) == (8, 256)
    assert "quant_config" not in written
    assert (out / "checkpoint" / "hf_quant_config.json").is_file()
    artifact = json.loads(text)["manifest"]["stages"]["engine"]
    recorded = {key: artifact[key] for key in ("tensorrt_llm", "llm_api", "script", "command")}
    assert recorded == {
        "tensorrt_llm": "1.1.0",
        "llm_api": "llm_api.yaml",
        "script": "serve.sh",
        "command": ["trtllm-serve", "./checkpoint", "--extra_llm_api_options", "llm_api.yaml", "--host", "0.0.0.0", "--port", "8080"],
    }  # fmt: skip
    assert "unchanged" in cli("build", tmp_path / "trtbuild.yaml", "-o", out)[1]


def test_the_script_runs_the_command_in_its_own_folder_and_passes_options_on(
    make_job: Callable[..., Job], tmp_path: Path
) -> None:
    build, tools = tmp_path / "a build", tmp_path / "tools"
    build.mkdir()
    tools.mkdir()
    (tools / "trtllm-serve").write_text('#!/bin/sh\npwd\nprintf "%s\\n" "$@"\n')
    (tools / "trtllm-serve").chmod(0o755)
    load_target("pytorch").finish(make_job(), build, quiet=True)
    done = subprocess.run(
        [build / "serve.sh", "--log_level", "a b"], env={"PATH": f"{tools}:/usr/bin:/bin"}, capture_output=True, text=True, check=True
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        str(build), "./checkpoint", "--config", "llm_api.yaml", "--host", "127.0.0.1", "--port", "8000", "--log_level", "a b",
    ]  # fmt: skip


def test_more_ranks_than_a_node_has_gpus_start_through_the_launcher(
    make_job: Callable[..., Job], tmp_path: Path
) -> None:
    job = make_job(parallel={"tp_size": 2, "pp_size": 2}, hardware={"count": 2})
    artifact = load_target("pytorch").finish(job, tmp_path, quiet=True)
    assert artifact["command"][0] == "trtllm-llmapi-launch"
    assert yaml.safe_load((tmp_path / "llm_api.yaml").read_text())["gpus_per_node"] == 2


@pytest.mark.parametrize("verb", ["plan", "build"])
def test_a_mistake_shows_before_anything_is_written(make_model: MakeModel, cli: Cli, tmp_path: Path, verb: str) -> None:
    (tmp_path / "trtbuild.yaml").write_text(
        yaml.safe_dump(
            {"model": {"path": str(make_model())}, "target": "pytorch", "llm_api": {"extra": {"use_cuda_graph": True}}}
        )
    )
    options = ("-o", tmp_path / "out") if verb == "build" else ()
    code, out, err = cli(verb, tmp_path / "trtbuild.yaml", *options)
    assert (code, out) == (2, "")
    assert "cuda_graph_config" in err
    assert not (tmp_path / "out").exists()


def test_a_plan_tells_what_is_doubtful(make_model: MakeModel, cli: Cli) -> None:
    options = ("--target", "pytorch", "--quantization", "fp8_per_channel_per_token", "--kv-cache", "auto")
    model = make_model(eos_token_id=2)
    code, out, _ = cli("plan", model, *options, "--json")
    assert code == 0
    (note,) = json.loads(out)["notes"]
    assert "no repository can be rendered of this build" in note
    assert "holds no tokenizer" in note
    (model / "tokenizer.json").write_text("{}")
    assert json.loads(cli("plan", model, *options, "--json")[1])["notes"] == []


def test_tensor_parallel_sizes_that_do_not_fit_are_refused_by_name(make_job: Callable[..., Job]) -> None:
    with pytest.raises(TrtbuildError, match="valid tp sizes for this model: 1, 2, 4"):
        check(make_job(parallel={"tp_size": 3}))
