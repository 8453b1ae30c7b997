"""When requests are meant to be sent, open loop: schedules that are made before the run, so that nothing in it can delay them.

All return nanoseconds after the start of the run. Each process of a run gets every k-th of one common schedule.
"""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trtbuild_client.errors import InvalidRequest

_NS = 1e9
#: Schedules longer than this are refused: a mistyped rate must not fill the memory.
_MAX_ARRIVALS = 20_000_000
#: Nobody waits for longer.
_LONGEST_S = 30 * 86400


def _constant(random_: random.Random, burstiness: float) -> float:
    return 1.0


def _exponential(random_: random.Random, burstiness: float) -> float:
    return random_.expovariate(1.0)


def _gamma(random_: random.Random, burstiness: float) -> float:
    return random_.gammavariate(burstiness, 1.0 / burstiness)


#: name -> time to the next arrival in units of the mean one.
PROCESSES: dict[str, Callable[[random.Random, float], float]] = {
    "constant": _constant,
    "poisson": _exponential,
    "gamma": _gamma,
}


@dataclass(frozen=True, slots=True)
class Arrivals:
    """A schedule.

    Attributes:
        rate: arrivals per second, the mean.
        process: key of `PROCESSES`.
        burstiness: shape of the gamma distribution of the times between arrivals: 1 is Poisson, below 1 comes in bursts (coefficient of
            variation 1 / sqrt(burstiness)), above 1 is more even.
        end_rate: the rate at the end where it rises or falls evenly; times are then those of a Poisson process of that rate.
        seed: of the random numbers.
    """

    rate: float
    process: str = "poisson"
    burstiness: float = 1.0
    end_rate: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.process not in PROCESSES:
            raise InvalidRequest(f"arrivals '{self.process}'", hint=f"Known: {', '.join(PROCESSES)}.")
        rates = {"rate": self.rate, "burstiness": self.burstiness}
        if self.end_rate is not None:
            rates["end rate"] = self.end_rate
        for name, value in rates.items():
            if not (math.isfinite(value) and value > 0):
                raise InvalidRequest(f"{name}={value!r}", hint="It must be a number above 0.")

    def times(self, *, requests: int | None = None, duration_s: float | None = None) -> array[int]:
        """Return the schedule up to a number of arrivals or a time, whichever comes first.

        Raises:
            InvalidRequest: neither is given, a ramp has no duration, there are too many arrivals, or the last one is a month away.
        """
        if requests is None and duration_s is None:
            raise InvalidRequest("an open loop without end", hint="Give a number of requests or a duration.")
        if self.end_rate is not None and duration_s is None:
            raise InvalidRequest("a ramp without duration", hint="Give a duration: the rate changes evenly over it.")
        expected = float("inf") if duration_s is None else max(self.rate, self.end_rate or 0.0) * duration_s
        if min(expected, float("inf") if requests is None else requests) > _MAX_ARRIVALS:
            raise InvalidRequest(
                f"more than {_MAX_ARRIVALS:,} arrivals", hint="Lower the rate or the duration, or give --requests."
            )
        most = _MAX_ARRIVALS if requests is None else requests
        times: array[int] = array("q")
        for time_s in self._times_s(duration_s):
            if len(times) >= most or (duration_s is not None and time_s > duration_s):
                break
            if time_s > _LONGEST_S:
                raise InvalidRequest(
                    f"a schedule of more than {_LONGEST_S // 86400} days", hint="Raise the rate, or give a duration."
                )
            times.append(round(time_s * _NS))
        return times

    def _times_s(self, duration_s: float | None) -> Iterator[float]:
        random_ = random.Random(self.seed)
        step = PROCESSES[self.process]
        if self.end_rate is None:
            at_s = 0.0 if self.process == "constant" else step(random_, self.burstiness) / self.rate
            while True:
                yield at_s
                at_s += step(random_, self.burstiness) / self.rate
        assert duration_s is not None
        # The time at which a process of rate 1 would have its arrivals, through the inverse of the rate's integral
        # rate * t + slope * t^2 / 2 (Cinlar's method, as in Law, Simulation Modeling and Analysis, section 8.6.2).
        slope = (self.end_rate - self.rate) / duration_s
        passed = 0.0
        while True:
            passed += step(random_, self.burstiness)
            if slope == 0.0:
                yield passed / self.rate
                continue
            inside = self.rate * self.rate + 2.0 * slope * passed
            if inside < 0.0:  # a falling rate has reached its end
                return
            yield (math.sqrt(inside) - self.rate) / slope


def share(times: array[int], offset: int, stride: int) -> array[int]:
    """Return every `stride`-th arrival from the `offset`-th on."""
    return times[offset::stride]
