"""The names a user may type for quantization, targets and dtypes, as plain tables that import nothing.

Knows which names exist and which are not available yet; knows nothing about what they do.
"""

from __future__ import annotations

#: Every quantization name of the command line; the value is the module that implements it, None while there is none.
QUANTIZATIONS: dict[str, str | None] = {
    "none": "trtbuild.quant.none:NoQuantization",
    "fp8": "trtbuild.quant.fp8:Fp8",
    "fp8_per_channel_per_token": None,
    "fp8_block": None,
    "int4_awq": None,
    "int4_gptq": None,
    "w4a8_awq": None,
    "int8_smoothquant": None,
    "int8_weight_only": "trtbuild.quant.weight_only:Int8WeightOnly",
    "int4_weight_only": "trtbuild.quant.weight_only:Int4WeightOnly",
    "nvfp4": None,
}

#: Every target; the value says whether this version implements it.
TARGETS: dict[str, bool] = {"tensorrt": True, "pytorch": True, "reference": True}
#: Target -> what it is converted to: TensorRT-LLM rank files, or a unified (quantized) Hugging Face folder.
LAYOUTS: dict[str, str] = {"tensorrt": "ranks", "pytorch": "unified", "reference": "ranks"}

KV_CACHE_DTYPES = ("auto", "fp8", "int8")
DTYPES = ("auto", "float16", "bfloat16", "float32")
CALIBRATION_DTYPES = ("float32", "float16", "bfloat16")
EMBEDDINGS = ("replicated", "vocab")
#: Group sizes the INT4 kernels of TensorRT-LLM know (checkpoint specification 2.9).
GROUP_SIZES = (64, 128)


def available(table: dict[str, str | None] | dict[str, bool]) -> list[str]:
    """Return the names of a table that are implemented."""
    return [name for name, value in table.items() if value]
