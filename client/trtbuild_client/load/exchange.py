"""One request that is running: what has come of it so far. Protocols are its subclasses; the driver sees only this."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass

from trtbuild_client.counts import MOST
from trtbuild_client.load.outcomes import COUNTED_BY, Mark, Outcome
from trtbuild_client.load.table import NONE, RecordTable

_BY_EVENTS = COUNTED_BY.index("events")
_BY_SERVER = COUNTED_BY.index("server")


@dataclass(frozen=True, slots=True)
class Job:
    """What to ask.

    Attributes:
        number: position in the workload.
        session: conversation it belongs to.
        turn: 0 for the first request of a conversation.
        messages: texts of user and assistant in turns; the last is the user's.
        max_tokens: tokens to ask for.
        planned_tokens: tokens of the prompt as counted when it was made, NONE if nobody did.
    """

    number: int
    session: int
    turn: int
    messages: tuple[str, ...]
    max_tokens: int
    planned_tokens: int = NONE


class Exchange:
    """A running request.

    Attributes:
        due_ns: when it was meant to be sent.
        sent_ns: when it was written.
        last_ns: when it last showed life; what the deadline between tokens counts from.
        outcome: None while it runs.
        row: its row in the table, NONE while it runs.
    """

    __slots__ = (
        "due_ns",
        "end_ns",
        "error",
        "event_ns",
        "event_tokens",
        "extras",
        "first_content_ns",
        "has_counts",
        "has_uncounted",
        "job",
        "last_ns",
        "marks",
        "on_end",
        "outcome",
        "output_tokens",
        "row",
        "sent_ns",
        "status",
        "text",
    )

    def __init__(self, job: Job, due_ns: int, on_end: Callable[[Exchange], None]) -> None:
        self.job = job
        self.due_ns = due_ns
        self.on_end = on_end
        self.sent_ns = self.last_ns = self.end_ns = self.first_content_ns = NONE
        self.event_ns: array[int] = array("q")
        self.event_tokens: array[int] = array("i")
        self.text: list[bytes] = []
        self.has_counts = False
        self.has_uncounted = False
        self.output_tokens = NONE  # what the server says of the whole answer
        self.extras: dict[str, int] = {}
        self.marks = 0
        self.outcome: Outcome | None = None
        self.status = NONE
        self.error: str | None = None
        self.row = NONE

    @property
    def answer(self) -> str:
        """The text so far; bytes that are no UTF-8 are replaced."""
        return b"".join(self.text).decode("utf-8", "replace")

    def arrived(self, now_ns: int, count: int | None, text: bytes) -> None:
        """Take tokens that arrived; what comes after the end is no part of the answer.

        Args:
            now_ns: when.
            count: how many, None when the server does not say; a piece of text then counts as one. A number after pieces without one is
                that of the whole answer, since some servers count in their last response only.
            text: may be empty.
        """
        if self.outcome is not None:
            return
        if count is None:
            if not text:
                return
            tokens, self.has_uncounted = 1, True
        else:
            tokens, self.has_counts = count, True
            if self.has_uncounted:
                tokens -= sum(self.event_tokens)
                self.has_uncounted = False
        if text:
            self.text.append(text)
        if tokens > 0:
            self.last_ns = self._in_order(now_ns)
            self.event_ns.append(self.last_ns)
            self.event_tokens.append(tokens)

    def finish(self, now_ns: int) -> None:
        """End well."""
        self.end(Outcome.OK, now_ns)

    def end(self, outcome: Outcome, now_ns: int, error: str | None = None, status: int = NONE) -> None:
        """End; only the first end counts. The request's own id is taken out of the text, so that equal errors are equal."""
        if self.outcome is not None:
            return
        if outcome is Outcome.OK and sum(self.event_tokens) > MOST:
            outcome, error = (
                Outcome.BAD_EVENT,
                f"{sum(self.event_tokens)} tokens in one answer, at most {MOST} are counted",
            )
        error = None if error is None else _without_id(error, self.job.number)
        self.outcome, self.end_ns, self.error, self.status = outcome, self._in_order(now_ns), error, status
        self.on_end(self)

    def _in_order(self, at_ns: int) -> int:
        """Return a time, or the last one of this request where that is later: the system's stamps of arrival are of the clock of the
        day, which is adjusted, and nothing comes before what it follows from."""
        return max(at_ns, self.sent_ns, self.last_ns)

    def late_mark(self, table: RecordTable, mark: Mark) -> None:
        """Mark this request, whether it has ended or not."""
        if self.row == NONE:
            self.marks |= mark
        else:
            table.mark(self.row, mark)

    def record(self, table: RecordTable) -> None:
        """Put it into the table."""
        assert self.outcome is not None
        counted = min(sum(self.event_tokens), MOST)
        counted_by = _BY_SERVER if self.has_counts and not self.has_uncounted else _BY_EVENTS
        if self.output_tokens >= 0:  # the usage of an OpenAI server
            counted_by = COUNTED_BY.index("usage")
            if self.output_tokens != counted:
                self.marks |= Mark.COUNTED_AT_END
                counted = self.output_tokens
        if self.outcome is Outcome.OK:
            if not self.event_ns:
                self.marks |= Mark.EMPTY
            elif counted < self.job.max_tokens and counted_by != _BY_EVENTS:  # a lower bound says nothing
                self.marks |= Mark.SHORT
        if not _is_utf8(b"".join(self.text)):
            self.marks |= Mark.INVALID_UTF8
        self.row = table.append(
            {
                "number": self.job.number,
                "session": self.job.session,
                "turn": self.job.turn,
                "due_ns": self.due_ns,
                "sent_ns": self.sent_ns,
                "end_ns": self.end_ns,
                "outcome": self.outcome,
                "status": max(min(self.status, 32767), -32768),
                "marks": self.marks,
                "planned_tokens": self.job.planned_tokens,
                "max_tokens": self.job.max_tokens,
                "output_tokens": counted,
                "counted_by": counted_by,
                "first_content_ns": self._first_content_ns(),
                **self.extras,
            },
            self.event_ns,
            self.event_tokens,
            self.error,
        )

    def _first_content_ns(self) -> int:
        if self.first_content_ns == NONE:
            return NONE
        return min(max(self.first_content_ns, self.sent_ns), self.end_ns)


def _without_id(text: str, number: int) -> str:
    """Return a text without the id of a request: eight hexadecimal digits of the run, and its number.

    Triton puts "[request id: ID] " before its messages (core, src/infer_request.h: LogRequest).
    """
    own = rf"\b[0-9a-f]{{8}}-{number}\b"
    return re.sub(own, "ID", re.sub(rf"\[request id: {own}\] ?", "", text))


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
