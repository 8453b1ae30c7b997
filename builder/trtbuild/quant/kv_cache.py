"""Scales of a quantized KV cache: one factor per layer for K and V together. Source: checkpoint specification 2.16.

Knows formulas; knows nothing about how the ranges were observed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvCacheFormat:
    """A number format of the KV cache.

    Attributes:
        quant_algo: TensorRT-LLM's name.
        limit: largest code; scale = amax / limit.
        floor: smallest scale written. NVIDIA's rank files never hold less than 1.0 for FP8: recommended practice, since E4M3 keeps
            its relative precision over the range that keys and values have.
    """

    quant_algo: str
    limit: float
    floor: float

    def scale(self, amax: float) -> float:
        """Return the dequantization factor for a range."""
        return max(amax / self.limit, self.floor)


#: Name of the command line -> format; "auto" keeps the model's dtype.
KV_CACHE_FORMATS: dict[str, KvCacheFormat | None] = {
    "auto": None,
    "fp8": KvCacheFormat("FP8", 448.0, 1.0),
    "int8": KvCacheFormat("INT8", 127.0, 1e-12),
}
#: Tensors under `attention.`; the loader takes the larger of the k and v factors for both (2.16).
KV_SCALE_NAMES = ("kv_cache_scaling_factor", "k_cache_scaling_factor", "v_cache_scaling_factor")
