"""Results in other forms: one row per request as CSV or Parquet, and a summary as AIPerf and GenAI-Perf write it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trtbuild_client.errors import InvalidRequest
from trtbuild_client.load.distribution import interpolated
from trtbuild_client.load.metrics import View
from trtbuild_client.load.outcomes import COUNTED_BY, Mark, Outcome
from trtbuild_client.load.result import write_text
from trtbuild_client.load.run import Run
from trtbuild_client.load.summary import Summary
from trtbuild_client.load.table import NONE, RecordTable
from trtbuild_client.output_file import replaced

Runs = Sequence[tuple[Summary, Run]]
#: Columns of a row, in their order; None where there is no value. Times in nanoseconds after the start of the run.
_NUMBERS = (
    "number", "session", "turn", "status", "planned_tokens", "input_tokens", "max_tokens", "output_tokens", "events", "draft_tokens",
    "accepted_draft_tokens", "reused_blocks", "total_blocks", "server_queue_ns", "server_ttft_ns", "server_decode_ns",
)  # fmt: skip
_TIMES = ("due_ns", "sent_ns", "end_ns", "first_content_ns")
_LATENCIES_NS = ("first_token_ns", "last_token_ns", "ttft_ns", "tpot_ns", "e2e_ns", "send_lag_ns")
_TEXTS = ("run", "outcome", "counted_by", "marks", "error")
_NAMES = ("run", *_NUMBERS, *_TIMES, *_LATENCIES_NS, "outcome", "counted_by", "is_warmup", "marks", "error")


def rows(runs: Runs) -> Iterator[dict[str, Any]]:
    """Yield every request of every run, warm-up included."""
    for summary, run in runs:
        for index in range(len(run.table)):
            yield {"run": summary.label, **_row(run.table, index, run.started_ns)}


def _row(table: RecordTable, index: int, started_ns: int) -> dict[str, Any]:
    stored = table.row(index)
    first_ns, last_ns = stored["first_event_ns"], stored["last_event_ns"]
    events = stored["events"]
    marks = Mark(stored["marks"])
    tokens = stored["output_tokens"]
    return {
        **{name: None if stored[name] == NONE else stored[name] for name in _NUMBERS},
        **{name: None if stored[name] == NONE else stored[name] - started_ns for name in _TIMES},
        "first_token_ns": first_ns - started_ns if events else None,
        "last_token_ns": last_ns - started_ns if events else None,
        "ttft_ns": first_ns - stored["due_ns"] if events else None,
        "tpot_ns": (last_ns - first_ns) / (tokens - 1) if events > 1 and tokens > 1 else None,
        "e2e_ns": stored["end_ns"] - stored["due_ns"],
        "send_lag_ns": stored["sent_ns"] - stored["due_ns"],
        "outcome": Outcome(stored["outcome"]).label,
        "counted_by": COUNTED_BY[stored["counted_by"]],
        "is_warmup": Mark.WARMUP in marks,
        "marks": " ".join(marks.labels),
        "error": table.error_of(index),
    }


def write_csv(path: Path, runs: Runs) -> None:
    """Write one line per request."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=_NAMES)
    writer.writeheader()
    writer.writerows(rows(runs))
    write_text(path, text.getvalue())


def need_pyarrow() -> Any:
    """Return pyarrow, of the extra `parquet`.

    Raises:
        InvalidRequest: it is not installed.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise InvalidRequest(
            "Parquet needs the package pyarrow", hint="pip install 'trtbuild[parquet]', or take --csv."
        ) from error
    return pyarrow


def write_parquet(path: Path, runs: Runs) -> None:
    """Write one row per request, whole or not at all; the types of the columns do not depend on what happened.

    Raises:
        InvalidRequest: pyarrow is not installed.
    """
    pyarrow = need_pyarrow()
    from pyarrow import parquet

    kinds = {name: pyarrow.string() for name in _TEXTS} | {"tpot_ns": pyarrow.float64(), "is_warmup": pyarrow.bool_()}
    schema = pyarrow.schema([(name, kinds.get(name, pyarrow.int64())) for name in _NAMES])
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as file:
        parquet.write_table(pyarrow.Table.from_pylist(list(rows(runs)), schema), file)


_PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
#: AIPerf's tag -> our metric (milliseconds there, nanoseconds here).
_LATENCIES = {
    "time_to_first_token": "ttft",
    "inter_token_latency": "tpot",  # AIPerf's is one mean per request
    "request_latency": "e2e",
}


def aiperf(summary: Summary, run: Run, *, described: dict[str, Any], created: str) -> dict[str, Any]:
    """Return a run in the form of AIPerf's profile_export_aiperf.json: per metric a unit and statistics.

    Source: docs.nvidia.com/aiperf/reference/json-export-schema. GenAI-Perf's profile_export_genai_perf.json has the same blocks. Values are
    plain ones: that form has no place for intervals, nor for what is not known; those metrics are left out.
    """
    view = View(run.table, is_streamed=summary.is_streamed)
    metrics: dict[str, Any] = {}
    for tag, name in _LATENCIES.items():
        values = np.sort(view.values(name).values) / 1e6
        if len(values):
            metrics[tag] = {"unit": "ms", **_block(values)}
    lengths = {
        "output_sequence_length": view.column("output_tokens"),
        "input_sequence_length": view.known("input_tokens"),
    }
    for tag, column in lengths.items():
        if len(column):
            metrics[tag] = {"unit": "tokens", **_block(np.sort(column.astype(np.float64)))}
    rates = summary.rates
    for tag, unit, value in (
        ("request_throughput", "requests/sec", rates["requests_per_s"]),
        ("output_token_throughput", "tokens/sec", rates["output_tokens_per_s"]),
        ("request_count", "requests", summary.counts["ok"]),
        ("error_request_count", "requests", summary.counts["failed"]),
        ("benchmark_duration", "sec", rates["duration_s"]),
        ("goodput", "requests/sec", summary.goodput and summary.goodput["requests_per_s"]),
    ):
        if value is not None:
            metrics[tag] = {"unit": unit, "avg": value}
    return {
        **metrics,
        "input_config": {
            "endpoint": {
                "url": described.get("url"),
                "model_names": [described.get("model")],
                "type": described.get("api"),
            },
            "loadgen": summary.plan,
        },
        "was_cancelled": bool(summary.client["interrupted"]),
        "start_time": created,
        "error_summary": [{"error_details": {"message": text}, "count": count} for text, count in summary.errors],
        "exported_by": "trtbuild bench",
    }


def _block(values: Any) -> dict[str, float | int]:
    return {
        "avg": float(values.mean()),
        "min": float(values[0]),
        "max": float(values[-1]),
        **{f"p{q}": interpolated(values, q / 100) for q in _PERCENTILES},
        "std": float(values.std(ddof=1)) if len(values) > 1 else 0.0,
        "count": len(values),
        "sum": float(values.sum()),
    }
