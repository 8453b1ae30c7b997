"""The memory of a deployment on every rank, put together: weights, buffers, draft model, KV pool, adapters, copies.

Pure arithmetic over a planned conversion; opens no file but the draft model's headers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trtbuild.convert.plan import ConversionPlan
from trtbuild.dims import ModelDims
from trtbuild.errors import UsageError
from trtbuild.gpu_specs import GpuSpec, find_spec
from trtbuild.layout import Layout
from trtbuild.limits import ResolvedLimits, Sourced, resolve_limits
from trtbuild.memory.buffers import Situation, buffer_lines
from trtbuild.memory.kv import RankCache, element_bytes, rank_caches
from trtbuild.memory.lines import Line, total
from trtbuild.memory.pool import Pool, size_pool
from trtbuild.memory.weights import RankWeights, rank_weights, serving_layout, weight_lines
from trtbuild.memory.windows import layer_windows
from trtbuild.names import LAYOUTS
from trtbuild.parallel import Parallel, Rank
from trtbuild.spec import Deployment

if TYPE_CHECKING:
    from trtbuild.memory.draft import Draft

#: Lengths that speed and concurrency are stated for when nothing is said.
_INPUT_LEN, _OUTPUT_LEN = 1024, 256
#: Lines that are there once, however many copies of the model run on a GPU.
_ONCE = ("CUDA context", "Triton CUDA pool")


@dataclass(frozen=True)
class Lengths:
    """Tokens of a request that sizes are stated for."""

    input_len: Sourced
    output_len: Sourced

    @property
    def total(self) -> int:
        """Prompt and answer."""
        return self.input_len.value + self.output_len.value


@dataclass(frozen=True)
class RankMemory:
    """One rank.

    Attributes:
        layers: global numbers of its first and last layer.
        lines: all but the pool and what comes after it; of all copies.
        weights: of one copy.
        cache: with a draft model's cache.
        own_cache: without.
    """

    rank: Rank
    layers: tuple[int, int]
    lines: tuple[Line, ...]
    weights: RankWeights
    cache: RankCache
    own_cache: RankCache

    @property
    def fixed_bytes(self) -> int:
        """What is taken before the pool."""
        return total(self.lines)


@dataclass(frozen=True)
class Estimate:
    """What a deployment takes.

    Attributes:
        layout: as the server cuts it.
        spec: the kind of GPU, None when not named or known by its SM number only.
        memory_bytes: of one GPU, None when not known.
        copies: of the model on each GPU.
        element: bytes of one number of the KV cache.
    """

    deployment: Deployment
    layout: Layout
    limits: ResolvedLimits
    lengths: Lengths
    spec: GpuSpec | None
    memory_bytes: int | None
    ranks: tuple[RankMemory, ...]
    pool: Pool
    draft: Draft | None
    copies: int
    element: float

    @property
    def dims(self) -> ModelDims:
        """Of the model."""
        return self.layout.dims

    @property
    def parallel(self) -> Parallel:
        """How the server cuts the model."""
        return self.layout.parallel

    @property
    def worst(self) -> RankMemory:
        """The rank that takes the most before the pool."""
        return max(self.ranks, key=lambda rank: rank.fixed_bytes)

    def sequences(self, length: int) -> int:
        """Return how many requests of a length, beams included, the pools of all copies hold at once."""
        beams = self.limits.max_beam_width
        return self.copies * min(rank.cache.sequences(self.pool.blocks, length) // beams for rank in self.ranks)

    def adapter_bytes(self, number: int) -> int:
        """Return what the cache of adapters takes on a rank: its share of what the KV pool leaves."""
        if not self.deployment.lora.adapters or not self.pool.free_bytes:
            return 0
        left = self.pool.free_bytes[number] - self.pool.pool_bytes[number] * self.copies
        return max(int(self.deployment.lora.device_cache_fraction * left), 0)

    def reserve_bytes(self, number: int) -> int | None:
        """Return what is left on a rank when everything is allocated, None without a GPU."""
        if not self.pool.free_bytes:
            return None
        taken = self.pool.pool_bytes[number] * self.copies + self.adapter_bytes(number)
        return self.pool.free_bytes[number] - taken

    def total_bytes(self, number: int) -> int:
        """Return all that is allocated on a rank."""
        pool = self.pool.pool_bytes[number] * self.copies
        return self.ranks[number].fixed_bytes + pool + self.adapter_bytes(number)


def estimate(
    deployment: Deployment,
    plan: ConversionPlan,
    *,
    input_len: int | None = None,
    output_len: int | None = None,
    copies: int = 1,
) -> Estimate:
    """Estimate a deployment whose conversion was planned.

    Args:
        deployment: for a GPU: target tensorrt or pytorch.
        plan: its conversion.
        input_len: tokens of a prompt to state sizes for; None: 1024 or what the limits allow.
        output_len: tokens of an answer; None: 256 or what the limits allow.
        copies: of the model on each GPU.

    Raises:
        UsageError: limits or lengths contradict each other or the model.
        TrtbuildError: the draft model cannot be read.
    """
    layout, is_unified = serving_layout(plan, deployment), LAYOUTS[deployment.target] == "unified"
    dims, parallel = layout.dims, layout.parallel
    limits = resolve_limits(deployment, dims.max_position_embeddings, dims.rope.scaling if dims.rope else None)
    lengths = _lengths(limits, input_len, output_len)
    element = element_bytes(layout.kv_format.quant_algo if layout.kv_format else None, layout.dtype)
    draft = _draft(deployment, parallel, element)
    windows = layer_windows(
        dims.architecture,
        plan.source.config,
        dims.num_layers,
        deployment.kv_cache.max_attention_window,
        limits.max_seq_len,
    )
    caches = rank_caches(dims, parallel, windows, element=element, tokens_per_block=limits.tokens_per_block)
    weights = rank_weights(layout, is_unified=is_unified)
    quantizes_inputs = any(scheme.inputs for scheme in layout.schemes)
    ranks = []
    for rank, held, cache in zip(parallel.ranks(), weights, caches, strict=True):
        here = parallel.layers(dims.num_layers, rank.pp_rank)
        situation = Situation(deployment, dims, parallel, limits, quantizes_inputs, len(here))
        lines = [*weight_lines(held, is_unified=is_unified), *buffer_lines(situation)]
        lines += draft.lines if draft else ()
        kept = tuple(_copied(line, copies) for line in lines if line.nbytes)
        ranks.append(RankMemory(rank, (here[0], here[-1]), kept, held, draft.beside(cache) if draft else cache, cache))
    spec, memory_bytes = _gpu(deployment)
    return Estimate(
        deployment, layout, limits, lengths, spec, memory_bytes, tuple(ranks),
        size_pool(
            [rank.cache for rank in ranks],
            memory_bytes=memory_bytes,
            fixed_bytes=[rank.fixed_bytes for rank in ranks],
            fraction=deployment.kv_cache.free_gpu_memory_fraction / copies,
            max_tokens=deployment.kv_cache.max_tokens,
            default_sequences=limits.max_batch_size * limits.max_beam_width,
            full_length=limits.max_seq_len,
        ),
        draft, copies, element,
    )  # fmt: skip


def _draft(deployment: Deployment, parallel: Parallel, element: float) -> Draft | None:
    if deployment.speculative.mode == "none" or deployment.speculative.draft_model is None:
        return None
    from trtbuild.memory.draft import plan_draft  # most deployments have none

    return plan_draft(deployment, parallel, element)


def _copied(line: Line, copies: int) -> Line:
    if copies == 1 or line.name in _ONCE:
        return line
    return replace(line, nbytes=line.nbytes * copies, formula=f"{copies} x ({line.formula})")


def _gpu(deployment: Deployment) -> tuple[GpuSpec | None, int | None]:
    hardware = deployment.hardware
    spec = find_spec(hardware.gpu, UsageError) if hardware.gpu else None
    return spec, hardware.memory_bytes or (spec.memory_bytes if spec else None)


def _lengths(limits: ResolvedLimits, input_len: int | None, output_len: int | None) -> Lengths:
    """Return the lengths that sizes are stated for.

    Raises:
        UsageError: the prompt is longer than the server takes, or prompt and answer together are (field reports EB01, EB02).
    """
    if input_len is not None and input_len > limits.max_input_len:
        raise UsageError(
            f"--input-len {input_len} exceeds the {limits.max_input_len} tokens that a prompt may have here",
            hint=f"{limits.origins['max_input_len'].why}; use at most {limits.max_input_len}",
        )
    if input_len is not None and output_len is not None and input_len + output_len > limits.max_seq_len:
        raise UsageError(
            f"--input-len {input_len} and --output-len {output_len} make {input_len + output_len} tokens, max_seq_len is {limits.max_seq_len}",
            hint="max_seq_len is prompt plus answer: shorten one of them, or raise limits.max_seq_len",
        )
    if output_len is not None and output_len >= limits.max_seq_len:
        raise UsageError(
            f"--output-len {output_len} leaves no room for a prompt within max_seq_len={limits.max_seq_len}",
            hint=f"use at most {limits.max_seq_len - 1}",
        )
    room = limits.max_seq_len - (output_len or 1)
    prompt = input_len or min(_INPUT_LEN, limits.max_input_len, room)
    answer = output_len or min(_OUTPUT_LEN, limits.max_seq_len - prompt)
    return Lengths(
        Sourced(prompt, "user" if input_len else "default", "as given" if input_len else "1024, or what fits"),
        Sourced(answer, "user" if output_len else "default", "as given" if output_len else "256, or what fits"),
    )
