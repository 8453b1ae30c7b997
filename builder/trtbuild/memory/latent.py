"""The memory of models that are sized and not converted: multi-head latent attention (`arch.sized`).

The weights are shared out evenly, which is right for experts and linears and a few per cent low for what is replicated. The latent of a
token is the same for all heads, so every tensor-parallel rank keeps the whole of it (checkpoint specification 7.2; DeepSeek-V2, 2.1.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trtbuild.arch.sized import ModelSize
from trtbuild.errors import UsageError
from trtbuild.gpu_specs import find_spec
from trtbuild.memory.buffers import CONTEXT_BYTES, TRITON_POOL_BYTES
from trtbuild.memory.fit import gib
from trtbuild.memory.kv import element_bytes, latent_cache
from trtbuild.memory.pool import size_pool
from trtbuild.spec import Deployment

_ALGOS = {"auto": None, "fp8": "FP8", "int8": "INT8"}


@dataclass(frozen=True, slots=True)
class LatentSize:
    """Bytes of one rank; the pool is None where the GPU is not known."""

    weight_bytes: int
    kv_bytes_per_token: int
    pool_bytes: int | None
    pool_tokens: int | None
    memory_bytes: int | None
    tp_size: int
    pp_size: int
    element: float
    fraction: float
    gpu_words: str

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "weight_bytes_per_gpu": self.weight_bytes,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "kv_pool_bytes": self.pool_bytes,
            "kv_pool_tokens": self.pool_tokens,
            "gpu_memory_bytes": self.memory_bytes,
        }

    def fit(self) -> dict[str, Any]:
        """Return whether it loads and any token fits, as `report.fit` does; suggestions there are none."""
        if self.memory_bytes is None or self.pool_tokens:
            return {
                "checked": self.memory_bytes is not None,
                "fits": True if self.pool_tokens else None,
                "problems": [],
                "suggestions": [],
                "remarks": [],
            }
        message = f"each GPU holds {gib(self.weight_bytes)} of weights, and has {gib(self.memory_bytes)}"
        way_out = "a larger parallel.tp_size or parallel.pp_size"
        return {
            "checked": True, "fits": False, "problems": [{"message": message, "way_out": way_out}], "suggestions": [], "remarks": [],
        }  # fmt: skip


def size_latent(deployment: Deployment, model: ModelSize) -> LatentSize:
    """Return what a model with latent attention takes on each GPU.

    Raises:
        UsageError: there is no such GPU.
    """
    cache_settings, hardware, parallel = deployment.kv_cache, deployment.hardware, deployment.parallel
    spec = find_spec(hardware.gpu, UsageError) if hardware.gpu else None
    memory_bytes = hardware.memory_bytes or (spec.memory_bytes if spec else None)
    weights = -(-sum(model.weight_bytes.values()) // (parallel.tp_size * parallel.pp_size))
    element = element_bytes(_ALGOS[deployment.quantization.kv_cache], "BF16")
    per_token = -(-model.kv_values_per_token // parallel.pp_size)
    cache = latent_cache(per_token, element=element, tokens_per_block=cache_settings.tokens_per_block)
    given = (
        "hardware.memory_bytes"
        if hardware.memory_bytes
        else f"{spec.name}: {spec.source} ({spec.evidence})"
        if spec
        else "no GPU is named"
    )
    more = (parallel.tp_size, parallel.pp_size, element, cache_settings.free_gpu_memory_fraction, given)
    if memory_bytes is None:
        return LatentSize(weights, cache.token_bytes, None, None, None, *more)
    pool = size_pool(
        [cache], memory_bytes=memory_bytes, fixed_bytes=[weights + CONTEXT_BYTES + TRITON_POOL_BYTES], fraction=cache_settings.free_gpu_memory_fraction,
        max_tokens=cache_settings.max_tokens, default_sequences=0, full_length=1,
    )  # fmt: skip
    tokens = pool.tokens(cache.tokens_per_block)
    return LatentSize(weights, cache.token_bytes, pool.pool_bytes[0], tokens, memory_bytes, *more)
