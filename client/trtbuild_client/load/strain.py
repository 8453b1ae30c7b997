"""How busy the client itself was: a run in which it was the bottleneck measures the client, and is marked as such."""

from __future__ import annotations

import resource
import time
from array import array
from dataclasses import dataclass

_BUCKETS = 128


@dataclass(frozen=True, slots=True)
class StrainReport:
    """What one process used.

    Attributes:
        cpu_ns: CPU time of the process during the run.
        wall_ns: length of the run.
        loop_lag_p99_ns: what comes at any time of the run is seen this much later or less, in 99 % of the time.
        loop_lag_max_ns: the longest time in which no socket was looked at.
        peak_rss_bytes: of the process since it began.
        run_queue_ns: time in which the process was ready but the system ran others; -1 where the system does not say.
        loop_lag_max_at_ns: when that longest time began, after the start of the run.
    """

    cpu_ns: int
    wall_ns: int
    loop_lag_p99_ns: int
    loop_lag_max_ns: int
    peak_rss_bytes: int
    run_queue_ns: int
    loop_lag_max_at_ns: int = 0

    @property
    def cpu_share(self) -> float:
        """Share of one core, 0 to 1."""
        return self.cpu_ns / self.wall_ns if self.wall_ns > 0 else 0.0


class Strain:
    """Counts while the loop runs.

    What comes u before the end of a time in which nothing is looked at is seen u late. So of a time t the part t - x is one in which
    whatever comes is seen more than x late, and percentiles are those of the whole time of the run: the moments of arrivals are the
    server's, and one long stop weighs as much as it lasts, not as one turn of the loop among thousands.
    """

    def __init__(self) -> None:
        # Of lengths within half an octave: how many, and their sum.
        self._counts = array("q", [0]) * _BUCKETS
        self._sums = array("q", [0]) * _BUCKETS
        self._max = self._max_end = self._origin = 0
        self._cpu = self._wall = self._queue = 0
        self._is_running = False

    def start(self, origin_ns: int = 0) -> None:
        """Begin to count; times are reported from `origin_ns` on."""
        self._origin = origin_ns
        self._cpu, self._wall, self._queue = -time.process_time_ns(), -time.perf_counter_ns(), -_run_queue_ns()
        self._is_running = True

    def stop(self) -> None:
        """End."""
        if self._is_running:
            self._cpu += time.process_time_ns()
            self._wall += time.perf_counter_ns()
            self._queue += _run_queue_ns()
            self._is_running = False

    def unseen(self, ns: int, end_ns: int) -> None:
        """Take a time in which no socket was looked at: the loop was busy, or the system did not run it."""
        bits = ns.bit_length()
        bucket = (bits << 1) | (ns >> (bits - 2) & 1) if bits > 1 else 0
        self._counts[bucket] += 1
        self._sums[bucket] += ns
        if ns > self._max:
            self._max, self._max_end = ns, end_ns

    def report(self) -> StrainReport:
        """Return what was counted."""
        cpu, wall, queue = self._cpu, self._wall, self._queue
        if self._is_running:
            cpu, wall, queue = cpu + time.process_time_ns(), wall + time.perf_counter_ns(), queue + _run_queue_ns()
        return StrainReport(
            cpu_ns=cpu,
            wall_ns=wall,
            loop_lag_p99_ns=self._exceeded_for(0.01 * wall),
            loop_lag_max_ns=self._max,
            peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            run_queue_ns=queue if _run_queue_ns() >= 0 else -1,
            loop_lag_max_at_ns=self._max_end - self._max - self._origin if self._max else 0,
        )

    def _exceeded_for(self, time_ns: float) -> int:
        """Return the x for which the sum of all t - x (of the t above x) is `time_ns`; those of a bucket count as equal."""
        number = total = 0
        for count, length in zip(reversed(self._counts), reversed(self._sums), strict=True):
            if not count:
                continue
            if number and total - number * length / count >= time_ns:
                break
            number, total = number + count, total + length
        return round(max(total - time_ns, 0) / number) if number else 0


def _run_queue_ns() -> int:
    """Return for how long this process was ready and not run, -1 where /proc does not say."""
    try:
        with open("/proc/self/schedstat", encoding="ascii") as file:  # noqa: PTH123 - read often, as it is
            return int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return -1
