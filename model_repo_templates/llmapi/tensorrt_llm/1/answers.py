"""From an output of the LLM API to tensors of the types that config.pbtxt declares. Knows no request and no server."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
from asked import Asked
from serving import byte_strings

#: Output -> (where it is in RequestPerfMetrics, dtype). Times are timedeltas there.
_METRICS: dict[str, tuple[str, str, type[np.generic]]] = {
    "kv_cache_reused_block": ("kv_cache_metrics", "num_reused_blocks", np.int32),
    "kv_cache_hit_rate": ("kv_cache_metrics", "kv_cache_hit_rate", np.float32),
    "kv_cache_alloc_new_blocks": ("kv_cache_metrics", "num_new_allocated_blocks", np.int32),
    "kv_cache_alloc_total_blocks": ("kv_cache_metrics", "num_total_allocated_blocks", np.int32),
    "kv_cache_missed_block": ("kv_cache_metrics", "num_missed_blocks", np.int32),
    "arrival_time_ns": ("timing_metrics", "arrival_time", np.int64),
    "first_scheduled_time_ns": ("timing_metrics", "first_scheduled_time", np.int64),
    "first_token_time_ns": ("timing_metrics", "first_token_time", np.int64),
    "last_token_time_ns": ("timing_metrics", "last_token_time", np.int64),
    "acceptance_rate": ("speculative_decoding", "acceptance_rate", np.float32),
    "total_accepted_draft_tokens": ("speculative_decoding", "total_accepted_draft_tokens", np.int32),
    "total_draft_tokens": ("speculative_decoding", "total_draft_tokens", np.int32),
}


def tensors(output: Any, asked: Asked) -> dict[str, np.ndarray[Any, Any]]:
    """Return the tensors of one response.

    The text is all text so far, as the stock model sends it, and not only what is new. A reason is an empty text while there is none.

    Args:
        output: a RequestOutput, finished or on its way.
        asked: what was asked for.
    """
    first = output.outputs[0]
    made = {"text_output": _text((asked.prompt if asked.includes_prompt else "") + first.text)}
    if "finish_reason" in asked.wants:
        made["finish_reason"] = _text(first.finish_reason)
    if "stop_reason" in asked.wants:
        made["stop_reason"] = _text(first.stop_reason)
    if "cumulative_logprob" in asked.wants and first.cumulative_logprob is not None:
        made["cumulative_logprob"] = np.array([first.cumulative_logprob], np.float32)
    if "perf_metrics" in asked.wants:
        made.update(_metrics(getattr(first, "request_perf_metrics", None)))
    return made


def _text(value: Any) -> np.ndarray[Any, Any]:
    return byte_strings([["" if value is None else str(value)]]).reshape(-1)


def _metrics(measured: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Return what was measured; nothing while the answer is on its way."""
    made = {}
    for name, (group, field, dtype) in _METRICS.items():
        value = getattr(getattr(measured, group, None), field, None)
        if value is not None:
            made[name] = np.array([_nanoseconds(value) if dtype is np.int64 else value], dtype)
    return made


def _nanoseconds(value: timedelta) -> int:
    """Return a timedelta in nanoseconds, without the rounding of its `total_seconds`."""
    return ((value.days * 86_400 + value.seconds) * 10**6 + value.microseconds) * 1000
