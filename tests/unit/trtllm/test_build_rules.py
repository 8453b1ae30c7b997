"""What trtllm-build refuses or switches off is found before anything is converted, with a way out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.unit.trtllm.engine_jobs import make_job, q_adapter

from trtbuild.errors import UsageError
from trtbuild.targets.base import check_job, load_target
from trtbuild.trtllm.job_rules import ERRORS

OFF = {"scheduling": {"chunked_context": False}, "kv_cache": {"enable_block_reuse": False}}


def engine(**fields: Any) -> dict[str, Any]:
    """Return the section `engine`."""
    return {"engine": fields}


def speculative(mode: str, **fields: Any) -> dict[str, Any]:
    """Return the section `speculative`."""
    return {"speculative": {"mode": mode, **fields}}


#: Job -> (what the message must say, what the hint must say).
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"release": "1.3.0rc21"}, "1.3.0rc21 builds no TensorRT engines", "build with --target pytorch; or set tensorrt_llm to 1.2.1"),
    ({"release": "1.4.0rc4"}, "1.3.0rc20 was the last", "--target pytorch"),
    ({"release": "0.21.0", "parallel": {"pp_size": 7}}, "pp_size=7 does not divide the 32 layers, and TensorRT-LLM 0.21.0", "1, 2, 4, 8, 16, 32, or set tensorrt_llm to 1.0.0 or later"),
    ({"release": "0.21.0", "architecture": "Qwen3ForCausalLM"}, "TensorRT-LLM 0.21.0 builds no engine of Qwen3ForCausalLM", "set tensorrt_llm to 1.0.0 or later"),
    ({"quant_algo": "FP8", "gpu": "a100"}, r"FP8 does not run on a100 .SM80.: it needs SM89", "int4_awq"),
    ({"quant_algo": "FP8", "gpu": "sm86"}, "FP8 does not run on sm86", "int4_awq"),
    ({"quant_algo": "NVFP4", "gpu": "h100"}, "NVFP4 does not run on h100", "int4_awq"),
    ({"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN", "gpu": "l40s"}, "needs SM90 or later", "int4_awq"),
    ({"gpu": "t4"}, r"bfloat16 does not run on t4 .SM75.: it needs SM80", "--target reference"),
    ({**engine(multiple_profiles=True), "limits": {"opt_num_tokens": 64}}, "opt_num_tokens=64 and engine.multiple_profiles", "empty"),
    ({"limits": {"opt_num_tokens": 9000, "max_num_tokens": 8192}}, "opt_num_tokens=9000 exceeds limits.max_num_tokens=8192", "8192"),
    ({"kv_cache": {"tokens_per_block": 48}}, "tokens_per_block=48 is no block size", "8, 16, 32, 64, 128"),
    ({"kv_cache": {"tokens_per_block": 256}}, "tokens_per_block=256 is no block size", "8, 16, 32, 64, 128"),
    ({"limits": {"max_batch_size": 8, "max_num_tokens": 16}}, "max_num_tokens=16 is below kv_cache.tokens_per_block=32", ">= 32"),
    ({"scheduling": {"policy": "static_batch"}}, "static_batch is unknown to Triton", "max_utilization"),
    ({**engine(use_paged_context_fmha=False)}, "kv_cache.enable_block_reuse and scheduling.chunked_context need engine.use_paged_context_fmha",
     "kv_cache.enable_block_reuse: false, scheduling.chunked_context: false"),
    ({**engine(context_fmha=False), "scheduling": {"chunked_context": False}}, "kv_cache.enable_block_reuse needs .* engine.context_fmha is false", "false"),
    ({"quant_algo": "W4A16_AWQ", "kv": "FP8"}, "kv_cache=fp8 the builder switches engine.use_paged_context_fmha off, since weights are W4A16_AWQ",
     "quantization.kv_cache: auto"),
    ({"kv": "FP8"}, "weights are not quantized", "quantization.kv_cache: auto"),
    ({"quant_algo": "MIXED_PRECISION", "kv": "FP8"}, "weights are MIXED_PRECISION", "quantization.kv_cache: auto"),
    ({"quant_algo": "FP8", "kv": "FP8", "gpu": "a100"}, "SM80 has no FP8 attention", "quantization.kv_cache: auto"),
    ({"kv": "INT8"}, "quantization.kv_cache=int8 the builder switches engine.use_paged_context_fmha off", "kv_cache: auto"),
    ({"quant_algo": "FP8", "kv": "FP8", **engine(use_fp8_context_fmha=False)}, "use_fp8_context_fmha=false has no effect", "empty"),
    (engine(use_fp8_context_fmha=True), "needs weights of FP8, W4A8_AWQ, NVFP4; these are not quantized", "fp8"),
    ({"quant_algo": "FP8", "gpu": "a100", **OFF, **engine(use_fp8_context_fmha=True, use_paged_context_fmha=False)}, "needs SM89 or later", "empty"),
    ({"quant_algo": "FP8", **engine(use_fp8_context_fmha=True)}, "needs quantization.kv_cache=fp8 together", "quantization.kv_cache: fp8"),
    ({"quant_algo": "FP8", "kv": "FP8", **OFF, **engine(use_fp8_context_fmha=True, context_fmha=False)}, "needs engine.context_fmha", "context_fmha: true"),
    (engine(reduce_fusion=True), "with parallel.tp_size=1 there is none", "reduce_fusion: false"),
    ({"architecture": "Qwen2ForCausalLM", "parallel": {"tp_size": 2}, **engine(reduce_fusion=True)}, "this is Qwen2ForCausalLM", "reduce_fusion: false"),
    ({"parallel": {"tp_size": 2}, **engine(user_buffer=True)}, "user_buffer needs engine.reduce_fusion", "reduce_fusion: true"),
    ({"parallel": {"tp_size": 2}, "gpu": "l4", "quant_algo": "FP8", **engine(user_buffer=True, reduce_fusion=True)}, "does not work below SM90", "user_buffer: false"),
    (engine(norm_quant_fusion=True), "norm_quant_fusion is for LlamaForCausalLM in NVFP4", "norm_quant_fusion: false"),
    ({"quant_algo": "NVFP4", "parallel": {"tp_size": 2}, **engine(norm_quant_fusion=True, reduce_fusion=True)}, "exclude each other", "false"),
    ({"quant_algo": "FP8", **engine(gemm_swiglu_plugin="fp8", use_fused_mlp=False)}, "needs engine.use_fused_mlp", "use_fused_mlp: true"),
    ({"quant_algo": "FP8", **engine(gemm_swiglu_plugin="fp8", low_latency_gemm_swiglu_plugin="fp8")}, "only one can be on", "small batches"),
    (engine(gemm_swiglu_plugin="fp8"), "gemm_swiglu_plugin=fp8 needs FP8 weights", "disable"),
    (engine(low_latency_gemm_plugin="fp8"), "low_latency_gemm_plugin=fp8 needs FP8 weights", "disable"),
    (engine(low_latency_gemm_swiglu_plugin="fp8"), "low_latency_gemm_swiglu_plugin=fp8 needs FP8 weights", "disable"),
    ({"quant_algo": "FP8", "gpu": "b200", **engine(low_latency_gemm_plugin="fp8")}, "trtllm-build refuses it on SM100", "disable"),
    ({"quant_algo": "FP8", "gpu": "l40s", **engine(gemm_swiglu_plugin="fp8")}, "has kernels for SM90 only", "disable"),
    ({"quant_algo": "W8A16", "gpu": "b200"}, "refuses W8A16 on SM100 to SM119", "nvfp4"),
    ({"quant_algo": "W4A8_AWQ", "gpu": "b300"}, "refuses W4A8_AWQ on SM100 to SM119", "nvfp4"),
    ({"kv": "INT8", "gpu": "b200", **OFF}, "refuses an INT8 KV cache", "fp8 or auto"),
    (engine(pp_reduce_scatter=True), "is for MixtralForCausalLM; this is LlamaForCausalLM", "pp_reduce_scatter: false"),
    (engine(weight_streaming=True, gemm_plugin="auto"), "cannot stream weights that a plugin holds", "gemm_plugin: disable"),
    (engine(weight_streaming=True, strip_plan=True), "weight_streaming and engine.strip_plan", "one of them"),
    (engine(weight_streaming=True, fast_build=True), "weight_streaming and engine.fast_build", "one of them"),
    (engine(gpu_weights_percent=0.5), "gpu_weights_percent=0.5 needs engine.weight_streaming", "weight_streaming: true"),
    (speculative("eagle3", max_draft_len=3), "mode=eagle3 exists in the LLM API only", "--target pytorch"),
    (speculative("ngram", max_draft_len=3), "mode=ngram exists in the LLM API only; engines have draft_target, lookahead", "--target pytorch"),
    (speculative("mtp"), "mode=mtp exists in the LLM API only", "--target pytorch"),
    (speculative("medusa"), r"needs a checkpoint with its heads \(Medusa", "speculative.mode: draft_target; use speculative.mode: lookahead"),
    (speculative("redrafter"), r"needs a checkpoint with its heads \(ReDrafter", "speculative.mode: draft_target; use speculative.mode: lookahead"),
    (speculative("draft_target"), "needs speculative.max_draft_len", "e.g. 4"),
    (speculative("none", max_draft_len=4), "has no meaning with speculative.mode=none", "empty"),
    (speculative("lookahead", max_draft_len=14), "max_draft_len=14 is below the 15 draft tokens", "empty"),
    (speculative("lookahead", lookahead=[4, 1, 4]), "drafts no token", "2 or more"),
    ({"architecture": "EagleForCausalLM", **speculative("eagle"), "limits": {"max_batch_size": 513}}, "max_batch_size=513: .*eagle takes 512", "512"),
    ({"architecture": "EagleForCausalLM", **speculative("eagle", max_draft_len=257)}, "max_draft_len=257: .*eagle takes 256", "256"),
    ({**speculative("draft_target", max_draft_len=4), **OFF, **engine(use_paged_context_fmha=False)}, "needs engine.use_paged_context_fmha", "true"),
    ({**speculative("lookahead"), **engine(gather_context_logits=True)}, "gather_context_logits and speculative.mode=lookahead", "false"),
    ({**speculative("lookahead"), "limits": {"max_beam_width": 2}}, "max_beam_width=2 and speculative.mode=lookahead", "max_beam_width: 1"),
    ({"lora": {"target_modules": ["q_proj"]}}, "unknown q_proj", "attn_qkv, attn_q"),
]  # fmt: skip


@pytest.mark.parametrize(("job", "message", "hint"), REFUSED, ids=[message for _, message, _ in REFUSED])
def test_what_cannot_be_built_is_refused_with_a_way_out(job: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        load_target("tensorrt").check(make_job(**job))
    assert hint in error.value.hint


#: The way out of a refusal, taken.
TAKEN: list[dict[str, Any]] = [
    {},
    {"release": "1.0.0", "parallel": {"pp_size": 7}, "architecture": "Qwen3MoeForCausalLM"},
    {"release": "0.21.0", "parallel": {"pp_size": 8}},
    {"quant_algo": "FP8", "kv": "FP8", "gpu": "h100"},
    {"quant_algo": "NVFP4", "kv": "FP8", "gpu": "b200", **engine(norm_quant_fusion=True)},
    {"quant_algo": "W4A16_AWQ", "kv": "FP8", **OFF, **engine(use_paged_context_fmha=False)},
    {"kv": "INT8", **OFF, **engine(use_paged_context_fmha=False)},
    {"quant_algo": "W8A16", "gpu": "rtx5090"},
    {"quant_algo": "FP8", "gpu": "l4"},
    {"quant_algo": "FP8", "gpu": "sm90"},
    {**engine(weight_streaming=True, gpu_weights_percent=0.5)},
    {"quant_algo": "FP8", "gpu": "h100", "parallel": {"tp_size": 2}, **engine(reduce_fusion=True, user_buffer=True, gemm_swiglu_plugin="fp8")},
    {"architecture": "MixtralForCausalLM", **engine(pp_reduce_scatter=True)},
    {"architecture": "EagleForCausalLM", **speculative("eagle", max_draft_len=63), "limits": {"max_batch_size": 128}},
    {"limits": {"max_beam_width": 4}},
    {"lora": {"target_modules": ["attn_qkv", "mlp_4h_to_h"]}},
]  # fmt: skip


@pytest.mark.parametrize("job", TAKEN)
def test_what_can_be_built_passes_without_a_note(job: dict[str, Any]) -> None:
    assert load_target("tensorrt").check(make_job(**job)) == []


@pytest.mark.parametrize(
    ("job", "note"),
    [
        ({"limits": {"max_num_tokens": 32768}}, "advises against more than 16384"),
        (speculative("lookahead") | {"limits": {"max_batch_size": 1024}}, "max_num_tokens becomes 16384"),
        ({"parallel": {"tp_size": 2}, **engine(reduce_fusion=True, user_buffer=True)}, "documented for FP8 Llama only"),
        ({"positions": 32768, "limits": {"max_num_tokens": 8192}, "scheduling": {"chunked_context": False}},
         "prompts are limited to 8192 tokens: chunked_context is off .* they may have 32767"),
        (engine(weight_sparsity=True), "that the weights are 2:4 pruned is not checked"),
        (engine(strip_plan=True), "trtllm-refit"),
        (engine(gather_generation_logits=True), "deprecated"),
        (engine(log_level="error"), "prints nothing, so engine.stall_timeout_s=1800 limits the whole build"),
        ({"release": "1.3.0rc20"}, "last candidate with engines"),
        ({"release": "1.2.9"}, "taken for 1.2.1"),
        ({**speculative("draft_target", max_draft_len=4, draft_model="/models/small"), "serving": {"mode": "orchestrator"}}, r"a build of its own \(/models/small\)"),
    ],
)  # fmt: skip
def test_what_should_be_known_is_a_note(job: dict[str, Any], note: str) -> None:
    notes = check_job(make_job(**job))
    assert any(re.search(note, each) for each in notes), notes


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(UsageError) as error:
        load_target("tensorrt").check(make_job(**engine(reduce_fusion=True, pp_reduce_scatter=True)))
    assert "tp_size=1" in error.value.message
    assert "MixtralForCausalLM" in error.value.message


def test_every_rule_names_its_source_and_can_be_broken() -> None:
    assert all(rule.source and (rule.hint or rule.ways) for rule in ERRORS)
    jobs = [make_job(**job) for job, _, _ in REFUSED]
    untested = [
        rule.source
        for rule in ERRORS
        if not any(rule.applies(job) for job in jobs) and rule.source != "4.1: --max_lora_rank"
    ]
    assert untested == ["4.1: --lora_target_modules"]


class TestAdapters:
    def test_one_of_a_larger_rank_is_refused(self, tmp_path: Path) -> None:
        adapter = q_adapter(tmp_path / "a")
        with pytest.raises(UsageError, match="lora.max_rank=1") as error:
            load_target("tensorrt").check(make_job(lora={"adapters": [str(adapter)], "max_rank": 1}))
        assert "set lora.max_rank: " in error.value.hint

    def test_one_that_changes_other_modules_is_refused(self, tmp_path: Path) -> None:
        adapter = q_adapter(tmp_path / "a")
        lora = {"adapters": [str(adapter)], "target_modules": ["attn_dense"]}
        with pytest.raises(UsageError, match="changes attn_q; lora adapts attn_dense") as error:
            load_target("tensorrt").check(make_job(lora=lora))
        assert "[attn_q, attn_k, attn_v, attn_dense]" in error.value.hint
