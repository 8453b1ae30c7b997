"""An estimate as plain data: what `trtbuild plan --json` prints, and the tables are made of."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from trtbuild.memory.estimate import Estimate, RankMemory
from trtbuild.memory.fit import needed_bytes, problems, remarks
from trtbuild.memory.kv import describe, waste
from trtbuild.memory.roofline import speed, streaming_s

if TYPE_CHECKING:
    from trtbuild.memory.suggest import Suggestion

#: Raised when a key of the plan changes its meaning or goes away.
SCHEMA_VERSION = 1


def memory(it: Estimate) -> dict[str, Any]:
    """Return the memory of every rank and the KV pool."""
    return {
        "gpu": _gpu(it),
        "gpu_memory_bytes": it.memory_bytes,
        "copies": it.copies,
        "smallest_gpu_bytes": needed_bytes(it),
        "compression": _compression(it),
        "ranks": [_rank(it, number, rank) for number, rank in enumerate(it.ranks)],
        "kv_pool": _pool(it),
    }


def _gpu(it: Estimate) -> dict[str, Any] | None:
    if it.spec is None:
        return None
    return {**asdict(it.spec), "words": list(it.spec.words), "sm": it.spec.sm}


def _compression(it: Estimate) -> dict[str, int | float]:
    """Return how much smaller the weights of all ranks are than the same tensors in 16 bits (the head counted where it is stored)."""
    plain = 2 * sum(rank.weights.elements for rank in it.ranks)
    held = sum(rank.weights.nbytes for rank in it.ranks)
    return {"bytes": held, "sixteen_bit_bytes": plain, "ratio": held / plain if plain else 1.0}


def _rank(it: Estimate, number: int, rank: RankMemory) -> dict[str, Any]:
    pool = it.pool.pool_bytes[number] * it.copies
    return {
        "rank": number,
        "tp_rank": rank.rank.tp_rank,
        "pp_rank": rank.rank.pp_rank,
        "layers": list(rank.layers),
        "lines": [line.to_json() for line in rank.lines],
        "weight_bytes": rank.weights.nbytes,
        "file_bytes": rank.weights.file_bytes,
        "fixed_bytes": rank.fixed_bytes,
        "free_after_load_bytes": it.pool.free_bytes[number] if it.pool.free_bytes else None,
        "kv_pool_bytes": pool,
        "adapter_bytes": it.adapter_bytes(number),
        "reserve_bytes": it.reserve_bytes(number),
        "total_bytes": it.total_bytes(number),
        "kv_groups": describe(rank.own_cache),
    }


def _pool(it: Estimate) -> dict[str, Any]:
    cache, length = it.ranks[0].cache, it.limits.max_seq_len
    return {
        "blocks": [{"window": window, "blocks": count} for window, count in it.pool.blocks.items()],
        "tokens_per_block": it.limits.tokens_per_block,
        "tokens": it.pool.tokens(it.limits.tokens_per_block),
        "limited_by": it.pool.limited_by,
        "free_gpu_memory_fraction": it.deployment.kv_cache.free_gpu_memory_fraction,
        "element_bytes": it.element,
        "bytes_per_token": max(rank.cache.token_bytes for rank in it.ranks),
        "full_length": {"tokens": length, "sequence_bytes": cache.sequence_bytes(length), "sequences": it.sequences(length)},
        "at_lengths": {
            "input_len": it.lengths.input_len.value,
            "output_len": it.lengths.output_len.value,
            "sequence_bytes": cache.sequence_bytes(it.lengths.total),
            "sequences": it.sequences(it.lengths.total),
            "block_waste": waste(it.lengths.total, it.limits.tokens_per_block),
        },
    }  # fmt: skip


def fit(it: Estimate, found: list[Suggestion]) -> dict[str, Any]:
    """Return whether it fits (None: not checked), why not, and what would."""
    wrong = problems(it)
    suggested = {key for each in found if len(each.settings) == 1 for key in each.settings}
    return {
        "checked": it.memory_bytes is not None,
        "fits": False if wrong else True if it.memory_bytes is not None else None,
        "problems": [{"message": each.message, "way_out": each.way_out(suggested)} for each in wrong],
        "suggestions": [
            {
                "settings": each.settings,
                "gpus": each.estimate.parallel.world_size,
                "fixed_bytes": each.estimate.worst.fixed_bytes,
                "kv_tokens": each.estimate.pool.tokens(each.estimate.limits.tokens_per_block),
                "full_length_sequences": each.estimate.sequences(each.estimate.limits.max_seq_len),
            }
            for each in found
        ],
        "remarks": [] if wrong else remarks(it),
    }


def rates(it: Estimate) -> dict[str, Any] | None:
    """Return the roofline estimate, None without the data of a GPU."""
    found = speed(it)
    if found is None:
        return None
    streams = it.deployment.engine.weight_streaming
    return {**found.to_json(), "weight_streaming_step_s": streaming_s(it) if streams else None}


def summary(it: Estimate) -> dict[str, Any]:
    """Return the figures that what-ifs are compared by."""
    worst, wrong, found = it.worst, problems(it), speed(it)
    return {
        "gpus": it.parallel.world_size,
        "weight_bytes": max(rank.weights.nbytes for rank in it.ranks),
        "fixed_bytes": worst.fixed_bytes,
        "kv_bytes_per_token": max(rank.cache.token_bytes for rank in it.ranks),
        "kv_tokens": it.pool.tokens(it.limits.tokens_per_block),
        "max_seq_len": it.limits.max_seq_len,
        "full_length_sequences": it.sequences(it.limits.max_seq_len),
        "sequences_at_lengths": it.sequences(it.lengths.total),
        "smallest_gpu_bytes": needed_bytes(it),
        "fits": False if wrong else True if it.memory_bytes is not None else None,
        "problems": [each.message for each in wrong],
        "ttft_s": found.ttft_s if found else None,
        "itl_s": found.itl_s if found else None,
        "tokens_per_s": found.tokens_per_s if found else None,
        "cost_per_million_output_tokens": found.cost_per_million if found else None,
    }
