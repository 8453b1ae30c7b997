"""Builds the transformers model of a source folder, reading one tensor at a time. No remote code, no memory map."""

from __future__ import annotations

from typing import Any

from trtbuild.quant.calibrate.libraries import torch as import_torch
from trtbuild.quant.calibrate.libraries import transformers as import_transformers
from trtbuild.source import SourceCheckpoint


def load_source_model(source: SourceCheckpoint, *, dtype: str) -> Any:
    """Return the model in evaluation mode.

    Args:
        source: the opened folder.
        dtype: "float32", "float16" or "bfloat16".
    """
    transformers = import_transformers()
    torch = import_torch()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        source.path, dtype=getattr(torch, dtype), local_files_only=True, use_safetensors=True, trust_remote_code=False
    )
    return model.eval()
