"""Reading Hugging Face folders that are already quantized, as plain weights."""

from trtbuild.quant.sources.registry import declared_method, method_in, read_quantized

__all__ = ["declared_method", "method_in", "read_quantized"]
