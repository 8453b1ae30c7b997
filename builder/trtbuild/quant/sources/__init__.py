"""Reading Hugging Face folders that are already quantized, as plain weights."""

from trtbuild.quant.sources.registry import declared_method, read_quantized
from trtbuild.quant.sources.result import QuantizedSource

__all__ = ["QuantizedSource", "declared_method", "read_quantized"]
