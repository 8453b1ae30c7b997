"""LoRA adapters in the PEFT layout."""

from trtbuild.lora.adapter import Adapter, AdapterModule

__all__ = ["Adapter", "AdapterModule"]
