"""What a Triton server's metrics (port 8002) say about an LLM: queue, batch, KV cache, and what does not add up.

Families and labels: TensorRT-LLM's Triton backend (tensorrt_llm/batch_manager's custom_metrics_reporter) and Triton core
(docs/user_guide/metrics.md). What a server does not export is None, never 0.
"""

from __future__ import annotations

import http.client
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

from trtbuild_client.errors import ConnectError, InvalidRequest
from trtbuild_client.prometheus import Sample, parse, select, total

_REQUESTS = "nv_trt_llm_request_metrics"
_BLOCKS = "nv_trt_llm_kv_cache_block_metrics"
_TIMEOUT_S = 5.0
#: How often gauges are read while something runs; the backend refreshes them every 100 ms (stats_check_period_ms).
_WATCH_EVERY_S = 0.2
#: gauge of ours -> family, label, value of the label.
_GAUGES: dict[str, tuple[str, str, str]] = {
    "active_requests": (_REQUESTS, "request_type", "active"),
    "scheduled_requests": (_REQUESTS, "request_type", "scheduled"),
    "waiting_requests": (_REQUESTS, "request_type", "waiting"),
    "max_requests": (_REQUESTS, "request_type", "max"),
    "kv_cache_fraction": (_BLOCKS, "kv_cache_block_type", "fraction"),
    "kv_cache_max_blocks": (_BLOCKS, "kv_cache_block_type", "max"),
    "kv_cache_tokens_per_block": (_BLOCKS, "kv_cache_block_type", "tokens_per"),
    "paused_requests": ("nv_trt_llm_inflight_batcher_metrics", "inflight_batcher_specific_metric", "paused_requests"),
}


@dataclass(frozen=True, slots=True)
class ServerMetrics:
    """What the metrics said of one run.

    Attributes:
        gauges: highest value while it ran, by name of `_GAUGES` and `pending_requests`; None for what is not exported.
        requests: requests that the front model finished meanwhile, None when unknown.
        queue_us, compute_us: their mean time in Triton's queue and in the models, microseconds.
        notes: what does not add up, in words.
    """

    gauges: Mapping[str, float | None]
    requests: float | None
    queue_us: float | None
    compute_us: float | None
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def scrape(address: str) -> list[Sample]:
    """Return all samples of a metrics endpoint.

    Args:
        address: HOST:PORT, or http://HOST:PORT with an optional path instead of /metrics.

    Raises:
        InvalidRequest: the address cannot be.
        ConnectError: nobody answers there, or not with metrics.
    """
    host_port, _, path = address.removeprefix("http://").partition("/")
    host, _, port = host_port.rpartition(":")
    if not host or not port.isdecimal():
        raise InvalidRequest(f"metrics address '{address}'", hint="Write HOST:PORT, such as 127.0.0.1:8002.")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=_TIMEOUT_S)
    try:
        connection.request("GET", f"/{path or 'metrics'}")
        answer = connection.getresponse()
        text = answer.read().decode("utf-8", "replace")
        if answer.status != 200:
            raise ConnectError(f"metrics of {address}: HTTP status {answer.status}", hint="Is this the metrics port?")
    except (OSError, http.client.HTTPException) as error:
        raise ConnectError(
            f"no metrics from {address} ({error})", hint="Triton serves them on port 8002 unless told otherwise."
        ) from error
    finally:
        connection.close()
    return parse(text)


def gauges(samples: list[Sample]) -> dict[str, float | None]:
    """Return every gauge as it is now; a value that is no number counts as not exported."""
    found = {name: total(samples, family, **{label: value}) for name, (family, label, value) in _GAUGES.items()}
    found["pending_requests"] = total(samples, "nv_inference_pending_request_count")
    return {name: None if value is None or math.isnan(value) else value for name, value in found.items()}


def compare(
    before: list[Sample], after: list[Sample], peaks: Mapping[str, float | None], *, model: str, is_decoupled: bool
) -> ServerMetrics:
    """Return what happened between two scrapes.

    Args:
        peaks: highest values seen in between.
        model: the front model, which clients ask.
    """

    def grown(name: str, of: str = model) -> float | None:
        last = total(after, name, model=of)
        return None if last is None else last - (total(before, name, model=of) or 0.0)

    requests = grown("nv_inference_request_success")
    means = [
        None if not requests or (spent := grown(f"nv_inference_{part}_duration_us")) is None else spent / requests
        for part in ("queue", "compute_infer")
    ]
    return ServerMetrics(
        gauges=dict(peaks),
        requests=requests,
        queue_us=means[0],
        compute_us=means[1],
        notes=tuple(_notes(after, grown, requests, model=model, is_decoupled=is_decoupled)),
    )


def _notes(
    after: list[Sample],
    grown: Callable[..., float | None],
    requests: float | None,
    *,
    model: str,
    is_decoupled: bool,
) -> Sequence[str]:
    notes = []
    if requests is None:
        notes.append(f"the metrics do not know model '{model}': is this the same server?")
    if requests and model != "tensorrt_llm" and grown("nv_inference_request_success", "tensorrt_llm") == 0:
        notes.append(
            f"'{model}' finished {requests:g} requests, but 'tensorrt_llm' counts none: containers before 23.12 do not "
            f"count for that backend; use the counters of '{model}'"
        )
    if not select(after, _REQUESTS) and not select(after, _BLOCKS):
        notes.append(
            "no nv_trt_llm_* families: only the engine's backend exports them (not the LLM API's model), so batch and KV cache are unknown"
        )
    if not any(sample.name.startswith("nv_inference_first_response_histogram_ms") for sample in after):
        why = (
            "start the server with --metrics-config histogram_latencies=true"
            if is_decoupled
            else "the model is not decoupled"
        )
        notes.append(f"no time to first response from the server ({why}); it was measured here")
    odd = sorted({sample.name for sample in after if sample.labels.get("model") in ("", "undefined")})
    if odd:
        notes.append(f"without a name of a model: {', '.join(odd[:3])}")
    return notes


class Watcher:
    """Reads the gauges now and then while a block runs.

    Args:
        address: see `scrape`.

    Attributes:
        before, after: the samples at the beginning and at the end.
        peaks: highest value of each gauge.

    Raises:
        InvalidRequest, ConnectError: see `scrape`; at the beginning.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self.before: list[Sample] = []
        self.after: list[Sample] = []
        self.peaks: dict[str, float | None] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="trtbuild-client-metrics", daemon=True)

    def __enter__(self) -> Watcher:
        self.before = scrape(self._address)
        self._note(self.before)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        if kind is None:
            self.after = scrape(self._address)
            self._note(self.after)

    def _watch(self) -> None:
        while not self._is_over.wait(_WATCH_EVERY_S):
            try:
                self._note(scrape(self._address))
            except ConnectError:  # one that is missed; the scrape at the end tells
                continue

    def _note(self, samples: list[Sample]) -> None:
        for name, value in gauges(samples).items():
            known = self.peaks.get(name)
            self.peaks[name] = value if known is None else max(known, value if value is not None else known)
