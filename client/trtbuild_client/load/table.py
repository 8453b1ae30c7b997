"""Records of requests in columns of machine numbers: about 150 bytes per request and 10 per event, whatever the request was.

A row holds observations; latencies are computed from it in `metrics`. Times are nanoseconds of `time.perf_counter_ns`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

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
    "first_event": "q",  # position in `event_ns`
    "events": "i",
    "error": "i",  # position in `errors`, -1 for none
}
#: Different texts of errors that are kept; what comes after them is counted without its text.
_MAX_ERRORS = 200


class RecordTable:
    """All requests of a run, in the order in which they ended.

    Attributes:
        columns: see `COLUMNS`.
        event_ns: arrivals of tokens, those of one request one after the other.
        event_tokens: tokens of each arrival.
        errors: different texts of errors.
    """

    def __init__(self) -> None:
        self.columns: dict[str, array[int]] = {name: array(code) for name, code in COLUMNS.items()}
        self.event_ns: array[int] = array("q")
        self.event_tokens: array[int] = array("i")
        self.errors: list[str] = []
        self._error_index: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.columns["number"])

    def append(self, values: dict[str, int], event_ns: array[int], event_tokens: array[int], error: str | None) -> int:
        """Add one request and return its row; columns that are not given are not known."""
        values = {
            **values,
            "first_event": len(self.event_ns),
            "events": len(event_ns),
            "error": NONE if error is None else self._error(error),
        }
        for name, column in self.columns.items():
            column.append(values.get(name, NONE))
        self.event_ns.extend(event_ns)
        self.event_tokens.extend(event_tokens)
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

    def events_of(self, index: int) -> tuple[array[int], array[int]]:
        """Return (arrivals, tokens) of one request."""
        first = self.columns["first_event"][index]
        last = first + self.columns["events"][index]
        return self.event_ns[first:last], self.event_tokens[first:last]

    def error_of(self, index: int) -> str | None:
        """Return the text of a request's error."""
        error = self.columns["error"][index]
        return None if error == NONE else self.errors[error]

    def extend(self, other: RecordTable) -> None:
        """Add all requests of another table."""
        for index in range(len(other)):
            event_ns, event_tokens = other.events_of(index)
            self.append(other.row(index), event_ns, event_tokens, other.error_of(index))

    def _error(self, text: str) -> int:
        known = self._error_index.get(text)
        if known is None:
            if len(self.errors) >= _MAX_ERRORS:
                return NONE
            known = self._error_index[text] = len(self.errors)
            self.errors.append(text)
        return known


def merged(tables: Sequence[RecordTable]) -> RecordTable:
    """Return one table of all requests, in the order of sending."""
    first, *others = tables
    both = first
    if others:
        both = RecordTable()
        for table in (first, *others):
            both.extend(table)
    order = sorted(range(len(both)), key=both.columns["sent_ns"].__getitem__)
    result = RecordTable()
    for index in order:
        event_ns, event_tokens = both.events_of(index)
        result.append(both.row(index), event_ns, event_tokens, both.error_of(index))
    return result


def outcome_of(row: dict[str, int]) -> Outcome:
    """Return how a request ended."""
    return Outcome(row["outcome"])
