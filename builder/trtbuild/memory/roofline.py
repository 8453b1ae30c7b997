"""How fast a deployment could be: arithmetic and bandwidth of the GPU, and the share of them that servers reach.

Prefill is bound by arithmetic, decoding by reading weights and KV cache (peers E, 3 and 17). Floating-point operations: 2 per weight and
token, and 2 x q size x length^2 per layer for causal attention. A step of decoding reads all weights of a rank once, and the cache of
every request. With tensor parallelism two all-reduces per layer are added, with pipeline stages the stages one after another.

The shares of the peaks are chosen between these figures: Llama-2-7B FP8 on H100, 128 tokens in and out, 23,406 tokens/s (trtllm-bench's
page, 0.12), here 16 % more; and Llama-3-70B bfloat16 on 4 H100 from measured kernels (aiconfigurator-core 0.12): 72 ms for 1024 tokens of
prompt, here 11 % more, 15.8 ms between tokens alone, here 7 % more, and 20.8 ms in a batch of 64, here 3 % less. Small models, small GPUs
and large tp are further off: the band is what to plan with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from trtbuild.gpu_specs import Compute
from trtbuild.memory.estimate import Estimate

#: Share of the peak FLOPs that prefill reaches, of the bandwidth that decoding reaches, of the link that an all-reduce reaches.
PREFILL_SHARE, DECODE_SHARE, LINK_SHARE = 0.55, 0.7, 0.7
#: Latency of one all-reduce, seconds, and of one step on the host (scheduling, sampling).
_REDUCE_S, _STEP_S = 10e-6, 0.5e-3
#: True times are expected within estimate / BAND and estimate x BAND.
BAND = 1.5
#: How inputs are rounded -> the units that multiply; without rounding the 16-bit ones.
_UNITS: dict[str, Compute] = {"fp8": "fp8", "fp8_token": "fp8", "fp8_group": "fp8", "int8": "int8", "nvfp4": "fp4"}


@dataclass(frozen=True)
class Speed:
    """Estimated times and rates; seconds and tokens per second.

    Attributes:
        requests: at once in a full batch: max_batch_size or what the KV pool holds.
        ttft_s: prefill of one prompt, no waiting.
        itl_s: between two tokens of the only request.
        itl_full_s: of a full batch.
        tokens_per_s: answers of all requests of full batches together, their prefills included.
        prefill_tokens_per_s: prompts alone.
        cost_per_million: of answer tokens, None without hardware.price_per_gpu_hour.
    """

    input_len: int
    output_len: int
    requests: int
    compute: Compute
    ttft_s: float
    itl_s: float
    itl_full_s: float
    tokens_per_s: float
    prefill_tokens_per_s: float
    cost_per_million: float | None

    def to_json(self) -> dict[str, Any]:
        """Return plain data, with the assumptions."""
        return {
            "input_len": self.input_len,
            "output_len": self.output_len,
            "requests": self.requests,
            "compute": self.compute,
            "ttft_s": self.ttft_s,
            "itl_s": self.itl_s,
            "itl_full_batch_s": self.itl_full_s,
            "tokens_per_s": self.tokens_per_s,
            "prefill_tokens_per_s": self.prefill_tokens_per_s,
            "cost_per_million_output_tokens": self.cost_per_million,
            "assumed": {"prefill_share": PREFILL_SHARE, "decode_share": DECODE_SHARE, "link_share": LINK_SHARE, "band_factor": BAND},
        }  # fmt: skip


@dataclass(frozen=True)
class Work:
    """What one layer of a model multiplies; numbers of weights of the whole model.

    Attributes:
        dense: that every token visits.
        experts: of all routed experts.
    """

    dense: int
    experts: int


def layer_work(it: Estimate) -> Work:
    """Return the weights of a decoder layer's linears."""
    dense = experts = 0
    for slot in it.layout.slots:
        if slot.layer != 0:
            continue
        size = sum(math.prod(part.shape) for part in slot.parts if len(part.shape) > 1)
        dense, experts = (dense, experts + size) if slot.rule.is_per_expert else (dense + size, experts)
    return Work(dense, experts)


def active_parameters(it: Estimate) -> int:
    """Return the weights that a token is multiplied with: N of the 2N operations."""
    work, dims = layer_work(it), it.dims
    visited = work.experts * dims.experts_per_token // dims.num_experts if dims.num_experts else 0
    return dims.num_layers * (work.dense + visited) + dims.vocab_size * dims.hidden_size


