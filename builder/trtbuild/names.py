"""The names a user may type for quantization, targets and dtypes, as plain tables that import nothing.

Knows which names exist; knows nothing about what they do.
"""

from __future__ import annotations

from typing import Literal

#: Every quantization name of the command line -> what makes it.
QUANTIZATIONS: dict[str, str] = {
    "none": "trtbuild.quant.schemes:none",
    "fp8": "trtbuild.quant.schemes:fp8",
    "fp8_per_channel_per_token": "trtbuild.quant.schemes:fp8_per_channel_per_token",
    "fp8_block": "trtbuild.quant.schemes:fp8_block",
    "int4_awq": "trtbuild.quant.schemes:int4_awq",
    "int4_gptq": "trtbuild.quant.schemes:int4_gptq",
    "int4_rtn": "trtbuild.quant.schemes:int4_rtn",
    "w4a8_awq": "trtbuild.quant.schemes:w4a8_awq",
    "int8_smoothquant": "trtbuild.quant.smoothquant:int8_smoothquant",
    "int8_weight_only": "trtbuild.quant.schemes:int8_weight_only",
    "int4_weight_only": "trtbuild.quant.schemes:int4_weight_only",
    "nvfp4": "trtbuild.quant.schemes:nvfp4",
}

TARGETS = ("tensorrt", "pytorch", "reference")
#: Target -> what it is converted to: TensorRT-LLM rank files, or a unified (quantized) Hugging Face folder.
LAYOUTS: dict[str, str] = {"tensorrt": "ranks", "pytorch": "unified", "reference": "ranks"}

KV_CACHE_DTYPES = ("auto", "fp8", "int8")
DTYPES = ("auto", "float16", "bfloat16", "float32")
CALIBRATION_DTYPES = ("float32", "float16", "bfloat16")
EMBEDDINGS = ("replicated", "vocab", "hidden")
#: Group sizes the INT4 kernels of TensorRT-LLM know (checkpoint specification 2.9).
GROUP_SIZES = (64, 128)
#: Schemes with groups of a size that can be chosen.
GROUPED = ("int4_awq", "int4_gptq", "int4_rtn", "w4a8_awq")
SmoothQuantMode = Literal[
    "per_channel", "per_tensor", "per_channel_per_token", "per_channel_per_tensor", "per_tensor_per_token"
]
#: How `int8_smoothquant` scales weights and inputs -> TensorRT-LLM's name of it (checkpoint specification 1.4.1). The first is ModelOpt's
#: form; the others run in TensorRT-LLM's SmoothQuant plugins and are for engines only.
SMOOTHQUANT_MODES: dict[SmoothQuantMode, str] = {
    "per_channel": "W8A8_SQ_PER_CHANNEL",
    "per_tensor": "W8A8_SQ_PER_TENSOR_PLUGIN",
    "per_channel_per_token": "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN",
    "per_channel_per_tensor": "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN",
    "per_tensor_per_token": "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN",
}
#: What the next layer is calibrated on: the outputs of the layer as it was, or as it is quantized.
FEEDS = ("auto", "original", "quantized")
#: Folder of a checkpoint of rank files that holds the tokenizer.
TOKENIZER_FOLDER = "tokenizer"
#: Triton model of a draft model, as upstream's documentation has it.
DRAFT = "tensorrt_llm_draft"
