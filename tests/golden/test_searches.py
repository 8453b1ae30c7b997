"""Searches against those of NVIDIA's exporter (nvidia-modelopt 0.47.0, tests/goldens/*/searched.safetensors) on the same tokens.

`searched.safetensors` holds codes, scales and multipliers of its rank files for groups of 64 ("int4_awq_g64/...").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import GOLDENS, read_safetensors
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from trtbuild.convert.opening import OpenedSource
from trtbuild.convert.plan import ConversionOptions, ConversionPlan, plan_conversion
from trtbuild.layout import Slot
from trtbuild.quant.calibrate.forward import calibrate
from trtbuild.quant.calibrate.samples import load_samples
from trtbuild.quant.recipes import Recipe, recipe_pattern
from trtbuild.quant.search.apply import quantized_weight
from trtbuild.quant.stats import CalibrationStats
from trtbuild.source import SourceCheckpoint

FAMILIES = ("llama", "qwen2", "gpt2")
Searched = tuple[ConversionPlan, CalibrationStats, Callable[[str], Recipe]]


def search(family: str, quantization: str, folder: Path, **options: Any) -> Searched:
    source = SourceCheckpoint.open(GOLDENS / family / "source")
    plan = plan_conversion(OpenedSource(source), ConversionOptions(quantization=quantization, **options))
    file = GOLDENS / family / "calibration_ids.safetensors"
    samples = load_samples(source, file, vocab_size=plan.dims.vocab_size, max_samples=64, max_length=512)
    stats = calibrate(plan, samples, dtype="float16", folder=folder, memory_bytes=1 << 26, advance=lambda _: None)
    found: dict[str, np.ndarray[Any, Any]] = {}
    for file in folder.glob(recipe_pattern()):
        found |= read_safetensors(file)

    def recipe_of(module: str) -> Recipe:
        return Recipe(**{field.name: found.get(f"{module}.{field.name}") for field in fields(Recipe)})

    return plan, stats, recipe_of


def weights_and_inputs(family: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return Hugging Face module -> weight [out, in], and -> inputs [tokens, in], of a forward in float16; all in float64."""
    model = AutoModelForCausalLM.from_pretrained(GOLDENS / family / "source", dtype=torch.float16)
    weights: dict[str, torch.Tensor] = {}
    inputs: dict[str, list[torch.Tensor]] = {}
    for name, linear in model.named_modules():
        if isinstance(linear, torch.nn.Linear | Conv1D) and name != "lm_head":
            weights[name] = (linear.weight.T if isinstance(linear, Conv1D) else linear.weight).detach().double()
            linear.register_forward_pre_hook(
                lambda _m, args, name=name: inputs.setdefault(name, []).append(args[0][0].double())
            )
    with torch.no_grad():
        for row in read_safetensors(GOLDENS / family / "calibration_ids.safetensors")["input_ids"]:
            model(torch.tensor(row.copy())[None])
    return weights, {name: torch.cat(rows) for name, rows in inputs.items()}


def exported_weight(tensors: Mapping[str, np.ndarray[Any, Any]], module: str) -> torch.Tensor:
    """Return what the exporter's file computes with: decoded by hand from nibbles of even and odd rows."""
    packed = tensors[f"int4_awq_g64/{module}.weight"].view(np.uint8)
    codes = np.stack([packed & 15, packed >> 4], axis=1).reshape(2 * len(packed), -1).astype(np.int64)
    codes = np.where(codes > 7, codes - 16, codes)
    scales = tensors[f"int4_awq_g64/{module}.weights_scaling_factor"].astype(np.float64).repeat(64, axis=1)
    factor = tensors[f"int4_awq_g64/{module}.prequant_scaling_factor"].astype(np.float64)
    return torch.from_numpy(codes * scales * factor)


def fused_groups(plan: ConversionPlan) -> dict[tuple[int, str], list[Slot]]:
    groups: dict[tuple[int, str], list[Slot]] = {}
    for slot in plan.layout.slots:
        if slot.rule.quantizable:
            groups.setdefault((slot.layer, slot.rule.scale_group or slot.module), []).append(slot)
    return groups


@pytest.mark.parametrize("family", FAMILIES)
def test_output_errors_are_not_above_the_exporters(family: str, tmp_path: Path) -> None:
    weights, inputs = weights_and_inputs(family)
    exported = read_safetensors(GOLDENS / family / "searched.safetensors")
    for kind in ("int4_awq", "int4_gptq"):
        plan, _, recipe_of = search(family, kind, tmp_path / kind, group_size=64)
        for key, slots in fused_groups(plan).items():
            ours = theirs = 0.0
            for slot in slots:
                modules = list(dict.fromkeys(part.module for part in slot.parts))
                x = inputs[modules[0]]
                original = torch.cat([weights[module] for module in modules])
                found = torch.cat([quantized_weight(weights[m].float(), recipe_of(m)) for m in modules]).double()
                ours += float(((found - original) @ x.T).square().sum())
                theirs += float(((exported_weight(exported, slot.module) - original) @ x.T).square().sum())
            assert ours <= theirs, (kind, key)
