"""What the gateway counts, and Prometheus' text of it.

https://prometheus.io/docs/instrumenting/exposition_formats/. Labels have few values by construction: endpoints and statuses, never
anything that a request says.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

#: Upper bounds of the histograms, seconds: from a small model's first token to the default limit of a request.
BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "trtbuild_gateway_"

_COUNTERS = {
    "requests_total": "Requests by endpoint and HTTP status; 499 stands for callers that went away.",
    "failed_streams_total": "Streams that ended with an error after their status had been sent.",
    "disconnects_total": "Callers that went away before their answer was complete.",
    "prompt_tokens_total": "Tokens of prompts, where they were counted.",
    "completion_tokens_total": "Tokens of answers, where they were counted.",
}
_HISTOGRAMS = {
    "request_seconds": "From the head of a request to the last byte of its answer.",
    "first_token_seconds": "From the head of a request to the first text of a streamed answer.",
}


class Metrics:
    """All numbers of one gateway; one event loop."""

    def __init__(self) -> None:
        self._counters: dict[str, dict[tuple[tuple[str, str], ...], int]] = {
            name: defaultdict(int) for name in _COUNTERS
        }
        self._histograms: dict[str, dict[str, _Histogram]] = {name: defaultdict(_Histogram) for name in _HISTOGRAMS}
        for name in ("failed_streams_total", "disconnects_total", "prompt_tokens_total", "completion_tokens_total"):
            self._counters[name][()] = 0

    def count(self, name: str, amount: int = 1, **labels: Any) -> None:
        """Add to a counter."""
        self._counters[name][tuple((label, str(value)) for label, value in labels.items())] += amount

    def observe(self, name: str, value_s: float, *, endpoint: str) -> None:
        """Add a time to a histogram."""
        self._histograms[name][endpoint].add(value_s)

    def text(self, *, in_flight: int) -> str:
        """Return everything in Prometheus' format."""
        return "\n".join(self._lines(in_flight)) + "\n"

    def _lines(self, in_flight: int) -> Iterator[str]:
        for name, help_text in _COUNTERS.items():
            yield from _head(name, "counter", help_text)
            for labels, value in self._counters[name].items():
                inside = ",".join(f'{label}="{text}"' for label, text in labels)
                yield f"{_PREFIX}{name}{{{inside}}} {value}" if inside else f"{_PREFIX}{name} {value}"
        yield from _head("in_flight", "gauge", "Answers that are being made.")
        yield f"{_PREFIX}in_flight {in_flight}"
        for name, help_text in _HISTOGRAMS.items():
            yield from _head(name, "histogram", help_text)
            for endpoint, histogram in self._histograms[name].items():
                yield from histogram.lines(f"{_PREFIX}{name}", endpoint)


class _Histogram:
    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS_S) + 1)
        self._sum_s = 0.0

    def add(self, value_s: float) -> None:
        self._counts[bisect_left(BUCKETS_S, value_s)] += 1
        self._sum_s += value_s

    def lines(self, name: str, endpoint: str) -> Iterator[str]:
        total = 0
        for bound, count in zip((*BUCKETS_S, "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{endpoint="{endpoint}",le="{bound}"}} {total}'
        yield f'{name}_sum{{endpoint="{endpoint}"}} {self._sum_s}'
        yield f'{name}_count{{endpoint="{endpoint}"}} {total}'


def _head(name: str, kind: str, help_text: str) -> Iterator[str]:
    yield f"# HELP {_PREFIX}{name} {help_text}"
    yield f"# TYPE {_PREFIX}{name} {kind}"
