"""What the engine says about itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A look at the engine.

    Attributes:
        active: requests accepted and not finished.
        max_active: requests that can be in flight at once.
        scheduled, context, context_tokens, iteration, timestamp_s: see `StepCounts`; of the latest step.
        waiting: accepted, but not in the latest step's batch.
        kv_blocks_max, kv_blocks_free, kv_blocks_used: of the pool; reusable blocks of finished requests are free.
        kv_blocks_reused: filled blocks that were found instead of computed, since the start.
        tokens_per_block: tokens in a block.
        memory_bytes: weights and pool.
    """

    active: int
    max_active: int
    scheduled: int
    context: int
    context_tokens: int
    iteration: int
    waiting: int
    kv_blocks_max: int
    kv_blocks_free: int
    kv_blocks_used: int
    kv_blocks_reused: int
    tokens_per_block: int
    memory_bytes: int
    timestamp_s: float
