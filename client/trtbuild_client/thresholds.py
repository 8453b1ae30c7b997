"""Limits on the latencies of a probe, and which of them are passed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trtbuild_client import stats
from trtbuild_client.errors import InvalidRequest

#: Metric as it is typed -> its name in a report.
METRICS = {"ttft": "ttft", "itl": "itl", "tpot": "tpot", "e2e": "end_to_end"}
_NEED_STREAMING = ("ttft", "itl", "tpot")
#: Metric -> why it may have no value.
_UNKNOWN = {
    "ttft": "no token came in any answer",
    "itl": "no answer had two tokens, and the time from token to token takes two",
    "tpot": "no answer had two tokens, and the time per token after the first takes two",
    "e2e": "no answer came",
}
_UNKNOWN_HINT = "Ask for more tokens (--max-tokens), or limit what has a value (ttft, e2e)."


@dataclass(frozen=True, slots=True)
class Threshold:
    """One limit.

    Attributes:
        metric: a key of `METRICS`.
        percentile: one of `stats.PERCENTILES`.
        limit_ns: highest value that is still well, nanoseconds.
    """

    metric: str
    percentile: int
    limit_ns: float

    @property
    def option(self) -> str:
        """The option of the command line that sets it."""
        return f"--max-{self.metric}-p{self.percentile}"


@dataclass(frozen=True, slots=True)
class Check:
    """What came of a limit.

    Attributes:
        value_ns: what was measured, None when there is no value; infinite among failures.
        is_ok: it was kept. Without a value it was not: what cannot be measured cannot be within a limit.
    """

    threshold: Threshold
    value_ns: float | None
    is_ok: bool

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values; None for a value that is none or infinite."""
        value = self.value_ns if self.value_ns is not None and self.value_ns < float("inf") else None
        return {**asdict(self.threshold), "value_ns": value, "ok": self.is_ok}


def check(
    thresholds: Sequence[Threshold], latencies_ns: Mapping[str, stats.Distribution], *, has_failures: bool
) -> list[Check]:
    """Return what came of each limit.

    Args:
        latencies_ns: of a report.
        has_failures: some requests failed; an end-to-end limit then holds with failed requests as endless ones.
    """
    checks = []
    for each in thresholds:
        name = METRICS[each.metric]
        if name == "end_to_end" and has_failures:
            name = "end_to_end_with_failures"
        value = latencies_ns[name].percentiles[stats.PERCENTILES.index(each.percentile)]
        checks.append(Check(each, value, value is not None and value <= each.limit_ns))
    return checks


def refuse_unmeasurable(thresholds: Sequence[Threshold], *, is_streaming: bool) -> None:
    """Check that what is limited will be measured.

    Raises:
        InvalidRequest: a limit on single tokens, without streaming.
    """
    wrong = [each.option for each in thresholds if each.metric in _NEED_STREAMING and not is_streaming]
    if wrong:
        raise InvalidRequest(
            f"{wrong[0]} needs the times of single tokens", hint="Leave out --no-stream, or limit e2e."
        )


def complaint(checks: Sequence[Check]) -> tuple[str, str] | None:
    """Return (what is wrong, what to do) when a limit was not kept, else None."""
    broken = [each for each in checks if not each.is_ok]
    if not broken:
        return None
    is_known = any(each.value_ns is not None for each in broken)
    hint = (
        "Look at queue and compute times above for where it is lost, or raise the limit." if is_known else _UNKNOWN_HINT
    )
    return "; ".join(map(_complaint, broken)), hint


def _complaint(check: Check) -> str:
    limit = check.threshold
    name = f"{limit.metric} p{limit.percentile}"
    if check.value_ns is None:
        return f"{name} is unknown, so that the limit of {_ms(limit.limit_ns)} is not kept: {_UNKNOWN[limit.metric]}"
    return f"{name} is {_ms(check.value_ns)}, more than {_ms(limit.limit_ns)}"


def _ms(value_ns: float) -> str:
    return "endless (failed requests)" if value_ns == float("inf") else f"{value_ns / 1e6:.1f} ms"
