"""The memory of models that are sized and not converted: multi-head latent attention (`arch.sized`).

The weights are shared out evenly, which is right for experts and linears and a few per cent low for what is replicated. The latent of a
token is the same for all heads, so every tensor-parallel rank keeps the whole of it (checkpoint specification 7.2; DeepSeek-V2, 2.1.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trtbuild.arch.sized import ModelSize
from trtbuild.errors import UsageError
from trtbuild.gpu_specs import find_spec
from trtbuild.memory.buffers import CONTEXT_BYTES, TRITON_POOL_BYTES
from trtbuild.memory.fit import gib
from trtbuild.memory.kv import element_bytes, latent_cache
from trtbuild.memory.pool import size_pool
from trtbuild.parallel import Parallel
from trtbuild.spec import Deployment

_ALGOS = {"auto": None, "fp8": "FP8", "int8": "INT8"}
#: Tokens of a request unless said, as for models that are converted (`memory.estimate`).
_INPUT_LEN, _OUTPUT_LEN = 1024, 256


@dataclass(frozen=True, slots=True)
class LatentSize:
    """Bytes of one rank, and requests of some length; the pool is None where the GPU is not known."""

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
    gpu_count: int | None
    input_len: int
    output_len: int
    request_tokens: int

    @property
    def requests(self) -> int | None:
        """Requests that the pool holds at once."""
        return None if self.pool_tokens is None else self.pool_tokens // self.request_tokens

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "weight_bytes_per_gpu": self.weight_bytes,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "kv_pool_bytes": self.pool_bytes,
            "kv_pool_tokens": self.pool_tokens,
            "gpu_memory_bytes": self.memory_bytes,
            "input_len": self.input_len,
            "output_len": self.output_len,
            "requests": self.requests,
        }

    def problems(self) -> Iterator[str]:
        """Yield why it does not fit: GPUs that are not there, weights, or a pool that holds no request."""
        ranks = self.tp_size * self.pp_size
        if self.gpu_count is not None and ranks > self.gpu_count:
            yield f"tp {self.tp_size} x pp {self.pp_size} are {ranks} ranks, one GPU each, and hardware.count is {self.gpu_count}"
        if self.memory_bytes is None or self.requests:
            return
        if not self.pool_tokens:
            yield f"each GPU holds {gib(self.weight_bytes)} of weights, and has {gib(self.memory_bytes)}"
        else:
            yield f"the KV pool has {self.pool_tokens:,} tokens, one request of {self.input_len} + {self.output_len} needs {self.request_tokens:,}"

    def fit(self) -> dict[str, Any]:
        """Return whether one request fits (None: not checked), as `report.fit` does without suggestions."""
        wrong = list(self.problems())
        return {
            "checked": self.memory_bytes is not None,
            "fits": False if wrong else True if self.memory_bytes is not None else None,
            "problems": [{"message": message, "way_out": ""} for message in wrong],
            "suggestions": [],
            "remarks": [],
        }

    def summary(self) -> dict[str, Any]:
        """Return the figures that what-ifs are compared by, under the names of `report.summary`."""
        return {
            "gpus": self.tp_size * self.pp_size,
            "weight_bytes": self.weight_bytes,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "kv_tokens": self.pool_tokens,
            "sequences_at_lengths": self.requests,
            "fits": self.fit()["fits"],
            "problems": list(self.problems()),
        }


def size_latent(
    deployment: Deployment, model: ModelSize, *, input_len: int | None = None, output_len: int | None = None
) -> LatentSize:
    """Return what a model with latent attention takes on each GPU.

    Args:
        deployment: how it is cut and where it runs.
        model: its size.
        input_len, output_len: tokens of a request; None: 1024 and 256, or what the model's positions allow.

    Raises:
        UsageError: there is no such GPU, the model cannot be cut like this, or no request can be that long.
    """
    cache_settings, hardware, parallel = deployment.kv_cache, deployment.hardware, deployment.parallel
    _check_cut(model, Parallel(parallel.tp_size, parallel.pp_size, moe_ep_size=parallel.ep_size))
    prompt, answer = _lengths(model, input_len, output_len)
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
    block = cache.tokens_per_block
    more = (
        parallel.tp_size, parallel.pp_size, element, cache_settings.free_gpu_memory_fraction, given, hardware.count, prompt, answer,
        -(-(prompt + answer) // block) * block,
    )  # fmt: skip
    if memory_bytes is None:
        return LatentSize(weights, cache.token_bytes, None, None, None, *more)
    pool = size_pool(
        [cache], memory_bytes=memory_bytes, fixed_bytes=[weights + CONTEXT_BYTES + TRITON_POOL_BYTES], fraction=cache_settings.free_gpu_memory_fraction,
        max_tokens=cache_settings.max_tokens, default_sequences=0, full_length=1,
    )  # fmt: skip
    return LatentSize(weights, cache.token_bytes, pool.pool_bytes[0], pool.tokens(block), memory_bytes, *more)


def _check_cut(model: ModelSize, parallel: Parallel) -> None:
    """Refuse sizes that divide neither heads nor experts, and stages without a layer; what config.json does not say is not checked."""
    parallel.check_experts()
    heads, experts, ep = model.num_attention_heads, model.num_experts, parallel.moe_ep_size
    if heads is not None and heads % parallel.tp_size:
        valid = ", ".join(str(tp) for tp in range(1, heads + 1) if heads % tp == 0 and tp % ep == 0)
        raise UsageError(
            f"num_attention_heads={heads} cannot be split over tp={parallel.tp_size}",
            hint=f"valid tp sizes for this model: {valid or 'none'}",
        )
    if experts is not None and experts % ep:
        raise UsageError(f"num_experts={experts} cannot be split over ep={ep}", hint="use an ep size that divides it")
    if parallel.pp_size > model.num_layers:
        raise UsageError(
            f"num_layers={model.num_layers} cannot fill pp={parallel.pp_size} stages",
            hint=f"use --pp {model.num_layers} at most",
        )


def _lengths(model: ModelSize, input_len: int | None, output_len: int | None) -> tuple[int, int]:
    most = model.max_positions
    if most is None:
        return input_len or _INPUT_LEN, output_len or _OUTPUT_LEN
    if (input_len or 1) + (output_len or 1) > most:
        given = {"--input-len": input_len, "--output-len": output_len}
        named = " and ".join(f"{name} {value}" for name, value in given.items() if value is not None)
        raise UsageError(
            f"{named}: a request has at most {most} tokens, its answer included",
            hint=f"max_position_embeddings of config.json is {most}: use less",
        )
    prompt = input_len or min(_INPUT_LEN, most - (output_len or 1))
    return prompt, output_len or min(_OUTPUT_LEN, most - prompt)
