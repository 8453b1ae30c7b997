"""Latencies of all requests of a table as arrays: the only module of a load test's analysis that knows how a table lies in memory.

For a request that was due at d and sent at s, whose tokens arrive in events at a1 ... am with k1 ... km tokens, n in all, and whose end is
seen at e:

    ttft        a1 - d              itl   (a_i - a_{i-1}) / k_i, counted k_i times, i = 2 ... m
    tpot        (am - a1) / (n - 1) e2e   e - d
    send_lag    s - d               ttft_from_sent, e2e_from_sent: the same from s

Without a value a request is left out (n = 1 has no tpot), never counted as 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtbuild_client.load.outcomes import Mark, Outcome
from trtbuild_client.load.table import COLUMNS, NONE, RecordTable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_DTYPES = {"q": np.int64, "i": np.int32, "h": np.int16, "B": np.uint8}


@dataclass(frozen=True)
class Values:
    """One metric: values, and the request that each belongs to (a position among the requests that were looked at).

    Attributes:
        values: nanoseconds.
        owner: whole numbers that do not fall.
    """

    values: Floats
    owner: NDArray[np.signedinteger[Any]]


class View:
    """The requests of a table that count, as arrays.

    Args:
        table: the records.
        is_streamed: whether tokens were asked for as they come; without it only e2e and send_lag exist.
    """

    def __init__(self, table: RecordTable, *, is_streamed: bool = True) -> None:
        self.is_streamed = is_streamed
        self.all = {name: _array(table.columns[name], code) for name, code in COLUMNS.items()}
        self.measured: NDArray[np.bool_] = (self.all["marks"] & Mark.WARMUP) == 0
        self.ok: NDArray[np.bool_] = self.measured & (self.all["outcome"] == Outcome.OK)
        self.failed: NDArray[np.bool_] = (
            self.measured & (self.all["outcome"] != Outcome.OK) & (self.all["outcome"] != Outcome.CANCELLED)
        )
        self._event_ns = _array(table.event_ns, "q")
        self._event_tokens = _array(table.event_tokens, "i")

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
        return _each(lag)

    def _since(self, later: Ints, since: str, has_value: NDArray[np.bool_]) -> Values:
        spans = later - self.column(since)
        return Values(spans[has_value].astype(np.float64), np.flatnonzero(has_value))

    def _first(self, since: str) -> Values:
        events = self.column("events")
        if not self.is_streamed or not len(events):
            return _each(np.empty(0, np.int64))
        first = self.column("first_event")
        has_value = events > 0
        padded = np.append(self._event_ns, 0)
        return self._since(padded[np.where(has_value, first, -1)], since, has_value)

    def _first_content(self) -> Values:
        content = self.column("first_content_ns")
        return self._since(content, "due_ns", (content != NONE) & self.is_streamed)

    def _whole(self, since: str) -> Values:
        return self._since(self.column("end_ns"), since, np.ones(len(self.column("end_ns")), bool))

    def _tpot(self) -> Values:
        events, tokens, first = self.column("events"), self.column("output_tokens"), self.column("first_event")
        has_value = (events > 1) & (tokens > 1) & self.is_streamed
        padded = np.append(self._event_ns, 0)
        span = padded[np.where(has_value, first + events - 1, -1)] - padded[np.where(has_value, first, -1)]
        return Values((span[has_value] / (tokens[has_value] - 1)).astype(np.float64), np.flatnonzero(has_value))

    def _itl(self) -> Values:
        events, first = self.column("events").astype(np.int64), self.column("first_event")
        total = int(events.sum())
        if not self.is_streamed or not total:
            return _each(np.empty(0, np.int64))
        # There are as many values as tokens: what is as long is made as seldom, and as narrow, as can be.
        starts = np.cumsum(events) - events
        shift = first - starts
        if (shift == shift[0]).all():
            came, tokens = (each[shift[0] : shift[0] + total] for each in (self._event_ns, self._event_tokens))
        else:
            at = np.repeat(shift, events) + np.arange(total)
            came, tokens = self._event_ns[at], self._event_tokens[at]
        has_gap = np.ones(total, bool)
        has_gap[starts[events > 0]] = False
        tokens = tokens[has_gap]
        gaps = np.diff(came)[has_gap[1:]] / np.maximum(tokens, 1)
        owner = np.repeat(np.arange(len(events), dtype=np.int32), np.maximum(events - 1, 0))
        if (tokens == 1).all():
            return Values(gaps, owner)
        return Values(np.repeat(gaps, tokens), np.repeat(owner, tokens))


_METRICS: dict[str, Callable[[View], Values]] = {
    "ttft": lambda view: view._first("due_ns"),
    "ttft_from_sent": lambda view: view._first("sent_ns"),
    "first_content": View._first_content,
    "itl": View._itl,
    "tpot": View._tpot,
    "e2e": lambda view: view._whole("due_ns"),
    "e2e_from_sent": lambda view: view._whole("sent_ns"),
    "send_lag": View.send_lag,
}
#: Metrics that need the arrival of single tokens.
NEED_STREAMING = ("ttft", "ttft_from_sent", "first_content", "itl", "tpot")


def _array(column: object, code: str) -> NDArray[np.int64]:
    """Return a copy of a machine array, so that the array can still grow."""
    # np.array of an array.array copies through the buffer protocol; the dtype is that of the type code.
    return np.array(column, dtype=_DTYPES[code]).astype(_DTYPES[code], copy=False)


def _each(values: NDArray[np.int64]) -> Values:
    return Values(values.astype(np.float64), np.arange(len(values)))
