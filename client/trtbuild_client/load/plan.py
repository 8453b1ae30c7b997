"""What a run is to be, as a user says it, and the workloads of its processes."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from typing import Any

from trtbuild_client.errors import InvalidRequest
from trtbuild_client.load.arrivals import Arrivals, share
from trtbuild_client.load.datasets import Dataset
from trtbuild_client.load.validity import Allowed
from trtbuild_client.load.workload import Limits, Workload

#: A request in flight takes some kilobytes whatever its connection, a process some 40 MiB: a mistyped number must not fill the memory.
_MOST_CONCURRENT, _MOST_PROCESSES = 1_000_000, 256


@dataclass(frozen=True, slots=True)
class Plan:
    """One run.

    Attributes:
        concurrency: closed loop, when neither arrivals nor the times of a trace are given.
        arrivals: open loop; of conversations, which have one request each unless they have several turns.
        limits: when it ends; deadlines.
        warmup_requests, warmup_s: what is marked and not counted.
        ramp_s: closed loop: the conversations begin evenly within this time.
        processes: that share the work.
        is_streaming: tokens were asked for as they come.
        allowed: what the client may do to itself before the run is invalid.
    """

    concurrency: int = 1
    arrivals: Arrivals | None = None
    limits: Limits = field(default_factory=Limits)
    warmup_requests: int = 0
    warmup_s: float = 0.0
    ramp_s: float = 0.0
    processes: int = 1
    is_streaming: bool = True
    allowed: Allowed = field(default_factory=Allowed)

    def check(self, dataset: Dataset) -> None:
        """Refuse what cannot be.

        Raises:
            InvalidRequest: a count out of range, a loop without end, or a concurrency that would never be reached.
        """
        for name, value, least, most in (
            ("concurrency", self.concurrency, 1, _MOST_CONCURRENT),
            ("processes", self.processes, 1, _MOST_PROCESSES),
            ("warm-up", self.warmup_requests, 0, None),
        ):
            if value < least:
                raise InvalidRequest(f"{name} {value}", hint=f"It must be at least {least}.")
            if most is not None and value > most:
                raise InvalidRequest(f"{name} {value}", hint=f"It must be at most {most:,}.")
        limits = self.limits
        if limits.requests is not None and limits.requests < 1:
            raise InvalidRequest(f"{limits.requests} requests", hint="Send at least 1.")
        if limits.requests is None and limits.duration_ns is None and dataset.starts is None:
            raise InvalidRequest("a run without end", hint="Give --requests or --duration.")
        if self.is_closed(dataset):
            measured = limits.requests
            if measured is not None and measured - self.warmup_requests < self.concurrency:
                raise InvalidRequest(
                    f"concurrency {self.concurrency} would never be reached with {measured - self.warmup_requests} measured requests",
                    hint=f"Send at least {self.concurrency} measured requests.",
                )
            if self.processes > self.concurrency:
                raise InvalidRequest(
                    f"{self.processes} processes for a concurrency of {self.concurrency}", hint="Use fewer processes."
                )

    def is_closed(self, dataset: Dataset) -> bool:
        """Say whether it is a closed loop."""
        return self.arrivals is None and dataset.starts is None

    def workloads(self, dataset: Dataset) -> list[Workload]:
        """Return the share of each process."""
        self.check(dataset)
        starts = self.starts(dataset)
        whole = self.limits
        shares = []
        for process in range(self.processes):
            part = whole
            if whole.requests is not None:
                part = replace(whole, requests=_part(whole.requests, process, self.processes))
            shares.append(
                Workload(
                    sessions=dataset.sessions[process :: self.processes] or dataset.sessions,
                    limits=part,
                    starts=None if starts is None else share(starts, process, self.processes),
                    concurrency=_part(self.concurrency, process, self.processes),
                    ramp_ns=round(self.ramp_s * 1e9),
                    warmup_requests=self.warmup_requests,
                    warmup_ns=round(self.warmup_s * 1e9),
                    offset=process,
                    stride=self.processes,
                )
            )
        return shares

    def starts(self, dataset: Dataset) -> array[int] | None:
        """Return when conversations begin, None in a closed loop."""
        if self.arrivals is None:
            return dataset.starts
        duration_ns = self.limits.duration_ns
        return self.arrivals.times(
            requests=self.limits.requests, duration_s=None if duration_ns is None else duration_ns / 1e9
        )

    def label(self, dataset: Dataset) -> str:
        """Return what distinguishes it from other runs."""
        if self.arrivals is None:
            return f"concurrency {self.concurrency}" if dataset.starts is None else dataset.name
        arrivals = self.arrivals
        rate = f"{arrivals.rate:g}" if arrivals.end_rate is None else f"{arrivals.rate:g} to {arrivals.end_rate:g}"
        turns = mean_turns(dataset)
        if turns == 1:
            return f"{rate} req/s {arrivals.process}"
        ends = [arrivals.rate, *([] if arrivals.end_rate is None else [arrivals.end_rate])]
        requests = " to ".join(f"{each * turns:.4g}" for each in ends)
        return f"{rate} conversations/s (up to {requests} req/s) {arrivals.process}"

    def to_json(self, dataset: Dataset) -> dict[str, Any]:
        """Return what was asked for as JSON values."""
        arrivals = self.arrivals
        load: dict[str, Any] = {"kind": "closed", "concurrency": self.concurrency, "ramp_s": self.ramp_s}
        if arrivals is not None:
            load = {
                "kind": "open",
                "process": arrivals.process,
                "rate": arrivals.rate,
                "end_rate": arrivals.end_rate,
                "rate_of": "requests" if mean_turns(dataset) == 1 else "conversations",
                "burstiness": arrivals.burstiness,
                "seed": arrivals.seed,
            }
        elif dataset.starts is not None:
            load = {"kind": "trace"}
        return {
            **load,
            "dataset": dataset.name,
            "sessions": len(dataset.sessions),
            "turns_mean": mean_turns(dataset),
            "streamed": self.is_streaming,
            "requests": self.limits.requests,
            "duration_ns": self.limits.duration_ns,
            "warmup_requests": self.warmup_requests,
            "warmup_s": self.warmup_s,
            "processes": self.processes,
        }


def mean_turns(dataset: Dataset) -> float:
    """Return how many requests a conversation has: each arrival of an open loop begins one, and its later turns follow their answers."""
    return sum(map(len, dataset.sessions)) / len(dataset.sessions)


def _part(total: int, index: int, parts: int) -> int:
    return total // parts + (1 if index < total % parts else 0)
