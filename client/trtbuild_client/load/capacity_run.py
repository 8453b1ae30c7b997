"""Measures the points of a capacity search on a server: open loops that end as soon as their point is decided."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trtbuild_client.errors import InvalidRequest
from trtbuild_client.load.capacity import Capacity, Point, Sample, judge, looks
from trtbuild_client.load.capacity import search as bisect
from trtbuild_client.load.datasets import Dataset
from trtbuild_client.load.metrics import View
from trtbuild_client.load.run import Progress, Waiting
from trtbuild_client.load.session import LoadTest
from trtbuild_client.load.settings import Load
from trtbuild_client.load.slo import Objective
from trtbuild_client.load.table import RecordTable

#: Requests of a point at most, unless --requests says otherwise.
_REQUESTS = 2000
_ERROR = 0.05
#: Requests one after the other that say where to begin.
_PROBES = 5


class Interrupted(Exception):
    """The search was interrupted."""


def search(test: LoadTest, *, tolerance: float = 0.05) -> Capacity:
    """Find the capacity of a server; its runs are kept in the test.

    Raises:
        InvalidRequest: a kind of load that a search cannot use.
        ClientError: the server does not answer.
    """
    load = test.load
    if load.concurrency or load.ramp or len(load.rates) > 1:
        raise InvalidRequest(
            "--find-capacity with another kind of load", hint="Give at most one --rate: where the search begins."
        )
    most = load.requests or _REQUESTS
    # Two runs of the same beginning must not find the prompts of the other in the server's cache.
    test.load = replace(load, requests=most, duration_s=None)
    dataset = test.prepare()
    start = load.rates[0] if load.rates else _start(test, dataset)
    decided: list[Point] = []

    def measure(rate: float) -> Point:
        point = _measure(test, dataset, rate, most, seed=load.seed + len(decided))
        decided.append(point)
        if not point.is_met:
            _drain(test, dataset)
        return point

    objectives = [str(each) for each in test.objectives]
    try:
        return bisect(measure, start=start, objectives=objectives, tolerance=tolerance)
    except Interrupted:
        met = [point.rate for point in decided if point.is_met]
        missed = [point.rate for point in decided if not point.is_met]
        return Capacity(
            max(met, default=0.0),
            min(missed, default=float("inf")),
            tuple(decided),
            tuple(objectives),
            "it was interrupted",
        )


def _start(test: LoadTest, dataset: Dataset) -> float:
    """Return the rate of requests that are sent one after the other."""
    plan = next(Load(requests=_PROBES, processes=1, timeout_s=test.load.timeout_s).plans(dataset))
    summary = test.measure(replace(plan, is_streaming=test.load.is_streaming), dataset)
    test.runs.pop()
    rate = summary.rates["requests_per_s"]
    if not rate:
        said = summary.errors[0][0] if summary.errors else "no answer"
        raise InvalidRequest(
            f"no request succeeded: {said}", hint="A search needs a server that answers single requests."
        )
    return rate


def _drain(test: LoadTest, dataset: Dataset) -> None:
    """Wait until the server has worked off what an overloaded point left behind: one request after the other goes through its queue."""
    plan = next(Load(requests=1, timeout_s=test.load.timeout_s).plans(dataset))
    test.measure(replace(plan, is_streaming=test.load.is_streaming), dataset)
    test.runs.pop()


def _measure(test: LoadTest, dataset: Dataset, rate: float, most: int, *, seed: int) -> Point:
    plan = test.load.at_rate(rate, seed=seed)
    numbers = looks(most)
    found: list[Point] = []
    next_look = [0]

    def is_decided(progress: Progress) -> bool:
        if progress.table is None or next_look[0] >= len(numbers):
            return False
        if progress.done + len(progress.waiting) < numbers[next_look[0]]:
            return False
        samples = samples_of(progress.table, progress.waiting, test.objectives, is_streamed=test.load.is_streaming)
        if max(len(each.bad) for each in samples) < numbers[next_look[0]]:
            return False
        next_look[0] += 1
        point = judge(samples, rate=rate, number_of_looks=len(numbers), error=_ERROR, is_last=False)
        if point is not None:
            found.append(point)
        return point is not None

    summary = test.measure(plan, dataset, until=is_decided)
    if summary.client["interrupted"]:
        raise Interrupted
    if found:
        return found[0]
    samples = samples_of(test.runs[-1][1].table, (), test.objectives, is_streamed=test.load.is_streaming)
    point = judge(samples, rate=rate, number_of_looks=len(numbers), error=_ERROR, is_last=True)
    assert point is not None
    return point


def samples_of(
    table: RecordTable, waiting: Sequence[Waiting], objectives: Sequence[Objective], *, is_streamed: bool
) -> list[Sample]:
    """Return what requests say about each objective, in the order in which they were due.

    A request that failed has missed everything. One that still runs counts as soon as it is certain: when it is older than the limit,
    or has its first token; leaving it out would show only those that were served quickly.
    """
    view = View(table, is_streamed=is_streamed)
    now_ns = time.perf_counter_ns()
    return [_sample(view, waiting, objective, now_ns) for objective in objectives]


def _sample(view: View, waiting: Sequence[Waiting], objective: Objective, now_ns: int) -> Sample:
    metric = view.values(objective.metric)
    requests = int(view.ok.sum())
    weight = np.bincount(metric.owner, minlength=requests).astype(np.float64)
    bad: NDArray[np.float64] = np.bincount(
        metric.owner, weights=metric.values > objective.limit_ns, minlength=requests
    ).astype(np.float64)
    due = view.column("due_ns")
    failed = view.column("due_ns", view.failed)
    sums = np.bincount(metric.owner, weights=metric.values, minlength=requests)
    level: NDArray[np.float64] = sums / np.maximum(weight, 1)
    typical = float(weight.mean()) if requests else 1.0
    late = [each for each in waiting if (verdict := _certain(each, objective, now_ns)) is not None and verdict]
    fine = [each for each in waiting if _certain(each, objective, now_ns) is False]
    dues = np.concatenate([due, failed, [each.due_ns for each in (*late, *fine)]])
    order = np.argsort(dues, kind="stable")
    number_bad = len(failed) + len(late)
    bad = np.concatenate([bad, np.full(number_bad, typical), np.zeros(len(fine))]).astype(np.float64)
    weight = np.concatenate([weight, np.full(number_bad, typical), np.full(len(fine), typical)])
    level = np.concatenate([level, np.full(number_bad, np.inf), np.zeros(len(fine))])
    return Sample(bad[order], weight[order], level[order], 1 - objective.share, str(objective))


def _certain(waiting: Waiting, objective: Objective, now_ns: int) -> bool | None:
    """Say whether a request that runs has missed (True) or met (False) an objective, None when it is not known yet."""
    if objective.metric == "ttft":
        if waiting.first_ns is not None:
            return waiting.first_ns - waiting.due_ns > objective.limit_ns
        return True if now_ns - waiting.due_ns > objective.limit_ns else None
    if objective.metric == "e2e":
        return True if now_ns - waiting.due_ns > objective.limit_ns else None
    return None
