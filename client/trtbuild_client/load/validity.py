"""Whether a run measured the server or the client. Limits are stated in every result, with what was seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtbuild_client.load.strain import StrainReport


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a client may do to itself.

    Attributes:
        cpu_share: of one core per process. Above it the loop is seldom waiting, and events queue in the client.
        send_lag_p99_ns: requests sent later than their time.
        loop_lag_p99_ns: how long the loop does not look at its sockets: an error of that size in the time of an arrival.
    """

    cpu_share: float = 0.8
    send_lag_p99_ns: float = 2e6
    loop_lag_p99_ns: float = 2e6


@dataclass(frozen=True, slots=True)
class Check:
    """One limit.

    Attributes:
        seen: None where there was nothing to see.
    """

    name: str
    seen: float | None
    limit: float
    text: str

    @property
    def is_passed(self) -> bool:
        """Whether it holds."""
        return self.seen is None or self.seen <= self.limit


def check(strain: Sequence[StrainReport], send_lag_p99_ns: float | None, allowed: Allowed) -> list[Check]:
    """Return all checks of a run; it is valid when all are passed.

    Args:
        strain: of each process.
        send_lag_p99_ns: of the measured requests.
        allowed: the limits.
    """
    cpu = max(each.cpu_share for each in strain)
    loop = max(each.loop_lag_p99_ns for each in strain)
    lag = 0.0 if send_lag_p99_ns is None else send_lag_p99_ns
    return [
        Check(
            "client_cpu_share",
            cpu,
            allowed.cpu_share,
            f"a client process used {cpu:.0%} of a core, more than {allowed.cpu_share:.0%}: use more --processes",
        ),
        Check(
            "send_lag_p99_ns",
            send_lag_p99_ns,
            allowed.send_lag_p99_ns,
            f"1 % of the requests were sent more than {lag / 1e6:.2f} ms late, limit {allowed.send_lag_p99_ns / 1e6:g} ms: "
            "the client or its machine is too busy for this load",
        ),
        Check(
            "loop_lag_p99_ns",
            float(loop),
            allowed.loop_lag_p99_ns,
            f"for 1 % of the time the client could not look at its sockets for {loop / 1e6:.2f} ms or more, limit "
            f"{allowed.loop_lag_p99_ns / 1e6:g} ms: use more --processes, or a machine of its own",
        ),
    ]
