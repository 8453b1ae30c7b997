"""The arguments of trtllm-build: golden lists of releases, every field accounted for, values that the builder would choose itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.trtllm.engine_jobs import make_job, q_adapter

from trtbuild.errors import UsageError
from trtbuild.spec import Engine, Limits, Lora, Speculative
from trtbuild.trtllm.build_options import CALLER, ELSEWHERE, FIXED, OPTIONS, arguments, requested
from trtbuild.trtllm.versions import RELEASES, Feature

WITH_ENGINES = [release.name for release in RELEASES if release.has(Feature.ENGINE)]
#: Kind of every option in the tables 4.1 and 4.2 of the checkpoint specification that trtbuild uses, typed in by hand.
SPECIFIED = {
    "checkpoint_dir": "path", "output_dir": "path", "max_batch_size": "int", "max_input_len": "int", "max_seq_len": "int",
    "max_beam_width": "int", "max_num_tokens": "int", "opt_num_tokens": "int", "kv_cache_type": "choice",
    "input_timing_cache": "path", "output_timing_cache": "path", "profiling_verbosity": "choice", "strip_plan": "flag",
    "weight_sparsity": "flag", "weight_streaming": "flag", "fast_build": "flag", "workers": "int", "log_level": "choice",
    "monitor_memory": "flag", "logits_dtype": "choice", "gather_context_logits": "flag", "gather_generation_logits": "flag",
    "lora_dir": "list", "lora_ckpt_source": "choice", "lora_target_modules": "list", "max_lora_rank": "int",
    "speculative_decoding_mode": "choice", "max_draft_len": "int", "gpt_attention_plugin": "dtype", "gemm_plugin": "dtype",
    "gemm_swiglu_plugin": "choice", "lora_plugin": "dtype", "moe_plugin": "dtype", "nccl_plugin": "dtype",
    "low_latency_gemm_plugin": "choice", "low_latency_gemm_swiglu_plugin": "choice", "gemm_allreduce_plugin": "choice",
    "context_fmha": "switch", "remove_input_padding": "switch", "tokens_per_block": "int", "use_paged_context_fmha": "switch",
    "use_fp8_context_fmha": "switch", "multiple_profiles": "switch", "norm_quant_fusion": "switch", "reduce_fusion": "switch",
    "user_buffer": "switch", "use_fused_mlp": "switch", "pp_reduce_scatter": "switch",
}  # fmt: skip

#: An unquantized bfloat16 Llama with nothing said but its limits.
PLAIN = """
--checkpoint_dir ckpt --output_dir engine
--max_batch_size 64 --max_input_len 4095 --max_seq_len 4096 --max_beam_width 1 --max_num_tokens 8192 --opt_num_tokens 64
--kv_cache_type paged --tokens_per_block 32 --remove_input_padding enable
--gpt_attention_plugin auto --nccl_plugin auto --gemm_plugin auto --gemm_swiglu_plugin disable
--low_latency_gemm_plugin disable --low_latency_gemm_swiglu_plugin disable {since_0_19_plugin} --moe_plugin auto
--context_fmha enable --use_paged_context_fmha enable --use_fp8_context_fmha disable --multiple_profiles disable
{since_0_19_switch} --reduce_fusion disable --user_buffer disable --use_fused_mlp enable --pp_reduce_scatter disable
--lora_plugin disable --profiling_verbosity layer_names_only --output_timing_cache engine/timing.cache --workers 2 --log_level info
"""
OLD = PLAIN.format(since_0_19_plugin="", since_0_19_switch="").split()
NEW = PLAIN.format(
    since_0_19_plugin="--gemm_allreduce_plugin disable", since_0_19_switch="--norm_quant_fusion disable"
).split()
LIMITS = {"max_batch_size": 64, "max_seq_len": 4096}


@pytest.mark.parametrize(
    ("release", "expected"),
    [("0.17.0", OLD), ("0.18.2", OLD), ("0.19.0", NEW), ("0.20.0", NEW), ("0.21.0", NEW), ("1.0.0", NEW), ("1.1.0", NEW),
     ("1.2.1", NEW), ("1.3.0rc20", NEW)],
)  # fmt: skip
def test_the_arguments_of_a_plain_model_are_those_of_the_release(release: str, expected: list[str]) -> None:
    job = make_job(release=release, limits=LIMITS)
    assert arguments(job, Path("ckpt"), Path("engine"), workers=2) == expected


def test_everything_that_can_be_set_is_written(tmp_path: Path) -> None:
    adapter = q_adapter(tmp_path / "adapter")
    job = make_job(
        quant_algo="FP8",
        kv="FP8",
        gpu="h100",
        limits={**LIMITS, "max_input_len": 2048, "max_num_tokens": 4096, "opt_num_tokens": 128},
        kv_cache={"tokens_per_block": 64},
        parallel={"tp_size": 2},
        engine={
            "gemm_plugin": "fp8", "gemm_swiglu_plugin": "fp8", "low_latency_gemm_plugin": "fp8", "moe_plugin": "disable",
            "gemm_allreduce_plugin": "bfloat16", "reduce_fusion": True, "user_buffer": True, "logits_dtype": "float16",
            "gather_context_logits": True, "gather_generation_logits": True, "strip_plan": True, "weight_sparsity": True,
            "fast_build": True, "profiling_verbosity": "detailed", "monitor_memory": True, "log_level": "verbose",
        },
        lora={"adapters": [str(adapter)], "max_rank": 16},
    )  # fmt: skip
    assert arguments(job, Path("ckpt"), Path("out"), workers=2, input_timing_cache=Path("old.cache")) == (
        f"""--checkpoint_dir ckpt --output_dir out
        --max_batch_size 64 --max_input_len 2048 --max_seq_len 4096 --max_beam_width 1 --max_num_tokens 4096 --opt_num_tokens 128
        --kv_cache_type paged --tokens_per_block 64 --remove_input_padding enable
        --gpt_attention_plugin auto --nccl_plugin auto --gemm_plugin fp8 --gemm_swiglu_plugin fp8
        --low_latency_gemm_plugin fp8 --low_latency_gemm_swiglu_plugin disable --gemm_allreduce_plugin bfloat16 --moe_plugin disable
        --context_fmha enable --use_paged_context_fmha enable --use_fp8_context_fmha enable --multiple_profiles disable
        --norm_quant_fusion disable --reduce_fusion enable --user_buffer enable --use_fused_mlp enable --pp_reduce_scatter disable
        --logits_dtype float16 --gather_context_logits --gather_generation_logits --strip_plan --weight_sparsity --fast_build
        --lora_plugin auto --lora_dir {adapter} --lora_ckpt_source hf --lora_target_modules attn_q attn_k attn_v --max_lora_rank 16
        --profiling_verbosity detailed --monitor_memory --input_timing_cache old.cache --output_timing_cache out/timing.cache
        --workers 2 --log_level verbose""".split()
    )


def test_names_and_kinds_are_those_of_the_specification() -> None:
    assert {option.name: option.kind for option in OPTIONS} == SPECIFIED


def test_every_field_of_the_sections_has_an_option_or_a_reader_elsewhere() -> None:
    sections = {"limits": Limits, "engine": Engine, "speculative": Speculative, "lora": Lora}
    fields = {f"{name}.{field}" for name, section in sections.items() for field in section.__struct_fields__}
    places = {option.place for option in OPTIONS} - {CALLER, FIXED, "kv_cache.tokens_per_block"}
    assert places | set(ELSEWHERE) == fields
    assert not places & set(ELSEWHERE)


@pytest.mark.parametrize("release", WITH_ENGINES)
def test_limits_and_attention_are_explicit_in_every_release(release: str) -> None:
    written = arguments(make_job(release=release), Path("ckpt"), Path("engine"))
    for option in (
        "max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens", "opt_num_tokens", "max_beam_width", "kv_cache_type",
        "tokens_per_block", "gemm_plugin", "context_fmha", "use_paged_context_fmha", "use_fp8_context_fmha", "remove_input_padding",
        "workers",
    ):  # fmt: skip
        assert f"--{option}" in written


@pytest.mark.parametrize("release", ["0.17.0", "0.18.2"])
@pytest.mark.parametrize(
    ("engine", "field"),
    [({"gemm_allreduce_plugin": "float16"}, "engine.gemm_allreduce_plugin=float16"), ({"norm_quant_fusion": True}, "engine.norm_quant_fusion=True")],
)  # fmt: skip
def test_a_field_that_the_release_has_no_option_for_names_those_that_do(
    release: str, engine: dict[str, object], field: str
) -> None:
    with pytest.raises(UsageError, match=f"{field} needs .* which TensorRT-LLM {release} does not have") as error:
        requested(make_job(release=release, engine=engine))
    assert "0.19.0, 0.20.0" in error.value.hint
    assert "1.2.1" in error.value.hint
    assert "1.3.0rc29" not in error.value.hint


@pytest.mark.parametrize(
    ("algo", "dtype", "engine", "expected"),
    [
        (None, "bfloat16", {}, "auto"),
        (None, "float16", {}, "auto"),
        (None, "float32", {}, "disable"),
        ("FP8", "bfloat16", {}, "disable"),
        ("FP8", "bfloat16", {"gemm_plugin": "fp8"}, "fp8"),
        ("W4A16_AWQ", "float16", {}, "disable"),
        ("NVFP4", "bfloat16", {}, "nvfp4"),
        (None, "bfloat16", {"weight_streaming": True}, "disable"),
    ],
)
def test_the_gemm_plugin_suits_the_weights(
    algo: str | None, dtype: str, engine: dict[str, object], expected: str
) -> None:
    assert requested(make_job(quant_algo=algo, dtype=dtype, engine=engine))["gemm_plugin"] == expected


@pytest.mark.parametrize(
    ("algo", "kv", "gpu", "expected"),
    [("FP8", "FP8", "h100", True), ("FP8", "FP8", None, True), ("NVFP4", "FP8", "b200", True), ("W4A8_AWQ", "FP8", "l40s", True),
     ("FP8", None, "h100", False), ("FP8", "FP8", "a100", False), ("W4A16_AWQ", "FP8", "h100", False), (None, None, "h100", False)],
)  # fmt: skip
def test_fp8_attention_is_asked_for_where_weights_cache_and_gpu_have_it(
    algo: str | None, kv: str | None, gpu: str | None, expected: bool
) -> None:
    assert requested(make_job(quant_algo=algo, kv=kv, gpu=gpu))["use_fp8_context_fmha"] is expected


def test_several_profiles_exclude_the_tuning_point() -> None:
    assert requested(make_job(engine={"multiple_profiles": True}))["opt_num_tokens"] is None


@pytest.mark.parametrize(("is_chunked", "longest"), [(False, 8192), (True, 32767)])
def test_the_usable_prompt_is_what_the_builder_is_told(is_chunked: bool, longest: int) -> None:
    job = make_job(
        positions=32768,
        limits={"max_seq_len": 32768, "max_num_tokens": 8192},
        scheduling={"chunked_context": is_chunked},
    )
    values = requested(job)
    assert (values["max_input_len"], values["max_seq_len"], values["max_num_tokens"]) == (longest, 32768, 8192)


def test_a_prompt_without_room_for_an_answer_is_refused_before_the_builder() -> None:
    with pytest.raises(
        UsageError, match="max_input_len=8192 leaves no room for an answer within limits.max_seq_len=8192"
    ):
        make_job(limits={"max_input_len": 8192, "max_seq_len": 8192})


@pytest.mark.parametrize(
    ("speculative", "mode", "draft"),
    [({"mode": "draft_target", "max_draft_len": 5}, "draft_tokens_external", 5), ({"mode": "lookahead"}, "lookahead_decoding", 15),
     ({"mode": "lookahead", "lookahead": [7, 7, 7]}, "lookahead_decoding", 83), ({}, None, None)],
)  # fmt: skip
def test_speculation_has_the_builder_s_name_and_enough_tokens(
    speculative: dict[str, object], mode: str | None, draft: int | None
) -> None:
    values = requested(make_job(speculative=speculative, limits={"max_batch_size": 256, "max_seq_len": 2048}))
    assert (values["speculative_decoding_mode"], values["max_draft_len"]) == (mode, draft)
    assert values["max_num_tokens"] >= 256 * ((draft or 0) + 1)
