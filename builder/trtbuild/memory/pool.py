"""What is left for the KV cache on a GPU, and what that pool holds. Knows bytes and blocks; no models.

`free_gpu_memory_fraction` is a share of the memory that is free after the engine was loaded, not of the whole GPU (field report EB09);
where max_tokens is given too the smaller counts, and all ranks take the smallest number of blocks (checkpoint specification 7.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trtbuild.memory.kv import RankCache, smallest


@dataclass(frozen=True)
class Pool:
    """The KV pool of a deployment.

    Attributes:
        blocks: window -> blocks, alike on all ranks.
        free_bytes: of each rank after loading; negative where it does not even load. Empty when the GPU is not known.
        pool_bytes: of each rank.
        limited_by: which of the bounds counted, in words.
    """

    blocks: dict[int | None, int]
    free_bytes: tuple[int, ...]
    pool_bytes: tuple[int, ...]
    limited_by: str

    def tokens(self, tokens_per_block: int) -> int:
        """Return the tokens of the pool: those that full attention keeps, else those of the widest window."""
        if not self.blocks:
            return 0
        key = None if None in self.blocks else max(window for window in self.blocks if window is not None)
        return self.blocks[key] * tokens_per_block


def size_pool(
    caches: Sequence[RankCache],
    *,
    memory_bytes: int | None,
    fixed_bytes: Sequence[int],
    fraction: float,
    max_tokens: int | None,
    default_sequences: int,
    full_length: int,
) -> Pool:
    """Size the pool.

    Args:
        caches: of every rank, a draft model's included.
        memory_bytes: of one GPU, None when it is not known.
        fixed_bytes: of every rank, everything but the pool.
        fraction: share of what is free after loading.
        max_tokens: upper bound, None when not given.
        default_sequences: what the pool holds when neither the GPU nor max_tokens is known: a full batch with its beams.
        full_length: of a sequence; divides the memory among layers of different windows.
    """
    bounded = [
        _of_sequences(cache, default_sequences, full_length) if max_tokens is None else _of_tokens(cache, max_tokens)
        for cache in caches
    ]
    if memory_bytes is None:
        blocks = smallest(bounded)
        why = "kv_cache.max_tokens" if max_tokens is not None else "a full batch; the memory of the GPU is not known"
        return Pool(blocks, (), tuple(cache.pool_bytes(blocks) for cache in caches), why)
    free = tuple(memory_bytes - fixed for fixed in fixed_bytes)
    by_memory = [cache.blocks(max(left, 0) * fraction, full_length) for cache, left in zip(caches, free, strict=True)]
    blocks, why = smallest(by_memory), f"{fraction:g} of free memory after engine load"
    if max_tokens is not None:
        both = smallest([blocks, *bounded])
        why = why if both == blocks else "kv_cache.max_tokens"
        blocks = both
    return Pool(blocks, free, tuple(cache.pool_bytes(blocks) for cache in caches), why)


def _of_sequences(cache: RankCache, sequences: int, length: int) -> dict[int | None, int]:
    return {group.window: sequences * group.blocks(length, cache.tokens_per_block) for group in cache.groups}


def _of_tokens(cache: RankCache, tokens: int) -> dict[int | None, int]:
    """Return the blocks of a pool of so many tokens; max_tokens counts tokens of each window's pool."""
    return {group.window: math.ceil(tokens / cache.tokens_per_block) for group in cache.groups}


def smallest_fraction(caches: Sequence[RankCache], pool: Pool, length: int, beams: int) -> float | None:
    """Return the smallest share of free memory, in steps of 0.01, whose pool holds one sequence; None when not even 0.99 does."""
    needed = max(
        (
            cache.sequence_bytes(length) * beams / free if free > 0 else math.inf
            for cache, free in zip(caches, pool.free_bytes, strict=True)
        ),
        default=math.inf,
    )
    if needed > 0.99:
        return None
    step = math.ceil(round(needed * 100, 6)) / 100
    return max(step, 0.01)


def longest_sequence(caches: Sequence[RankCache], pool: Pool, beams: int, most: int) -> int:
    """Return the longest sequence, in whole blocks, of which `beams` fit into the pool; 0 when none does."""
    low, high, step = 0, most // caches[0].tokens_per_block, caches[0].tokens_per_block
    if all(cache.sequences(pool.blocks, most) >= beams for cache in caches):
        return most
    while low < high:
        middle = (low + high + 1) // 2
        if all(cache.sequences(pool.blocks, middle * step) >= beams for cache in caches):
            low = middle
        else:
            high = middle - 1
    return low * step
