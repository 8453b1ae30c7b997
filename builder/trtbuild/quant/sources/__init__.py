"""Reading Hugging Face folders that are already quantized, as plain weights."""

from trtbuild.quant.sources.registry import declared_method, read_quantized

__all__ = ["declared_method", "read_quantized"]
