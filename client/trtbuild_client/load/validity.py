"""Whether a run measured the server or the client. Limits are stated in every result, with what was seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trtbuild_client.load.distribution import interpolated
from trtbuild_client.load.strain import StrainReport

#: A stop is spoken of when it is longer than so many times the allowed lag: shorter ones (a collection of garbage, another program on the
#: core) are in most runs, and times of arrival are the system's, so that only data that came together lose theirs.
_NOTABLE = 10


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a client may do to itself.

    Attributes:
        cpu_share: of one core per process. Above it the loop is seldom waiting, and events queue in the client.
        send_lag_p99_ns: requests sent later than their time.
        loop_lag_p99_ns: how late the loop looks at its sockets, of the time of the run: so late it sees, and answers, what comes.
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


def check(strain: Sequence[StrainReport], send_lags_ns: NDArray[np.float64], allowed: Allowed) -> list[Check]:
    """Return all checks of a run; it is valid when all are passed.

    Args:
        strain: of each process.
        send_lags_ns: of the measured requests.
        allowed: the limits.
    """
    cpu = max(each.cpu_share for each in strain)
    loop = max(each.loop_lag_p99_ns for each in strain)
    stop = longest_stop(strain)
    lag_p99 = send_lag_p99_ns(send_lags_ns)
    late = int((send_lags_ns > allowed.send_lag_p99_ns).sum())
    return [
        Check(
            "client_cpu_share",
            cpu,
            allowed.cpu_share,
            f"a client process used {cpu:.0%} of a core, more than {allowed.cpu_share:.0%}: use more --processes",
        ),
        Check(
            "send_lag_p99_ns",
            lag_p99,
            allowed.send_lag_p99_ns,
            f"sent more than {allowed.send_lag_p99_ns / 1e6:g} ms late: {late:,} of {len(send_lags_ns):,} requests (99th percentile "
            f"{(lag_p99 or 0.0) / 1e6:.2f} ms): the client or its machine is too busy for this load",
        ),
        Check(
            "loop_lag_p99_ns",
            float(loop),
            allowed.loop_lag_p99_ns,
            f"in 1 % of the run's time the client saw what came more than {loop / 1e6:.2f} ms late, limit "
            f"{allowed.loop_lag_p99_ns / 1e6:g} ms; at worst it looked at no socket for {stop.text}: use more --processes, or a machine "
            "of its own, and let nothing stop the client",
        ),
    ]


def send_lag_p99_ns(send_lags_ns: NDArray[np.float64]) -> float | None:
    """Return the 99th percentile of how late requests were sent, None without any."""
    return interpolated(np.sort(send_lags_ns), 0.99) if len(send_lags_ns) else None


@dataclass(frozen=True, slots=True)
class Stop:
    """A time in which a client process looked at no socket; nanoseconds after the start of the run.

    Attributes:
        process: which one.
    """

    process: int
    begin_ns: int
    length_ns: int

    @property
    def text(self) -> str:
        """How long it was, and when."""
        length = f"{self.length_ns / 1e9:.2f} s" if self.length_ns >= 1e9 else f"{self.length_ns / 1e6:.1f} ms"
        return f"{length}, {self.begin_ns / 1e9:.2f} s after the start"


def longest_stop(strain: Sequence[StrainReport]) -> Stop:
    """Return the longest one of all processes."""
    length_ns, process = max((each.loop_lag_max_ns, process) for process, each in enumerate(strain))
    return Stop(process, strain[process].loop_lag_max_at_ns, length_ns)


def stop_warning(strain: Sequence[StrainReport], running: Callable[[Stop], int], allowed: Allowed) -> str | None:
    """Return what one long stop may have done to the highest values of a run, though it is too short for the others.

    Args:
        running: says how many measured requests ran during a stop.
    """
    stop = longest_stop(strain)
    if stop.length_ns <= _NOTABLE * allowed.loop_lag_p99_ns or not (requests := running(stop)):
        return None
    return (
        f"the client looked at no socket for {stop.text}, while {requests} requests ran: what is far above their other values (p99.9, max) "
        "may be the client's"
    )
