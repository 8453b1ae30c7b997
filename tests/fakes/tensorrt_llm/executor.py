"""The part of `tensorrt_llm.executor` that a Triton model uses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class LoRARequest:
    """An adapter for one request."""

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    lora_ckpt_source: str = "hf"
