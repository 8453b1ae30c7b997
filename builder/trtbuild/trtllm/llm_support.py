"""What the PyTorch backend loads and runs: number formats, kernels for experts, architectures. Data of the support matrix.

Which format runs on which GPU is in `trtbuild.hardware`. Sources: LLM API specification 2.3 and 2.10 (formats), 3.2 (experts, 1.2-era
source), 3.4 (architectures).
"""

from __future__ import annotations

from trtbuild.trtllm.llm_arg_types import EVER, NEWEST, Life

#: Format of weights, by its name in hf_quant_config.json -> the releases whose loader has it. None: not quantized.
FORMATS: dict[str | None, Life] = {
    None: EVER,
    "FP8": EVER,
    "FP8_PER_CHANNEL_PER_TOKEN": EVER,
    "fp8_pb_wo": EVER,
    "FP8_BLOCK_SCALES": EVER,
    "W4A16_AWQ": EVER,
    "W4A8_AWQ": EVER,
    "NVFP4": EVER,
    "MIXED_PRECISION": EVER,
    "W4A8_NVFP4_FP8": EVER,
    "MXFP8": NEWEST,
    "W4A16_NVFP4": NEWEST,
}
#: Formats that no release loads -> why, and what comes nearest (2.10, 3.1).
NEVER: dict[str, tuple[str, str]] = {
    "W8A8_SQ_PER_CHANNEL": ("its loader has no INT8 SmoothQuant", "fp8 (SM89 and later), or int4_awq"),
    "W8A8_SQ_PER_TENSOR_PLUGIN": ("its loader has no INT8 SmoothQuant", "fp8 (SM89 and later), or int4_awq"),
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN": ("its loader has no INT8 SmoothQuant", "fp8 (SM89 and later), or int4_awq"),
    "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN": (
        "its loader has no INT8 SmoothQuant",
        "fp8 (SM89 and later), or int4_awq",
    ),
    "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN": ("its loader has no INT8 SmoothQuant", "fp8 (SM89 and later), or int4_awq"),
    "W4A16_GPTQ": ("its loader has no GPTQ", "int4_gptq or int4_awq of trtbuild, which write the AWQ form"),
    "W8A16_GPTQ": ("its loader has no GPTQ", "fp8_per_channel_per_token or fp8"),
    "W8A16": ("loading it was traced for fused layers only and never run", "fp8_per_channel_per_token or fp8"),
    "W4A16": ("its unified form has scales that the loader does not find", "int4_awq"),
    "W4A8_QSERVE_PER_GROUP": ("its loader has no QServe", "w4a8_awq"),
    "W4A8_QSERVE_PER_CHANNEL": ("its loader has no QServe", "w4a8_awq"),
    "mxfp4": ("it reads MXFP4 of GPT-OSS only", "nvfp4"),
}

_ALL = frozenset({80, 86, 89, 90, 100, 103, 120, 121})
_B200 = frozenset({100, 103})
#: Kernels for experts -> format -> SM numbers they have them for (3.2, 1.2-era source).
EXPERTS: dict[str, dict[str | None, frozenset[int]]] = {
    "CUTLASS": {
        None: _ALL,
        "FP8": _ALL - {80, 86},
        "FP8_BLOCK_SCALES": frozenset({90, 120}),
        "NVFP4": frozenset({100, 103, 120, 121}),
        "W4A8_AWQ": frozenset({89, 90}),
        "W8A16": _ALL,
    },
    "TRTLLM": {"FP8": _B200, "FP8_BLOCK_SCALES": _B200, "NVFP4": _B200, "W4A8_NVFP4_FP8": _B200},
    "DEEPGEMM": {"FP8_BLOCK_SCALES": _B200},
    "TRITON": {None: _ALL, "FP8": frozenset({90})},
    "CUTEDSL": {"FP8_BLOCK_SCALES": frozenset({100}), "NVFP4": _B200},
}
#: Runs everything, as a loop over linears: for debugging.
SLOW_EXPERTS = "VANILLA"
#: Names of one format in files -> its name in `EXPERTS`.
SAME_FORMAT: dict[str | None, str | None] = {"fp8_pb_wo": "FP8_BLOCK_SCALES"}

#: Architectures that are listed for 1.2 (3.4). The list is of families, so one that is not in it may still load.
LISTED: frozenset[str] = frozenset({
    "BertForSequenceClassification", "DeciLMForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "Exaone4ForCausalLM", "ExaoneMoEForCausalLM",
    "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration", "Glm4MoeForCausalLM", "GptOssForCausalLM", "LlamaForCausalLM", "Llama4ForConditionalGeneration",
    "MiniMaxM2ForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "MllamaForConditionalGeneration", "NemotronForCausalLM", "NemotronHForCausalLM",
    "Phi3ForCausalLM", "Phi4MMForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Qwen3NextForCausalLM",
})  # fmt: skip
#: Added between the copies of 1.2 and of mid 2026 (3.4).
LISTED_NEWEST: frozenset[str] = frozenset({
    "AfmoeForCausalLM", "BartForConditionalGeneration", "Cohere2ForCausalLM", "DeepseekV4ForCausalLM", "Gemma4ForCausalLM", "GlmMoeDsaForCausalLM",
    "KimiK25ForConditionalGeneration",
})  # fmt: skip
#: Gone in the copy of mid 2026.
DROPPED_NEWEST: frozenset[str] = frozenset({"DeepseekV2ForCausalLM", "ExaoneForCausalLM"})
#: Multi-head latent attention: kernels for chunked prefill and for reuse of KV blocks exist on these SMs only (3.4).
LATENT: frozenset[str] = frozenset({"DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM"})
LATENT_CHUNKED: frozenset[int] = _B200
LATENT_REUSE: frozenset[int] = frozenset({90, 100, 103})
