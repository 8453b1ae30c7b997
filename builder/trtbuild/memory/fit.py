"""Whether a deployment fits its GPUs, and what its owner should know when it does.

Field reports EB06 to EB09, EB11 and EB16: a deployment fits when every rank loads and its KV pool holds one sequence of full length.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from trtbuild.checks.sizes import MOST_GPU_BYTES
from trtbuild.memory.buffers import RESERVE_FLOOR_BYTES
from trtbuild.memory.estimate import Estimate
from trtbuild.memory.pool import longest_sequence, smallest_fraction

_GIB = 2**30


@dataclass(frozen=True)
class Problem:
    """Why a deployment does not fit, and what would make it fit without another plan: each way begins with its key."""

    message: str
    ways: tuple[str, ...] = ()

    def way_out(self, suggested: Collection[str] = ()) -> str:
        """Return the ways in words, without those whose keys are suggested with a value already."""
        return " or ".join(way for way in self.ways if way.partition(" ")[0] not in suggested)


def gib(nbytes: float) -> str:
    """Return bytes in GiB, two decimals."""
    return f"{nbytes / _GIB:.2f} GiB"


def problems(it: Estimate) -> list[Problem]:
    """Return why a deployment does not fit; empty when it does or when no GPU is known."""
    found = list(_too_few_gpus(it))
    if it.memory_bytes is None:
        return found
    overfull = [number for number, free in enumerate(it.pool.free_bytes) if free <= 0]
    if overfull:
        return [*found, _does_not_load(it, overfull)]
    return [*found, *_no_sequence(it)]


def _too_few_gpus(it: Estimate) -> Iterator[Problem]:
    count, ranks = it.deployment.hardware.count, it.parallel.world_size
    if count is not None and ranks > count:
        yield Problem(
            f"tp {it.parallel.tp_size} x pp {it.parallel.pp_size} are {ranks} ranks, one GPU each, and hardware.count is {count}",
            ("a larger hardware.count, or a smaller tp_size or pp_size",),
        )


def _does_not_load(it: Estimate, overfull: list[int]) -> Problem:
    number = max(overfull, key=lambda number: it.ranks[number].fixed_bytes)
    rank = it.ranks[number]
    largest = sorted(rank.lines, key=lambda line: -line.nbytes)[:3]
    parts = ", ".join(f"{line.name} {gib(line.nbytes)}" for line in largest)
    return Problem(
        f"rank {number} takes {gib(rank.fixed_bytes)} before any KV cache ({parts}), the GPU has {gib(it.memory_bytes or 0)}"
    )


def _no_sequence(it: Estimate) -> Iterator[Problem]:
    length, beams = it.limits.max_seq_len, it.limits.max_beam_width
    if it.sequences(length) >= 1:
        return
    per_block = it.limits.tokens_per_block
    caches = [rank.cache for rank in it.ranks]
    group = min(
        (group for cache in caches for group in cache.groups),
        key=lambda group: it.pool.blocks[group.window] / max(group.blocks(length, per_block), 1),
    )
    needed = group.blocks(length, per_block) * beams
    has_beams = f" with {beams} beams" if beams > 1 else ""
    ways = []
    if it.copies == 1 and (fraction := smallest_fraction(caches, it.pool, length, beams)) is not None:
        ways.append(f"kv_cache.free_gpu_memory_fraction >= {fraction:g}")
    if longest := longest_sequence(caches, it.pool, beams, length):
        ways.append(f"limits.max_seq_len <= {longest}")
    yield Problem(
        f"the KV pool has {it.pool.blocks[group.window]} blocks of {per_block} tokens ({it.pool.limited_by}), "
        f"one sequence of {length} tokens{has_beams} needs {needed}",
        tuple(ways),
    )


def remarks(it: Estimate) -> list[str]:
    """Return what an owner should know about a deployment that fits."""
    return [*_unknown_gpu(it), *_requests_at_once(it), *_reserve(it), *_not_planned(it)]


def _unknown_gpu(it: Estimate) -> Iterator[str]:
    """A GPU that the table of memory and bandwidths has no row of."""
    named = it.deployment.hardware.gpu
    if named is None or it.spec is not None:
        return
    if it.memory_bytes is None:
        yield f"trtbuild has no datasheet of '{named}' (only its SM number): set hardware.memory_bytes, in bytes, to have the fit checked"
    else:
        yield f"trtbuild has no datasheet of '{named}': no times are estimated, which need its bandwidth and peaks"


def _requests_at_once(it: Estimate) -> Iterator[str]:
    """Field report EB07: more requests than the pool holds at full length."""
    batch, length, beams = it.limits.max_batch_size, it.limits.max_seq_len, it.limits.max_beam_width
    most = it.sequences(length)
    if it.memory_bytes is None and it.deployment.kv_cache.max_tokens is None:
        return
    if most < batch * it.copies:
        per_block = it.limits.tokens_per_block
        group = it.ranks[0].cache.groups[0]
        needed = batch * beams * group.blocks(length, per_block)
        yield (
            f"{batch} requests of {length} tokens need {needed} blocks, the pool has {it.pool.blocks.get(group.window, 0)}: "
            f"at most {most} such requests at once, further ones wait"
        )


def _reserve(it: Estimate) -> Iterator[str]:
    """Field report EB11: what fits offline runs out of memory in Triton."""
    left = [reserve for number in range(len(it.ranks)) if (reserve := it.reserve_bytes(number)) is not None]
    if left and 0 <= min(left) < RESERVE_FLOOR_BYTES:
        yield (
            f"only {gib(min(left))} of a GPU stay free, less than {gib(RESERVE_FLOOR_BYTES)}: a server whose buffers are larger than "
            "estimated runs out of memory; lower kv_cache.free_gpu_memory_fraction"
        )


def _not_planned(it: Estimate) -> Iterator[str]:
    """What the formulas do not know."""
    if it.draft is not None and it.draft.cache is None:
        yield "the draft model's config.json names no attention: no KV cache is counted for it"
    if it.deployment.target == "pytorch" and it.deployment.llm_api.attention_dp:
        yield "llm_api.attention_dp: attention is planned as cut over tp; with it each rank holds all of it, and the KV cache of its own requests"


def needed_bytes(it: Estimate) -> int | None:
    """Return the smallest memory of a GPU on which every rank loads and holds one sequence of full length; None where the share of free memory
    that is for the KV cache makes no GPU large enough.
    """
    fraction = it.deployment.kv_cache.free_gpu_memory_fraction / it.copies
    length, beams = it.limits.max_seq_len, it.limits.max_beam_width
    pools = [math.ceil(rank.cache.sequence_bytes(length) * beams / fraction) for rank in it.ranks]
    if max(pools) > MOST_GPU_BYTES:
        return None
    return max(rank.fixed_bytes + pool for rank, pool in zip(it.ranks, pools, strict=True))
