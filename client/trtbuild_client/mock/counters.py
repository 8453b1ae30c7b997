"""Numbers per model: what ModelStatistics and the metrics are made of. Cumulative, as Triton's are."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field

from trtbuild_client.mock.ledger import Entry


@dataclass(slots=True)
class ModelCounters:
    """Counts and durations of one model's finished requests.

    Attributes:
        ok, failed, cancelled: requests by outcome.
        ok_ns: their time from arrival to end, of those that were ok; failed_ns likewise.
        queue_ns: time until they were taken up, of those that were ok.
        last_ms: end of the last one, milliseconds since the epoch.
        first_response_ns: time from arrival to the first response, of those that were ok.
    """

    ok: int = 0
    failed: int = 0
    cancelled: int = 0
    ok_ns: int = 0
    failed_ns: int = 0
    queue_ns: int = 0
    output_tokens: int = 0
    input_tokens: int = 0
    responses: int = 0
    first_response_ns: int = 0
    last_ms: int = 0

    @property
    def compute_ns(self) -> int:
        """Time that was no waiting, of those that were ok."""
        return max(self.ok_ns - self.queue_ns, 0)

    def add(self, entry: Entry) -> None:
        """Count a request that is over."""
        took_ns = entry.end_ns - entry.received_ns
        if entry.outcome == "ok":
            self.ok += 1
            self.last_ms = time.time_ns() // 1_000_000
            self.ok_ns += took_ns
            self.queue_ns += entry.started_ns - entry.received_ns
            self.output_tokens += sum(entry.tokens)
            self.input_tokens += entry.input_tokens
            self.responses += len(entry.tokens)
            self.first_response_ns += (entry.sent_ns[0] if entry.sent_ns else entry.end_ns) - entry.received_ns
        else:
            self.failed_ns += took_ns
            if entry.outcome == "cancelled":
                self.cancelled += 1
            else:
                self.failed += 1


@dataclass(slots=True)
class Counters:
    """The counters of all models; members of an ensemble advance with it."""

    models: dict[str, ModelCounters] = field(default_factory=lambda: defaultdict(ModelCounters))
    members: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def count(self, entry: Entry) -> None:
        """Count a request for its model and for the models behind it."""
        for name in (entry.model, *self.members.get(entry.model, ())):
            self.models[name].add(entry)
