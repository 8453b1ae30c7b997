"""Have NVIDIA's exporter write checkpoints with several schemes, for `digest.py`.

Usage: python tests/goldens/make_mixed.py FAMILY_FOLDER OUT, with nvidia-modelopt[hf] 0.47.0 and transformers 5.14.1; a CPU will do.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_hf_checkpoint, export_tensorrt_llm_checkpoint
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

FP8: dict[str, Any] = {"num_bits": (4, 3), "axis": None}
NVFP4: dict[str, Any] = {"num_bits": (2, 1), "block_sizes": {-1: 16, "type": "dynamic", "scale_bits": (4, 3)}}
INT4: dict[str, Any] = {"num_bits": 4, "block_sizes": {-1: 64, "type": "static"}}
AWQ = {"method": "awq_lite", "alpha_step": 0.1}


def both(pattern: str, numbers: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"quantizer_name": f"{pattern}{kind}_quantizer", "cfg": numbers, "enable": True} for kind in ("weight", "input")
    ]


KV = {"quantizer_name": "*[kv]_bmm_quantizer", "cfg": FP8, "enable": True}
INT4_MLP = {"quantizer_name": "*mlp.*weight_quantizer", "cfg": INT4, "enable": True}
NO_OUTPUT = {"quantizer_name": "*o_proj*", "enable": False}
#: Variant -> rules, algorithm, and rules that are applied afterwards: AWQ would smooth the inputs of FP8 linears as well.
VARIANTS: dict[str, tuple[list[dict[str, Any]], Any, list[dict[str, Any]]]] = {
    "fp8_int4_awq": ([INT4_MLP], AWQ, [*both("*self_attn.*", FP8), KV]),
    "nvfp4_fp8": (
        [*both("*mlp.*", NVFP4), *both("*self_attn.*", FP8), *both("*layers.1.mlp.down_proj*", FP8)],
        "max",
        [],
    ),
    "fp8_none": ([*both("*_proj*", FP8), NO_OUTPUT], "max", []),
}


def quantized(family: Path, variant: str) -> Any:
    """Return the model with quantizers, calibrated on the family's ids in float16."""
    ids = load_file(family / "calibration_ids.safetensors")["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(family / "source", dtype=torch.float16).eval()

    def feed(fed: Any) -> None:
        for row in ids:
            fed(row[None])

    rules, algorithm, afterwards = VARIANTS[variant]
    mtq.quantize(model, {"quant_cfg": [{"quantizer_name": "*", "enable": False}, *rules], "algorithm": algorithm}, feed)
    if afterwards:
        mtq.set_quantizer_by_cfg(model, afterwards)
        mtq.calibrate(model, "max", feed)
    return model


if __name__ == "__main__":
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    with torch.inference_mode():
        for name in VARIANTS:
            export_tensorrt_llm_checkpoint(
                quantized(source, name), "llama", torch.float16, str(out / "trtllm" / name), 1, 1
            )
            export_hf_checkpoint(quantized(source, name), dtype=torch.float16, export_dir=str(out / "hf" / name))