def speed(it: Estimate) -> Speed | None:
    """Return the estimate, None when the GPU's data is not known or a full batch is empty."""
    full = it.sequences(it.lengths.total)
    if it.spec is None or full < 1:
        return None
    prompt, answer = it.lengths.input_len.value, it.lengths.output_len.value
    requests = min(it.limits.max_batch_size * it.copies, full)
    alone, among = _prefill_s(it, prompt, is_alone=True), _prefill_s(it, prompt, is_alone=False)
    length = prompt + answer // 2
    itl, itl_full = sum(_decode_s(it, 1, length)), _decode_s(it, requests, length)
    # Stages work on micro-batches at the same time: a full pipeline is as fast as its slowest stage.
    whole = answer * max(itl_full) + requests * among / it.parallel.pp_size
    rate = requests * answer / whole
    price = it.deployment.hardware.price_per_gpu_hour
    cost = price * it.parallel.world_size / 3600 / rate * 1e6 if price is not None else None
    return Speed(
        prompt, answer, requests, compute_unit(it), alone, itl, sum(itl_full), rate,
        prompt * it.parallel.pp_size / among, cost,
    )  # fmt: skip


def compute_unit(it: Estimate) -> Compute:
    """Return the units that the linears of the scheme run on; those of 16 bits where the GPU has none."""
    inputs = it.layout.scheme.inputs
    unit = _UNITS[inputs.kind] if inputs else "fp16"
    return unit if it.spec is not None and unit in it.spec.flops else "fp16"


def _prefill_s(it: Estimate, length: int, *, is_alone: bool) -> float:
    """Return the seconds of a prompt, in a step of its own or in one with so many others that reading the weights does not count."""
    assert it.spec is not None
    dims, layers = it.dims, it.dims.num_layers
    linear = 2 * (active_parameters(it) - dims.vocab_size * dims.hidden_size) * length
    attention = 2 * dims.q_size * length * length * layers
    head = 2 * dims.vocab_size * dims.hidden_size
    peak = it.spec.flops[compute_unit(it)] * it.parallel.tp_size * PREFILL_SHARE
    half = it.spec.flops["fp16"] * it.parallel.tp_size * PREFILL_SHARE
    arithmetic = linear / peak + (attention + head) / half
    if not is_alone:
        return arithmetic + _reduce_s(it, layers, length)
    reading = sum(_weight_bytes(it, rank.rank.index, length) for rank in it.ranks if rank.rank.tp_rank == 0)
    return max(arithmetic, reading / (it.spec.bandwidth * DECODE_SHARE)) + _reduce_s(it, layers, length) + _STEP_S


def _decode_s(it: Estimate, requests: int, length: int) -> list[float]:
    """Return the seconds of a step on each pipeline stage."""
    assert it.spec is not None
    found = []
    flops = 2 * active_parameters(it) * requests / it.parallel.pp_size
    flops_s = flops / (it.spec.flops[compute_unit(it)] * it.parallel.tp_size * PREFILL_SHARE)
    for rank in it.ranks:
        if rank.rank.tp_rank:
            continue
        cache = rank.own_cache.sequence_bytes(length) * requests * it.limits.max_beam_width
        read_s = (_weight_bytes(it, rank.rank.index, requests) + cache) / (it.spec.bandwidth * DECODE_SHARE)
        layers = rank.layers[1] - rank.layers[0] + 1
        found.append(max(read_s, flops_s) + _reduce_s(it, layers, requests))
    found[-1] += _STEP_S
    return found


def _weight_bytes(it: Estimate, number: int, tokens: int) -> int:
    """Return what a rank reads of its weights for so many tokens: of experts those that some token visits."""
    weights, dims = it.ranks[number].weights, it.dims
    held = weights.layers + weights.scales
    if dims.num_experts:
        work = layer_work(it)
        share = work.experts / (work.experts + work.dense)
        visited = 1 - (1 - dims.experts_per_token / dims.num_experts) ** tokens
        held = int(held * (1 - share + share * visited))
    return held + (weights.head or weights.embedding)


def _reduce_s(it: Estimate, layers: int, tokens: int) -> float:
    """Return the seconds of all-reducing the hidden state twice per layer."""
    tp_size = it.parallel.tp_size
    if tp_size == 1 or it.spec is None:
        return 0.0
    nbytes = 2 * (tp_size - 1) / tp_size * tokens * it.dims.hidden_size * 2
    # A link's figure counts both directions.
    return 2 * layers * (_REDUCE_S + nbytes / (it.spec.link / 2 * LINK_SHARE))


def streaming_s(it: Estimate) -> float | None:
    """Return the seconds that bringing the weights of the fullest rank over PCIe takes, the least a step takes with weight streaming of all."""
    if it.spec is None:
        return None
    return max(rank.weights.nbytes for rank in it.ranks) / (it.spec.pcie / 2)
