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
        loop_lag_p99_ns: 99th percentile of how long the loop could not look at its sockets (upper edge of its bucket, within 50 %).
        loop_lag_max_ns: the longest.
        peak_rss_bytes: of the process since it began.
        run_queue_ns: time in which the process was ready but the system ran others; -1 where the system does not say.
    """

    cpu_ns: int
    wall_ns: int
    loop_lag_p99_ns: int
    loop_lag_max_ns: int
    peak_rss_bytes: int
    run_queue_ns: int

    @property
    def cpu_share(self) -> float:
        """Share of one core, 0 to 1."""
        return self.cpu_ns / self.wall_ns if self.wall_ns > 0 else 0.0


class Strain:
    """Counts while the loop runs."""

    def __init__(self) -> None:
        self._counts = array("q", [0]) * _BUCKETS
        self._max = 0
        self._cpu = self._wall = self._queue = 0
        self._is_running = False

    def start(self) -> None:
        """Begin to count."""
        self._cpu, self._wall, self._queue = -time.process_time_ns(), -time.perf_counter_ns(), -_run_queue_ns()
        self._is_running = True

    def stop(self) -> None:
        """End."""
        if self._is_running:
            self._cpu += time.process_time_ns()
            self._wall += time.perf_counter_ns()
            self._queue += _run_queue_ns()
            self._is_running = False

    def worked(self, ns: int) -> None:
        """Take the time in which the loop was busy with what was ready."""
        bits = ns.bit_length()
        self._counts[(bits << 1) | (ns >> (bits - 2) & 1) if bits > 1 else 0] += 1
        if ns > self._max:
            self._max = ns

    def slept(self, too_long_ns: int) -> None:
        """Take by how much a sleep was longer than asked for."""
        if too_long_ns > 0:
            self.worked(too_long_ns)

    def report(self) -> StrainReport:
        """Return what was counted."""
        cpu, wall, queue = self._cpu, self._wall, self._queue
        if self._is_running:
            cpu, wall, queue = cpu + time.process_time_ns(), wall + time.perf_counter_ns(), queue + _run_queue_ns()
        return StrainReport(
            cpu_ns=cpu,
            wall_ns=wall,
            loop_lag_p99_ns=min(self._quantile(0.99), self._max),
            loop_lag_max_ns=self._max,
            peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            run_queue_ns=queue if _run_queue_ns() >= 0 else -1,
        )

    def _quantile(self, share: float) -> int:
        total = sum(self._counts)
        seen = 0
        for index, count in enumerate(self._counts):
            seen += count
            if count and seen >= share * total:
                bits, half = index >> 1, index & 1
                return (1 << bits) if half else (3 << bits) >> 2
        return 0


def _run_queue_ns() -> int:
    """Return for how long this process was ready and not run, -1 where /proc does not say."""
    try:
        with open("/proc/self/schedstat", encoding="ascii") as file:  # noqa: PTH123 - read often, as it is
            return int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return -1
