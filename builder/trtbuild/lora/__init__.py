"""LoRA adapters in the PEFT layout: merged into a model folder, or written for the LoRA cache of TensorRT-LLM."""

from trtbuild.lora.adapter import Adapter, AdapterModule
from trtbuild.lora.merge import merged

__all__ = ["Adapter", "AdapterModule", "merged"]
