"""Objectives of a service: limits of percentiles such as ttft.p95=500ms, and which requests are good by them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from trtbuild_client.durations import FORMS, LONGEST, parse_ns
from trtbuild_client.errors import InvalidRequest

#: metric -> what it is, for messages. The clock of a request starts when it was due.
METRICS = {
    "ttft": "time to first token",
    "itl": "inter-token latency",
    "tpot": "time per output token",
    "e2e": "end to end",
}
_NEED_STREAMING = ("ttft", "itl", "tpot")
_NEED_TWO_TOKENS = ("itl", "tpot")
_ONE = re.compile(r"(?P<metric>[a-z0-9]+)(?:\.p(?P<percentile>[0-9]+(?:\.[0-9]+)?))?=(?P<limit>.*)")
_DEFAULT_PERCENTILE = 95.0


@dataclass(frozen=True, slots=True)
class Objective:
    """A limit of a percentile.

    Attributes:
        metric: key of `METRICS`.
        percentile: 0 to 100, exclusive.
        limit_ns: the percentile may be as high as this.
    """

    metric: str
    percentile: float
    limit_ns: float

    @property
    def share(self) -> float:
        """Share of values that must be within the limit."""
        return self.percentile / 100

    @property
    def name(self) -> str:
        """As it is written."""
        return f"{self.metric}.p{self.percentile:g}"

    def __str__(self) -> str:
        return f"{self.name} <= {self.limit_ns / 1e6:g} ms"


def parse(text: str) -> tuple[Objective, ...]:
    """Return the objectives of METRIC.pNN=TIME, separated by commas.

    Raises:
        InvalidRequest: something else.
    """
    found = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        match = _ONE.fullmatch(part)
        percentile = float((match and match["percentile"]) or _DEFAULT_PERCENTILE)
        limit_ns = parse_ns(match["limit"], needs_unit=True) if match else None
        if match is None or limit_ns is None or match["metric"] not in METRICS or not 0 < percentile < 100:
            raise InvalidRequest(
                f"objective '{part}'",
                hint=f"Write METRIC.pNN=TIME, such as ttft.p95=500ms; metrics: {', '.join(METRICS)}; "
                f"times: {FORMS}, at most {LONGEST}.",
            )
        found.append(Objective(match["metric"], percentile, limit_ns))
    if not found:
        raise InvalidRequest("no objective", hint="Write for instance ttft.p95=500ms,itl.p95=40ms.")
    return tuple(found)


def check(objectives: Sequence[Objective], *, is_streaming: bool, max_tokens: int | None = None) -> None:
    """Return if each metric can have values.

    Args:
        is_streaming: tokens are asked for as they come.
        max_tokens: of the longest answer that is asked for; None where that is not known yet.

    Raises:
        InvalidRequest: a metric that no request of such a run has.
    """
    for objective in objectives:
        if not is_streaming and objective.metric in _NEED_STREAMING:
            raise InvalidRequest(
                f"objective '{objective}' without streaming",
                hint=f"Only whole answers are timed with --no-stream: leave that out, or give an objective of e2e instead of {objective.metric}.",
            )
        if max_tokens == 1 and objective.metric in _NEED_TWO_TOKENS:
            raise InvalidRequest(
                f"objective '{objective}' with answers of one token",
                hint=f"{objective.metric} is the time from one token to the next: ask for at least 2 (--output-tokens).",
            )
