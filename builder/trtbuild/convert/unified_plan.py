"""What a conversion to a unified Hugging Face folder will write, from config.json and headers alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trtbuild.convert import unified_config
from trtbuild.convert.plan import ConversionPlan
from trtbuild.dtypes import TO_CONFIG
from trtbuild.names import LAYOUTS
from trtbuild.spec import ParallelSection
from trtbuild.unified_layout import UnifiedLayout

#: Architectures of this package that TensorRT-LLM 1.2's PyTorch backend has (support matrix, 3.4).
SERVED = (
    "LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM",
    "Gemma3ForCausalLM", "Phi3ForCausalLM",
)  # fmt: skip


def describe(plan: ConversionPlan, targets: Sequence[str], *, tensors: bool) -> dict[str, Any]:
    """Return the plan of a conversion for some targets as plain data: rank files, the unified folder, or it under "unified" beside them.

    Raises:
        TrtbuildError: the PyTorch backend cannot load what was asked for.
    """
    layouts = {LAYOUTS[target] for target in targets}
    unified = unified_plan(plan, tensors=tensors) if "unified" in layouts else None
    if unified is not None and len(layouts) == 1:
        return unified
    return {**plan.to_json(tensors=tensors), **({"unified": unified} if unified else {})}


def unified_plan(plan: ConversionPlan, *, tensors: bool) -> dict[str, Any]:
    """Return the plan of the folder as plain data; `tensors` adds every tensor of every file.

    Raises:
        TrtbuildError: the PyTorch backend cannot load what was asked for.
    """
    unified = UnifiedLayout.of(plan.layout)
    files = []
    for name, stored in unified.files.items():
        entry: dict[str, Any] = {
            "file": name,
            "num_tensors": len(stored),
            "bytes": sum(tensor.nbytes for tensor in stored),
        }
        if tensors:
            entry["tensors"] = [
                {"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape), "bytes": tensor.nbytes}
                for tensor in sorted(stored, key=lambda tensor: tensor.name)
            ]
        files.append(entry)
    return {
        "source": str(plan.source.path),
        "architecture": plan.dims.architecture,
        "quantization": plan.layout.scheme.name,
        "kv_cache": plan.options.kv_cache,
        "dtype": TO_CONFIG[plan.layout.dtype],
        "calibration_needed": plan.needs_calibration,
        "read_bytes": plan.read_bytes,
        "write_bytes": unified.nbytes,
        "files": files,
        "config": unified_config.config(plan.source.config, unified),
        "hf_quant_config": unified_config.hf_quant_config(unified),
        "warnings": list(plan.warnings),
    }


def unified_warnings(plan: ConversionPlan, parallel: ParallelSection) -> Iterator[str]:
    """Say what was asked for and has no effect on the folder, and what a server may not do with it.

    Args:
        plan: the conversion.
        parallel: what the deployment says.
    """
    layout = plan.layout
    asked = {"tp": parallel.tp_size, "pp": parallel.pp_size, "ep": parallel.ep_size}
    given = [f"{name}={size}" for name, size in asked.items() if size > 1]
    given += [f"embedding={parallel.embedding}"] if parallel.embedding != "replicated" else []
    if given:
        yield f"{', '.join(given)}: for the server only, target pytorch is one folder for any number of GPUs"
    for weight in UnifiedLayout.of(layout).weights:
        if weight.form and ".0." in weight.tensor.name and weight.part.expert in (None, 0):
            yield from layout.scheme_for(weight.part.module).warnings(weight.part.module, weight.part.shape)
    if layout.kv_format:
        yield (
            "calibrated KV cache scales are written; TensorRT-LLM 1.2 reads them with TRTLLM_LOAD_KV_SCALES=1 only, otherwise it uses 1.0"
        )
    if plan.dims.architecture not in SERVED:
        yield f"TensorRT-LLM 1.2's PyTorch backend has no {plan.dims.architecture}; other runtimes may load the folder"
