"""Whether the records of a result can be: what holds for every request that `exchange.Exchange.record` writes, as one table of checks.

A time is no earlier than the one before it, since `exchange` sees to that; a sum is that of its parts. What the server says of itself (its
own times and counts) is not checked: servers say what they like.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trtbuild_client.load.outcomes import COUNTED_BY, Mark, Outcome
from trtbuild_client.load.table import NONE

_Ints = NDArray[np.int64]
_Rows = NDArray[np.bool_]
#: Differences of times below it fit the 64 bits of a column.
_END_OF_TIME = 1 << 62


@dataclass(frozen=True)
class Records:
    """The records of one run, times in nanoseconds after its start.

    Attributes:
        columns: see `table.COLUMNS`; all of one length.
        event_ns, event_tokens: of all requests; as many as the column `events` adds up to.
        errors: number of different texts of errors.
    """

    columns: Mapping[str, _Ints]
    event_ns: _Ints
    event_tokens: _Ints
    errors: int

    def __getitem__(self, name: str) -> _Ints:
        return self.columns[name]

    @cached_property
    def with_events(self) -> _Ints:
        """Rows that have events, in the order of their events."""
        rows = np.flatnonzero(self["events"] > 0)
        return rows[np.argsort(self["first_event"][rows], kind="stable")]

    @cached_property
    def _owner(self) -> _Ints:
        """The row of each event."""
        return np.repeat(self.with_events, self["events"][self.with_events])

    def of_events(self, is_wrong: _Rows) -> _Rows:
        """Return the rows of which any event is marked."""
        rows = np.zeros(len(self["events"]), bool)
        rows[self._owner[is_wrong]] = True
        return rows

    @cached_property
    def tokens(self) -> _Ints:
        """Tokens of all events of each row."""
        sums = np.zeros(len(self["events"]), np.int64)
        np.add.at(sums, self._owner, self.event_tokens)
        return sums

    def event(self, position: int) -> _Ints:
        """Return when the first (0) or last (-1) event of each row came, NONE where there is none."""
        rows = self.with_events
        at = np.full(len(self["events"]), NONE, np.int64)
        at[rows] = self.event_ns[self["first_event"][rows] + (self["events"][rows] - 1 if position else 0)]
        return at

    def falls(self) -> _Rows:
        """Return the rows of which an event is before the one before it."""
        is_fall = np.zeros(len(self.event_ns), bool)
        is_fall[1:] = (self.event_ns[1:] < self.event_ns[:-1]) & (self._owner[1:] == self._owner[:-1])
        return self.of_events(is_fall)

    def overlaps(self) -> _Rows:
        """Return the rows whose events do not begin where those of another row end."""
        rows = self.with_events
        sizes = self["events"][rows]
        wrong: _Rows = self["first_event"] > len(self.event_ns)
        wrong[rows] |= self["first_event"][rows] != np.cumsum(sizes) - sizes
        return wrong


def _below(name: str, least: int) -> tuple[Callable[[Records], _Rows], str]:
    return lambda records: records[name] < least, f"its {name} is {{{name}}}, and at least {least} is possible"


def _none_or_within(records: Records, name: str) -> _Rows:
    at = records[name]
    is_wrong: _Rows = (at != NONE) & ((at < records["sent_ns"]) | (at > records["end_ns"]))
    return is_wrong


def _repeated(values: _Ints) -> _Rows:
    first = np.unique(values, return_index=True)[1]
    wrong = np.ones(len(values), bool)
    wrong[first] = False
    return wrong


#: Which rows are wrong, and what is wrong with one, with the numbers of its columns. In this order: each may rely on those before it.
_CHECKS: tuple[tuple[Callable[[Records], _Rows], str], ...] = (
    _below("events", 0),
    _below("first_event", 0),
    (Records.overlaps, "its {events} events from {first_event} on are not its own, or not there"),
    (
        lambda records: (records["error"] < NONE) | (records["error"] >= records.errors),
        "its error {error} is not among the texts of errors",
    ),
    _below("number", 0),
    (lambda records: _repeated(records["number"]), "its number {number} is that of another request"),
    _below("session", 0),
    _below("turn", 0),
    _below("planned_tokens", NONE),
    _below("max_tokens", 1),
    _below("output_tokens", 0),
    (lambda records: records["outcome"] >= len(Outcome), f"its outcome {{outcome}} is none of 0 to {len(Outcome) - 1}"),
    (
        lambda records: records["counted_by"] >= len(COUNTED_BY),
        f"its counted_by {{counted_by}} is none of 0 to {len(COUNTED_BY) - 1}",
    ),
    _below("marks", 0),
    (lambda records: records["due_ns"] < 0, "it was due before the start of the run ({due_ns} ns)"),
    (
        lambda records: records["sent_ns"] < records["due_ns"],
        "it was sent ({sent_ns} ns) before it was due ({due_ns} ns)",
    ),
    (
        lambda records: records["end_ns"] < records["sent_ns"],
        "its end ({end_ns} ns) is before it was sent ({sent_ns} ns)",
    ),
    (lambda records: records["end_ns"] >= _END_OF_TIME, "its end ({end_ns} ns) is in more than a hundred years"),
    (
        lambda records: (records["events"] > 0) & (records.event(0) < records["sent_ns"]),
        "its first token is before it was sent ({sent_ns} ns)",
    ),
    (Records.falls, "one of its tokens is before the one before it"),
    (lambda records: records.event(-1) > records["end_ns"], "its last token is after its end ({end_ns} ns)"),
    (
        lambda records: _none_or_within(records, "first_content_ns"),
        "its first content ({first_content_ns} ns) is not between its sending and its end",
    ),
    (lambda records: records.of_events(records.event_tokens < 1), "one of its events has no token"),
    (
        lambda records: (records["marks"] & Mark.COUNTED_AT_END == 0) & (records["output_tokens"] != records.tokens),
        "its output_tokens are {output_tokens}, and its events have another number",
    ),
)
#: Key of `requests` in a result -> which requests it counts; those of warm-up are in `warmup` only.
_COUNTS: dict[str, Callable[[_Ints], _Rows]] = {
    "total": lambda outcome: np.ones(len(outcome), bool),
    "ok": lambda outcome: outcome == Outcome.OK,
    "failed": lambda outcome: (outcome != Outcome.OK) & (outcome != Outcome.CANCELLED),
    "cancelled": lambda outcome: outcome == Outcome.CANCELLED,
}


def complaint(
    columns: Mapping[str, array[int]],
    event_ns: array[int],
    event_tokens: array[int],
    *,
    errors: int,
    counts: Mapping[str, object],
    label: str,
) -> str | None:
    """Return what is wrong with the records of a run, for people; None when nothing is.

    Args:
        columns, event_ns, event_tokens, errors: see `Records`.
        counts: `requests` of the run's summary: how many of them there are.
        label: of the run.
    """
    records = Records(
        {name: np.array(column, np.int64) for name, column in columns.items()},
        np.array(event_ns, np.int64),
        np.array(event_tokens, np.int64),
        errors,
    )
    for find, text in _CHECKS:
        wrong = np.flatnonzero(find(records))
        if len(wrong):
            row = {name: int(column[wrong[0]]) for name, column in records.columns.items()}
            return f"request {wrong[0]} of run {json.dumps(label)}: {text.format_map(row)}"
    is_warmup = (records["marks"] & Mark.WARMUP) != 0
    outcomes = records["outcome"][~is_warmup]
    found = {name: int(which(outcomes).sum()) for name, which in _COUNTS.items()} | {"warmup": int(is_warmup.sum())}
    for name, number in found.items():
        if counts.get(name) != number:
            return f"run {json.dumps(label)}: 'requests' says {name} {counts.get(name)!r}, and its records say {number}"
    return None
