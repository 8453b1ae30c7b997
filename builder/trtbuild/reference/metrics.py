"""The metric families of TensorRT-LLM's Triton backend, filled from the engine's statistics.

Names and label values are upstream's, so a dashboard made for the GPU backend shows the same panels. Does not know
Triton: the caller registers families and sets values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trtbuild.reference.stats import EngineStats

Reading = Callable[[EngineStats], float]


@dataclass(frozen=True, slots=True)
class Family:
    """One gauge family.

    Attributes:
        name: of the family.
        description: its help text.
        label: the label that tells its values apart.
        readings: label value -> how it is computed.
    """

    name: str
    description: str
    label: str
    readings: dict[str, Reading]


FAMILIES: tuple[Family, ...] = (
    Family(
        "nv_trt_llm_request_metrics",
        "Requests by state",
        "request_type",
        {
            "active": lambda stats: stats.active,
            "max": lambda stats: stats.max_active,
            "scheduled": lambda stats: stats.scheduled,
            "context": lambda stats: stats.context,
            "waiting": lambda stats: stats.waiting,
        },
    ),
    Family(
        "nv_trt_llm_runtime_memory_metrics",
        "Memory of weights and KV cache, bytes",
        "memory_type",
        {"cpu": lambda stats: stats.memory_bytes, "gpu": lambda _: 0, "pinned": lambda _: 0},
    ),
    Family(
        "nv_trt_llm_kv_cache_block_metrics",
        "Blocks of the KV cache",
        "kv_cache_block_type",
        {
            "max": lambda stats: stats.kv_blocks_max,
            "free": lambda stats: stats.kv_blocks_free,
            "used": lambda stats: stats.kv_blocks_used,
            "tokens_per": lambda stats: stats.tokens_per_block,
            "fraction": lambda stats: stats.kv_blocks_used / stats.kv_blocks_max,
            "reused": lambda stats: stats.kv_blocks_reused,
        },
    ),
    Family(
        "nv_trt_llm_inflight_batcher_metrics",
        "In-flight batching",
        "inflight_batcher_specific_metric",
        {
            "total_context_tokens": lambda stats: stats.context_tokens,
            "generation_requests": lambda stats: stats.scheduled - stats.context,
            "micro_batch_id": lambda _: 0,
            "paused_requests": lambda _: 0,
        },
    ),
    Family(
        "nv_trt_llm_general_metrics",
        "General information",
        "general_type",
        {"timestamp": lambda stats: stats.timestamp_s, "iteration_counter": lambda stats: stats.iteration},
    ),
)


LENGTH_FAMILIES: tuple[tuple[str, str, str], ...] = (
    ("nv_llm_input_token_len", "Prompt length of finished requests, tokens", "total_input_tokens"),
    ("nv_llm_output_token_len", "Answer length of finished requests, tokens", "total_output_tokens"),
)
"""Histogram families: name, help text, value of the label `response_metric_type`."""

LENGTH_BUCKETS = (10.0, 50.0, 100.0, 500.0, 1000.0)


def read(stats: EngineStats) -> dict[tuple[str, str], float]:
    """Return every value by (family, label value)."""
    return {
        (family.name, value): float(reading(stats)) for family in FAMILIES for value, reading in family.readings.items()
    }
