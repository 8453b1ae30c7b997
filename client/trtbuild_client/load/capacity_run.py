"""Measures the points of a capacity search on a server: open loops that end as soon as their point is decided."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trtbuild_client.errors import ClientError, InvalidRequest
from trtbuild_client.load.capacity import Capacity, Point, Sample, judge, judge_alone, looks, per_s, result
from trtbuild_client.load.capacity import search as bisect
from trtbuild_client.load.datasets import Dataset
from trtbuild_client.load.metrics import View
from trtbuild_client.load.plan import Plan, mean_turns
from trtbuild_client.load.run import Progress, Waiting
from trtbuild_client.load.session import LoadTest
from trtbuild_client.load.settings import Load
from trtbuild_client.load.slo import Objective
from trtbuild_client.load.summary import Summary
from trtbuild_client.load.table import RecordTable

#: Requests of a point at most, unless --requests says otherwise.
_REQUESTS = 2000
_ERROR = 0.05
#: Requests one after the other that say where to begin, and whether the objectives can be met at all.
_PROBES = 5
#: Below this share of the rate of single requests they hardly wait for each other.
_FLOOR_SHARE = 1 / 8
#: How often a point is measured in which the client was the limit: another program may have been in the way.
_TRIES = 3


class Interrupted(Exception):
    """The search was interrupted."""


def search(test: LoadTest, *, tolerance: float = 0.05) -> Capacity:
    """Find the capacity of a server; its runs are kept in the test.

    Raises:
        InvalidRequest: a kind of load that a search cannot use.
        ClientError: the server does not answer, or no single request.
    """
    load = test.load
    if load.concurrency or load.ramp or len(load.rates) > 1:
        raise InvalidRequest(
            "--find-capacity with another kind of load", hint="Give at most one --rate: where the search begins."
        )
    if load.duration_s is not None:
        raise InvalidRequest(
            "--find-capacity with a duration", hint="A rate ends when it is decided, or after --requests: give those."
        )
    # Two runs of the same beginning must not find the prompts of the other in the server's cache.
    test.load = replace(load, requests=load.requests or _REQUESTS)
    found = Search(test, test.prepare(), [])
    if found.dataset.starts is not None:
        raise InvalidRequest(
            f"--find-capacity with the times of {found.dataset.name}",
            hint="The search sets the rates itself: give prompts without times.",
        )
    objectives = [str(each) for each in test.objectives]
    try:
        alone = found.alone()
        if alone.problem or not alone.is_met:
            return result([alone], objectives, alone.problem or "a lower rate changes nothing")
        start = load.rates[0] if load.rates else alone.rate
        floor = min(alone.rate * _FLOOR_SHARE, start)
        return bisect(found.point, start=start, objectives=objectives, floor=floor, tolerance=tolerance)
    except Interrupted:
        return result(found.points, objectives, "it was interrupted")


@dataclass
class Search:
    """The points of a search on a server.

    Attributes:
        points: those that were measured.
    """

    test: LoadTest
    dataset: Dataset
    points: list[Point]

    def alone(self) -> Point:
        """Return what requests that are sent one after the other say; met unless most of them miss an objective."""
        self._say(f"{_PROBES} requests, one at a time")
        summary, table = self._singles(_PROBES)
        rate = summary.rates["requests_per_s"]
        if not rate:
            said = summary.errors[0][0] if summary.errors else "no answer"
            raise ClientError(
                f"no request succeeded: {said}", hint="A search needs a server that answers single requests."
            )
        samples = samples_of(table, (), self.test.objectives, is_streamed=self.test.load.is_streaming)
        judge(samples, rate=rate, number_of_looks=1, error=_ERROR, is_last=True)  # what it loads must not delay a loop
        point = judge_alone(samples, rate=rate) or Point(rate, True, False, _PROBES, (), is_alone=True)
        point = replace(point, rate=rate / mean_turns(self.dataset), requests_per_s=rate, achieved_per_s=rate)
        self._say_verdict(point)
        return point

    def point(self, rate: float) -> Point:
        """Return what a rate says; the server is idle again afterwards."""
        for number in range(_TRIES):
            plan = self.test.load.at_rate(rate, seed=self.test.load.seed + len(self.points) * _TRIES + number)
            self._say(f"{plan.label(self.dataset)}: at most {self.test.load.requests} requests")
            point = self._measured(plan, rate)
            self._say_verdict(point)
            if not point.is_met:
                self._singles(1)  # it goes through the queue that an overload has left behind
            if not point.problem or number == _TRIES - 1:
                break
            self.test.runs.pop()  # it is measured again
        self.points.append(point)
        return point

    def _singles(self, requests: int) -> tuple[Summary, RecordTable]:
        """Send requests one after the other; they are no run of the result."""
        plan = next(Load(requests=requests, timeout_s=self.test.load.timeout_s).plans(self.dataset))
        summary = self.test.measure(replace(plan, is_streaming=self.test.load.is_streaming), self.dataset)
        _, done = self.test.runs.pop()
        if done.stopped_by is not None:
            raise Interrupted
        return summary, done.table

    def _measured(self, plan: Plan, rate: float) -> Point:
        load, objectives = self.test.load, self.test.objectives
        numbers = looks(load.requests or _REQUESTS)
        found: list[Point] = []
        next_look = [0]

        def is_decided(progress: Progress) -> bool:
            if progress.table is None or next_look[0] >= len(numbers):
                return False
            if progress.done + len(progress.waiting) < numbers[next_look[0]]:
                return False
            samples = samples_of(progress.table, progress.waiting, objectives, is_streamed=load.is_streaming)
            if max(len(each.bad) for each in samples) < numbers[next_look[0]]:
                return False
            point = judge(samples, rate=rate, number_of_looks=len(numbers), error=_ERROR, is_last=False)
            if point is not None and point.is_met and progress.elapsed_s < self._least_s(progress.table):
                return False  # there are not yet as many in flight as there will be
            next_look[0] += 1
            if point is not None:
                found.append(point)
            return point is not None

        summary = self.test.measure(plan, self.dataset, until=is_decided)
        table = self.test.runs[-1][1].table
        if summary.client["interrupted"]:
            raise Interrupted
        if not found:
            samples = samples_of(table, (), objectives, is_streamed=load.is_streaming)
            last = judge(samples, rate=rate, number_of_looks=len(numbers), error=_ERROR, is_last=True)
            assert last is not None
            found.append(last)
        return self._completed(found[0], summary, table)

    def _completed(self, point: Point, summary: Summary, table: RecordTable) -> Point:
        """Return a point with what was sent and served, and with what keeps it from saying something."""
        turns = mean_turns(self.dataset)
        nominal, offered = point.rate * turns, summary.rates["offered_requests_per_s"]
        if turns > 1 and point.is_met and offered is not None:
            nominal = min(
                nominal, offered
            )  # later turns come later: a short run does not reach the rate of all of them
        problem = point.problem
        if not summary.is_valid:
            problem = f"the client was the limit at {per_s(nominal)} requests/s: {summary.invalid_reasons[0]}"
        elif point.is_met and not problem:
            dues = table.columns["due_ns"]
            span_s, least_s = (max(dues) - min(dues)) / 1e9, self._least_s(table)
            if span_s < least_s:
                problem = (
                    f"at {per_s(nominal)} requests/s the {len(dues)} requests of a rate are sent within {span_s:.3g} s, and one "
                    f"{'conversation' if turns > 1 else 'answer'} takes {least_s:.3g} s: give more --requests"
                )
        achieved = summary.rates["requests_per_s"]
        return replace(point, requests_per_s=nominal, achieved_per_s=achieved, problem=problem)

    def _least_s(self, table: RecordTable) -> float:
        """Return for how long requests must be sent until as many are in flight as there will be: a conversation; infinite when none has ended."""
        answers = View(table).values("e2e").values
        if not len(answers):
            return float("inf")
        thinking_ns = sum(turn.think_ns for session in self.dataset.sessions for turn in session[1:])
        return float(mean_turns(self.dataset) * answers.mean() + thinking_ns / len(self.dataset.sessions)) / 1e9

    def _say(self, text: str) -> None:
        if self.test.say is not None:
            self.test.say(text)

    def _say_verdict(self, point: Point) -> None:
        shares = ", ".join(
            f"{each.name}: {100 * each.estimate:.3g} % above, {100 * each.allowed:.3g} % allowed"
            for each in point.shares
            if each.estimate is not None
        )
        said = [text for text in (shares, point.problem) if text]
        self._say(
            f"  {point.verdict} at {per_s(point.requests_per_s)} requests/s ({'; '.join([*said, f'{point.requests} requests'])})"
        )


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
