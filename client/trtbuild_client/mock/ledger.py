"""What the mock did and when: the truth that clients and benchmarks are compared with.

Times are nanoseconds of `time.monotonic_ns`, which on Linux is also the clock of `time.perf_counter_ns` of every process
on the same machine.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from typing import Any

SCHEMA_VERSION = 1


class Entry:
    """One request.

    Attributes:
        index: number of the request, in order of arrival.
        protocol: "grpc", "generate", "generate_stream", "openai" ...
        fault: kind of the fault that met it, None for none.
        received_ns: when it had been read.
        started_ns: when it was taken up, after waiting for its turn; 0 if it never was.
        first_token_ns: when its first token was to be there, sent or not; 0 before it was taken up.
        end_ns: when it was over; 0 while it is not.
        tokens: tokens of each response.
        intended_ns: when each response was to leave.
        sent_ns: just before each was written.
        outcome: "running", "ok", "failed" or "cancelled".
    """

    __slots__ = (
        "end_ns", "fault", "first_token_ns", "index", "input_tokens", "intended_ns", "is_cached", "model", "outcome", "protocol",
        "received_ns", "request_id", "sent_ns", "started_ns", "tokens",
    )  # fmt: skip

    def __init__(self, index: int, request_id: str, model: str, protocol: str, received_ns: int) -> None:
        self.index = index
        self.request_id = request_id
        self.model = model
        self.protocol = protocol
        self.received_ns = received_ns
        self.started_ns = 0
        self.first_token_ns = 0
        self.end_ns = 0
        self.fault: str | None = None
        self.input_tokens = 0
        self.is_cached = False
        self.outcome = "running"
        self.tokens = array("i")
        self.intended_ns = array("q")
        self.sent_ns = array("q")

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: value.tolist() if isinstance(value, array) else value for name, value in values.items()}


class Ledger:
    """The latest requests.

    Args:
        kept: how many.
    """

    def __init__(self, kept: int) -> None:
        self._entries: deque[Entry] = deque(maxlen=kept)
        self._seen = 0
        self._forgotten = 0

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def open(self, request_id: str, model: str, protocol: str, received_ns: int) -> Entry:
        """Begin the record of a request."""
        if len(self._entries) == self._entries.maxlen:
            self._forgotten += 1
        entry = Entry(self._seen, request_id, model, protocol, received_ns)
        self._seen += 1
        self._entries.append(entry)
        return entry

    def clear(self) -> None:
        """Forget everything; requests are numbered from 0 again, and so get the same schedules."""
        self._entries.clear()
        self._seen = self._forgotten = 0

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return {
            "schema_version": SCHEMA_VERSION,
            "clock": "time.monotonic_ns",
            "forgotten": self._forgotten,
            "requests": [entry.to_json() for entry in self._entries],
        }
