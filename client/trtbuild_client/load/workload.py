"""What is sent and when: conversations of one or more turns, and the shapes of load. Data only."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from trtbuild_client.load.table import NONE


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a conversation.

    Attributes:
        text: what the user says.
        max_tokens: tokens to ask for.
        planned_tokens: tokens of `text` as counted when it was made, NONE if nobody did.
        think_ns: time from the end of the answer before to the sending of this one.
    """

    text: str
    max_tokens: int
    planned_tokens: int = NONE
    think_ns: int = 0


Session = tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """When a run ends, and deadlines of each request; nanoseconds, None for no limit.

    Attributes:
        requests: sent at most.
        duration_ns: nothing is sent that is due later than this after the start.
        drain_ns: what still runs so long after the last request was sent, or after `duration_ns` of a closed loop, has failed.
        total_ns, first_token_ns, stall_ns: whole answer, first token, from one token to the next.
        connect_ns: until a connection is accepted.
    """

    requests: int | None = None
    duration_ns: int | None = None
    drain_ns: int | None = None
    total_ns: int | None = 300_000_000_000
    first_token_ns: int | None = None
    stall_ns: int | None = None
    connect_ns: int = 10_000_000_000


@dataclass(frozen=True, slots=True)
class Workload:
    """The share of the work of one process.

    Attributes:
        sessions: conversations, taken in turn and from the beginning again when there are too few.
        starts: open loop: when each conversation begins, nanoseconds after the start of the run; None for a closed loop.
        concurrency: closed loop: conversations that go on at the same time.
        ramp_ns: closed loop: the conversations begin evenly within this time.
        warmup_requests, warmup_ns: requests that are marked: the first so many, or those sent in so much time.
        offset, stride: of the numbers of requests when several processes share the work.
    """

    sessions: Sequence[Session]
    limits: Limits = field(default_factory=Limits)
    starts: array[int] | None = None
    concurrency: int = 1
    ramp_ns: int = 0
    warmup_requests: int = 0
    warmup_ns: int = 0
    offset: int = 0
    stride: int = 1
