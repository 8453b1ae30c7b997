"""Records of requests in columns of machine numbers: about 150 bytes per request and 5 per event, whatever the request was.

A row holds observations; latencies are computed from it in `metrics`. Times are nanoseconds of `time.perf_counter_ns`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from operator import sub

from trtbuild_client.load.outcomes import Mark, Outcome

#: Where a number is not known.
NONE = -1
#: column -> type code of `array`: q is 64 bits with a sign, i 32, h 16, B 8 without one.
COLUMNS: dict[str, str] = {
    "number": "i",  # position in the workload
    "session": "i",  # conversation it belongs to
    "turn": "i",  # 0 for the first request of a conversation
    "due_ns": "q",  # when it was meant to be sent
    "sent_ns": "q",  # when it was written
    "end_ns": "q",  # when its end was seen
    "outcome": "B",
    "status": "h",  # gRPC or HTTP status, HTTP/2 error code, -1 where there is none
    "marks": "i",
    "planned_tokens": "i",  # prompt tokens as counted when the prompt was made
    "input_tokens": "i",  # prompt tokens as counted by the server
    "max_tokens": "i",  # asked for at most
    "output_tokens": "i",
    "counted_by": "B",  # index into outcomes.COUNTED_BY
    "first_content_ns": "q",  # first event with an answer, where reasoning came before it
    "draft_tokens": "i",
    "accepted_draft_tokens": "i",
    "reused_blocks": "i",  # of the server's KV cache
    "total_blocks": "i",
    "server_queue_ns": "q",
    "server_ttft_ns": "q",
    "server_decode_ns": "q",
    "first_event": "q",  # position in `events`
    "events": "i",
    "error": "i",  # position in `errors`, -1 for none
}
#: What follows from the events of a request, kept with it so that nobody has to look at them.
DERIVED: dict[str, str] = {"first_event_ns": "q", "last_event_ns": "q"}
#: Different texts of errors that are kept; what comes after them is counted without its text.
_MAX_ERRORS = 200


class Events:
    """Arrivals of tokens, those of one request one after the other. Exact, and as narrow as they can be.

    Attributes:
        gaps_ns: time since the event before it, 0 for the first of a request; 32 bits until one has 2.1 s or more, then 64 all.
        tokens: of each event; 8 bits until one has 256 or more, then 32 all.
    """

    def __init__(self) -> None:
        self.gaps_ns: array[int] = array("i")
        self.tokens: array[int] = array("B")

    def __len__(self) -> int:
        return len(self.gaps_ns)

    def extend(self, event_ns: array[int], event_tokens: array[int]) -> None:
        """Add the events of one request."""
        self.gaps_ns = _extended(self.gaps_ns, list(map(sub, event_ns, chain(event_ns[:1], event_ns))), "q")
        self.tokens = _extended(self.tokens, event_tokens.tolist(), "i")


def _extended(column: array[int], values: list[int], wide: str) -> array[int]:
    """Return a column with more values: itself, or a wider one when they do not fit."""
    try:
        column.fromlist(values)
    except OverflowError:  # it is as it was
        column = array(wide, column)
        column.fromlist(values)
    return column


class RecordTable:
    """All requests of a run, in the order in which they ended or, in the end, were sent.

    Attributes:
        columns: see `COLUMNS` and `DERIVED`.
        events: of all requests, in the order in which they were added.
        errors: different texts of errors.
    """

    def __init__(self) -> None:
        self.columns: dict[str, array[int]] = {name: array(code) for name, code in (COLUMNS | DERIVED).items()}
        self.events = Events()
        self.errors: list[str] = []
        self._error_index: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.columns["number"])

    def append(self, values: dict[str, int], event_ns: array[int], event_tokens: array[int], error: str | None) -> int:
        """Add one request and return its row; columns that are not given are not known."""
        values = {
            **values,
            "first_event": len(self.events),
            "events": len(event_ns),
            "first_event_ns": event_ns[0] if event_ns else NONE,
            "last_event_ns": event_ns[-1] if event_ns else NONE,
            "error": NONE if error is None else self._error(error),
        }
        for name, column in self.columns.items():
            column.append(values.get(name, NONE))
        self.events.extend(event_ns, event_tokens)
        return len(self) - 1

    def mark(self, row: int, mark: Mark) -> None:
        """Add a mark to a request that has ended."""
        self.columns["marks"][row] |= mark

    def row(self, index: int) -> dict[str, int]:
        """Return one request as numbers."""
        return {name: column[index] for name, column in self.columns.items()}

    def rows(self) -> Iterator[dict[str, int]]:
        """Yield all requests as numbers."""
        return (self.row(index) for index in range(len(self)))

    def event_ns(self, index: int, since_ns: int = 0) -> array[int]:
        """Return the arrivals of one request."""
        first_ns = self.columns["first_event_ns"][index] - since_ns
        return array("q", accumulate(self.events.gaps_ns[self._part(index)], initial=first_ns))[1:]

    def event_tokens(self, index: int) -> array[int]:
        """Return the tokens of each arrival of one request."""
        return array("i", self.events.tokens[self._part(index)])

    def _part(self, index: int) -> slice:
        first = self.columns["first_event"][index]
        return slice(first, first + self.columns["events"][index])

    def error_of(self, index: int) -> str | None:
        """Return the text of a request's error."""
        error = self.columns["error"][index]
        return None if error == NONE else self.errors[error]

    def extend(self, other: RecordTable) -> None:
        """Add all requests of another table."""
        for index in range(len(other)):
            self.append(other.row(index), other.event_ns(index), other.event_tokens(index), other.error_of(index))

    def sort(self) -> None:
        """Bring the requests into the order of sending; events stay where they are."""
        order = sorted(range(len(self)), key=self.columns["sent_ns"].__getitem__)
        for name, column in self.columns.items():
            self.columns[name] = array(column.typecode, map(column.__getitem__, order))

    def _error(self, text: str) -> int:
        known = self._error_index.get(text)
        if known is None:
            if len(self.errors) >= _MAX_ERRORS:
                return NONE
            known = self._error_index[text] = len(self.errors)
            self.errors.append(text)
        return known


def merged(tables: Sequence[RecordTable]) -> RecordTable:
    """Return the first table with the requests of the others, in the order of sending."""
    table, *others = tables
    for other in others:
        table.extend(other)
    table.sort()
    return table


def outcome_of(row: dict[str, int]) -> Outcome:
    """Return how a request ended."""
    return Outcome(row["outcome"])
