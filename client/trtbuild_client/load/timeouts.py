"""Deadlines of requests: which one was missed, in which words, and how often to look."""

from __future__ import annotations

from trtbuild_client.load.exchange import Exchange
from trtbuild_client.load.outcomes import Outcome
from trtbuild_client.load.workload import Limits

#: How often deadlines are looked at: often enough for the shortest of them.
_SWEEP_NS = (10_000_000, 100_000_000)


def missed(exchange: Exchange, limits: Limits, now_ns: int) -> tuple[Outcome, str] | None:
    """Return the deadline that a request has missed; the text is the same for all that miss it."""
    if limits.total_ns is not None and now_ns > exchange.sent_ns + limits.total_ns:
        return Outcome.TIMEOUT_TOTAL, f"no end within {span(limits.total_ns)}"
    if not exchange.event_ns:
        if limits.first_token_ns is not None and now_ns > exchange.sent_ns + limits.first_token_ns:
            return Outcome.TIMEOUT_FIRST_TOKEN, f"no token within {span(limits.first_token_ns)}"
    elif limits.stall_ns is not None and now_ns > exchange.last_ns + limits.stall_ns:
        return Outcome.TIMEOUT_STALL, f"no other token within {span(limits.stall_ns)}"
    return None


def span(ns: int) -> str:
    """Return a time as a user writes it."""
    return f"{ns / 1e9:g} s" if ns >= 1_000_000_000 else f"{ns / 1e6:g} ms"


def sweep_ns(limits: Limits) -> int:
    """Return how often deadlines are looked at: a passed one is seen within 5 % of its length."""
    lengths = (limits.total_ns, limits.first_token_ns, limits.stall_ns, limits.connect_ns, limits.drain_ns)
    shortest = min(each for each in lengths if each is not None)
    return min(max(shortest // 20, _SWEEP_NS[0]), _SWEEP_NS[1])
