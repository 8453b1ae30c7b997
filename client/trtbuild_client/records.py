"""What is known about one request: times in integer nanoseconds of `time.perf_counter_ns`, counts and outcome.

A record holds observations. Latencies and rates are computed from it in `stats`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Outcome = Literal["ok", "failed", "cancelled"]
FinishReason = Literal["stop", "length", "cancelled"]
#: "server": the server counted, or sent no output at all, which is no token. "chunks": one per response with text, a lower bound.
CountedBy = Literal["server", "chunks"]


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """The arrival of one response that held tokens.

    Attributes:
        at_ns: arrival time.
        tokens: tokens in it, at least 1.
    """

    at_ns: int
    tokens: int


@dataclass(frozen=True, slots=True)
class ServerStats:
    """What the server measured itself (`return_perf_metrics`); None where it did not say.

    Times are nanoseconds of the server's monotonic clock: only their differences mean something.
    """

    arrival_time_ns: int | None = None
    first_scheduled_time_ns: int | None = None
    first_token_time_ns: int | None = None
    last_token_time_ns: int | None = None
    kv_cache_alloc_new_blocks: int | None = None
    kv_cache_reused_blocks: int | None = None
    kv_cache_alloc_total_blocks: int | None = None
    acceptance_rate: float | None = None
    total_accepted_draft_tokens: int | None = None
    total_draft_tokens: int | None = None

    @property
    def queue_ns(self) -> int | None:
        """Time in the server's queue: first_scheduled - arrival."""
        return _difference(self.first_scheduled_time_ns, self.arrival_time_ns)

    @property
    def ttft_ns(self) -> int | None:
        """Time to first token inside the server: first_token - arrival."""
        return _difference(self.first_token_time_ns, self.arrival_time_ns)

    @property
    def decode_ns(self) -> int | None:
        """Time from the first to the last token inside the server."""
        return _difference(self.last_token_time_ns, self.first_token_time_ns)


def _difference(later: int | None, earlier: int | None) -> int | None:
    return None if later is None or earlier is None else later - earlier


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """Everything observed about one request.

    Attributes:
        request_id: id sent to the server.
        model: model asked.
        streamed: whether tokens were asked for as they come.
        max_tokens: tokens asked for at most.
        sent_ns: just before the request was written.
        end_ns: when the end of the answer, the error or the cancellation was seen.
        events: arrivals of tokens, in order.
        outcome: ok, failed or cancelled.
        counted_by: who counted the tokens in `events`.
        input_tokens: prompt tokens as counted by the server, None if it did not.
        error: class name of the error, None unless failed.
        error_message: its text.
        warmup: sent to warm the server up; kept in the records, left out of statistics.
        server: the server's own measurements.
    """

    request_id: str
    model: str
    streamed: bool
    max_tokens: int
    sent_ns: int
    end_ns: int
    events: tuple[TokenEvent, ...] = ()
    outcome: Outcome = "ok"
    counted_by: CountedBy = "chunks"
    input_tokens: int | None = None
    error: str | None = None
    error_message: str | None = None
    warmup: bool = False
    server: ServerStats | None = None

    @property
    def output_tokens(self) -> int:
        """Tokens received; a lower bound when `counted_by` is "chunks"."""
        return sum(event.tokens for event in self.events)


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """A piece of text as it came; pieces joined give the answer.

    Attributes:
        text: new text, never empty.
        index: 0, 1, 2 ... in order of arrival.
        at_ns: when it was complete, `time.perf_counter_ns`.
    """

    text: str
    index: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer.

    Attributes:
        text: the answer, cut before the first stop word.
        record: times, counts and outcome.
        finish_reason: "stop" (stop word, end token, or the server's own length limit), "length" (max_tokens reached),
            "cancelled", or None when the server does not say how many tokens it made.
        beams: the answer of each beam; `text` is the first of them.
        log_probs: one per token of the first beam, None unless `return_log_probs` was asked for.
        cum_log_prob: their sum, None likewise.
        outputs: all other outputs of the last response that held any, by name.
        warnings: what the caller should know about this answer.
    """

    text: str
    record: RequestRecord
    finish_reason: FinishReason | None
    beams: tuple[str, ...] = ()
    log_probs: tuple[float, ...] | None = None
    cum_log_prob: float | None = None
    outputs: Mapping[str, NDArray[np.generic]] = field(default_factory=dict, compare=False)
    warnings: tuple[str, ...] = ()

    @property
    def request_id(self) -> str:
        """The id the request was sent with."""
        return self.record.request_id

    @property
    def num_output_tokens(self) -> int:
        """Tokens in the answer; a lower bound when `record.counted_by` is "chunks"."""
        return self.record.output_tokens

    def to_json(self) -> dict[str, Any]:
        """Return the answer as JSON values: text, reasons, counts, and latencies in nanoseconds (None: no value)."""
        from trtbuild_client import stats

        record = self.record
        return {
            "schema_version": 1,
            "request_id": record.request_id,
            "model": record.model,
            "text": self.text,
            "finish_reason": self.finish_reason,
            "output_tokens": record.output_tokens,
            "output_tokens_counted_by": record.counted_by,
            "input_tokens": record.input_tokens,
            "streamed": record.streamed,
            "ttft_ns": stats.ttft_ns(record),
            "tpot_ns": stats.tpot_ns(record),
            "end_to_end_ns": stats.end_to_end_ns(record),
            "warnings": list(self.warnings),
        }
