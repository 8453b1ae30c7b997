"""Latencies of all requests of a table as arrays: the only module of a load test's analysis that knows how a table lies in memory.

For a request that was due at d and sent at s, whose tokens arrive in events at a1 ... am with k1 ... km tokens, n in all, and whose end is
seen at e:

    ttft        a1 - d              itl   (a_i - a_{i-1}) / k_i, counted k_i times, i = 2 ... m
    tpot        (am - a1) / (n - 1) e2e   e - d
    send_lag    s - d               ttft_from_sent, e2e_from_sent: the same from s

Without a value a request is left out (n = 1 has no tpot), never counted as 0.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtbuild_client.load.outcomes import Mark, Outcome
from trtbuild_client.load.table import NONE, RecordTable

Ints = NDArray[np.int64]
#: Requests whose values are counted together.
_TOGETHER = 256


@dataclass(frozen=True)
class Values:
    """One metric: values, those of one request one after the other, and the requests that they belong to.

    Attributes:
        values: nanoseconds, whole or not.
        requests: those with values: positions among the requests that were looked at, rising.
        sizes: how many values each of them has, at least 1.
    """

    values: NDArray[Any]
    requests: NDArray[np.signedinteger[Any]]
    sizes: NDArray[np.signedinteger[Any]]

    @property
    def is_clustered(self) -> bool:
        """Whether a request has several values."""
        return len(self.values) > len(self.requests)

    @property
    def owner(self) -> NDArray[np.signedinteger[Any]]:
        """The request of each value."""
        return np.repeat(self.requests, self.sizes)

    def count(self, is_counted: NDArray[np.bool_]) -> Ints:
        """Return for each request how many of its values are marked."""
        if not self.is_clustered:
            return is_counted.astype(np.int64)
        starts = np.append(_starts(self.sizes), len(self.values))
        found = np.empty(len(self.sizes), np.int64)
        for first in range(0, len(found), _TOGETHER):  # reduceat makes numbers of all that it is given
            edges = starts[first : first + _TOGETHER + 1]
            part = is_counted[edges[0] : edges[-1]]
            found[first : first + _TOGETHER] = np.add.reduceat(part, edges[:-1] - edges[0], dtype=np.int64)
        return found


class View:
    """The requests of a table that count, as arrays.

    Args:
        table: the records.
        is_streamed: whether tokens were asked for as they come; without it only e2e and send_lag exist.
    """

    def __init__(self, table: RecordTable, *, is_streamed: bool = True) -> None:
        self.is_streamed = is_streamed
        # Copies, so that the table can still grow.
        self.all = {name: np.array(column) for name, column in table.columns.items()}
        self.measured: NDArray[np.bool_] = (self.all["marks"] & Mark.WARMUP) == 0
        self.ok: NDArray[np.bool_] = self.measured & (self.all["outcome"] == Outcome.OK)
        self.failed: NDArray[np.bool_] = (
            self.measured & (self.all["outcome"] != Outcome.OK) & (self.all["outcome"] != Outcome.CANCELLED)
        )
        self._events = table.events

    def column(self, name: str, rows: NDArray[np.bool_] | None = None) -> Ints:
        """Return a column of the requests that succeeded, or of others."""
        found: Ints = self.all[name][self.ok if rows is None else rows]
        return found

    def values(self, metric: str) -> Values:
        """Return a metric of the requests that succeeded, by its name."""
        return _METRICS[metric](self)

    def known(self, name: str) -> Ints:
        """Return the values of a column that are known, of the requests that succeeded."""
        column = self.column(name)
        found: Ints = column[column != NONE]
        return found

    def send_lag(self) -> Values:
        """Return by how much each measured request was sent late, whatever became of it."""
        rows = self.measured & (self.all["sent_ns"] != NONE)
        lag = (self.all["sent_ns"] - self.all["due_ns"])[rows]
        return _each(lag, np.arange(len(lag)))

    def _since(self, later: str, since: str, *, needs_stream: bool = True) -> Values:
        at = self.column(later)
        has_value = (at != NONE) & (self.is_streamed or not needs_stream)
        return _each((at - self.column(since))[has_value], np.flatnonzero(has_value))

    def _tpot(self) -> Values:
        tokens = self.column("output_tokens")
        has_value = (self.column("events") > 1) & (tokens > 1) & self.is_streamed
        span = self.column("last_event_ns") - self.column("first_event_ns")
        return _each(span[has_value] / (tokens[has_value] - 1), np.flatnonzero(has_value))

    def _itl(self) -> Values:
        events = self.column("events")
        requests = np.flatnonzero((events > 1) & self.is_streamed)
        first, sizes = self.column("first_event")[requests] + 1, events[requests] - 1
        gaps = _picked(self._events.gaps_ns, first, sizes)
        tokens = _picked(self._events.tokens, first, sizes)
        if (tokens == 1).all():
            return Values(gaps, requests, sizes)
        of_each = np.add.reduceat(tokens, _starts(sizes), dtype=np.int64)
        return Values(np.repeat(gaps / tokens, tokens), requests, of_each)


_METRICS: dict[str, Callable[[View], Values]] = {
    "ttft": lambda view: view._since("first_event_ns", "due_ns"),
    "ttft_from_sent": lambda view: view._since("first_event_ns", "sent_ns"),
    "first_content": lambda view: view._since("first_content_ns", "due_ns"),
    "itl": View._itl,
    "tpot": View._tpot,
    "e2e": lambda view: view._since("end_ns", "due_ns", needs_stream=False),
    "e2e_from_sent": lambda view: view._since("end_ns", "sent_ns", needs_stream=False),
    "send_lag": View.send_lag,
}
#: Metrics that need the arrival of single tokens.
NEED_STREAMING = ("ttft", "ttft_from_sent", "first_content", "itl", "tpot")


def _picked(column: array[int], first: Ints, sizes: NDArray[np.signedinteger[Any]]) -> NDArray[np.signedinteger[Any]]:
    """Return parts of a column, one after the other. There are as many values as tokens, so no index is made of them."""
    # An array cannot grow while numpy looks at it, which ends with this function.
    everything = np.frombuffer(column, column.typecode) if column else np.empty(0, column.typecode)
    found = np.empty(int(sizes.sum()), everything.dtype)
    at = 0
    for start, size in zip(first.data, sizes.data, strict=True):
        found[at : at + size] = everything[start : start + size]
        at += size
    return found


def _starts(sizes: NDArray[np.signedinteger[Any]]) -> Ints:
    found: Ints = np.cumsum(sizes, dtype=np.int64) - sizes
    return found


def _each(values: NDArray[Any], requests: NDArray[np.signedinteger[Any]]) -> Values:
    return Values(values.astype(np.float64), requests, np.ones(len(values), np.int8))
