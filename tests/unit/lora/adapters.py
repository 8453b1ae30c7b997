"""Adapter folders for the tests, written by hand from numpy arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from tests.conftest import write_safetensors

Q = "model.layers.0.self_attn.q_proj"
BF16 = np.dtype(ml_dtypes.bfloat16)
CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "r": 4,
    "lora_alpha": 8,
    "bias": "none",
    "fan_in_fan_out": False,
    "base_model_name_or_path": "someone/model",
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
    "use_rslora": False,
    "use_dora": False,
    "init_lora_weights": True,
}


def pair(rank: int, inputs: int, outputs: int, *, seed: int, dtype: Any = np.float32) -> tuple[np.ndarray, np.ndarray]:
    """Return A [rank, inputs] and B [outputs, rank]."""
    generator = np.random.default_rng(seed)
    return (
        generator.normal(0, 0.3, (rank, inputs)).astype(dtype),
        generator.normal(0, 0.3, (outputs, rank)).astype(dtype),
    )


def tensors_of(modules: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the tensors of a PEFT file: module name -> (A, B) under the names PEFT saves."""
    tensors = {}
    for name, (a, b) in modules.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = a
        tensors[f"base_model.model.{name}.lora_B.weight"] = b
    return tensors


def write_adapter(
    folder: Path,
    modules: Mapping[str, tuple[np.ndarray, np.ndarray]],
    *,
    more: Mapping[str, Any] | None = None,
    **config: Any,
) -> Path:
    """Write an adapter folder that selects its modules; `more` are tensors beside A and B."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, "target_modules": sorted(modules), **config}))
    write_safetensors(folder / "adapter_model.safetensors", {**tensors_of(modules), **(more or {})})
    return folder
