"""The mock's metrics as Prometheus text: families and labels of Triton core and of the TensorRT-LLM backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from trtbuild_client.mock.models import Model

if TYPE_CHECKING:
    from trtbuild_client.mock.engine import Engine

#: Blocks of the KV cache that the mock claims to have, and tokens in each.
_BLOCKS, _TOKENS_PER_BLOCK = 1024, 32


def text(engine: Engine, models: Mapping[str, Model]) -> str:
    """Return all families; those of the backend only for a model of the engine variant, as the LLM API has none."""
    lines: list[str] = []
    for name, kind, help_text, rows in _families(engine, models):
        lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{suffix}{{{labels}}} {_number(value)}" for suffix, labels, value in rows]
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


_Row = tuple[str, str, float]
_Family = tuple[str, str, str, list[_Row]]


def _families(engine: Engine, models: Mapping[str, Model]) -> Iterator[_Family]:
    counted = {name: engine.counters.models[name] for name in models}

    def each(attribute: str, scale: float = 1.0) -> list[_Row]:
        return [("", f'model="{name}",version="1"', getattr(c, attribute) * scale) for name, c in counted.items()]

    yield "nv_inference_request_success", "counter", "Number of successful inference requests", each("ok")
    reasons = [
        ("", f'model="{name}",reason="{reason}",version="1"', float(value))
        for name, c in counted.items()
        for reason, value in (("REJECTED", 0), ("CANCELED", c.cancelled), ("BACKEND", c.failed), ("OTHER", 0))
    ]
    yield "nv_inference_request_failure", "counter", "Number of failed inference requests", reasons
    yield "nv_inference_count", "counter", "Number of inferences performed", each("ok")
    yield "nv_inference_exec_count", "counter", "Number of model executions performed", each("ok")
    for part, attribute in (("request", "ok_ns"), ("queue", "queue_ns"), ("compute_infer", "compute_ns")):
        yield (
            f"nv_inference_{part}_duration_us",
            "counter",
            f"Cumulative {part} duration in microseconds",
            each(attribute, 1e-3),
        )
    pending = [("", f'model="{name}",version="1"', float(engine.waiting)) for name in models]
    yield "nv_inference_pending_request_count", "gauge", "Number of requests awaiting execution", pending
    core = models.get("tensorrt_llm")
    if core is None or "input_ids" not in core.inputs:
        return
    limit = engine.options.max_concurrency or core.max_batch_size
    used = min(engine.active, _BLOCKS)
    tokens = counted["tensorrt_llm"]
    for name, label, values in (
        ("nv_trt_llm_request_metrics", "request_type", {
            "active": engine.active + engine.waiting, "max": limit, "scheduled": engine.active, "context": 0,
            "waiting": engine.waiting,
        }),
        ("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", {
            "max": _BLOCKS, "free": _BLOCKS - used, "used": used, "tokens_per": _TOKENS_PER_BLOCK,
            "fraction": used / _BLOCKS, "reused": 0,
        }),
        ("nv_trt_llm_inflight_batcher_metrics", "inflight_batcher_specific_metric", {
            "total_context_tokens": 0, "generation_requests": engine.active, "micro_batch_id": 0, "paused_requests": 0,
        }),
        ("nv_trt_llm_general_metrics", "general_type", {"timestamp": 0, "iteration_counter": tokens.responses}),
    ):  # fmt: skip
        rows = [
            ("", f'model="tensorrt_llm",{label}="{key}",version="1"', float(value)) for key, value in values.items()
        ]
        yield name, "gauge", f"TensorRT-LLM {label}", rows
    for name, kind, total in (
        ("nv_llm_input_token_len", "total_input_tokens", tokens.input_tokens),
        ("nv_llm_output_token_len", "total_output_tokens", tokens.output_tokens),
    ):
        labels = f'model="tensorrt_llm",response_metric_type="{kind}",version="1"'
        yield name, "histogram", f"TensorRT-LLM {kind}", [
            ("_bucket", f'{labels},le="+Inf"', tokens.ok), ("_count", labels, tokens.ok), ("_sum", labels, total),
        ]  # fmt: skip
