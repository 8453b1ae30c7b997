"""The search for the capacity, on simulated servers whose capacity is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from trtbuild_client.errors import InvalidRequest
from trtbuild_client.load.capacity import Point, Sample, judge, looks, search, share_of

_MU, _LIMIT_S = 20.0, 0.5
#: M/M/1: the time in the system is exponential with rate mu - lambda, so its 95th percentile is ln 20 / (mu - lambda).
_CAPACITY = _MU - math.log(20) / _LIMIT_S


def mm1(rate: float, requests: int, rng: np.random.Generator) -> np.ndarray:
    """Return the time in the system of each request, in order of arrival (Lindley's recursion)."""
    gaps, work = rng.exponential(1 / rate, requests), rng.exponential(1 / _MU, requests)
    steps = np.concatenate([[0.0], work[:-1] - gaps[1:]])
    walked = np.cumsum(steps)
    return walked - np.minimum.accumulate(walked) + work


def measure(rng: np.random.Generator, most: int, sent: list[int]) -> Callable[[float], Point]:
    """Return a measurement of a rate that looks as the real one does."""

    def point(rate: float) -> Point:
        times = mm1(rate, most, rng)
        bad = (times > _LIMIT_S).astype(float)
        numbers = looks(most)
        for number in numbers:
            sample = Sample(bad[:number], np.ones(number), times[:number], 0.05, "ttft")
            found = judge([sample], rate=rate, number_of_looks=len(numbers), error=0.05, is_last=number == most)
            if found is not None:
                sent.append(found.requests)
                return found
        raise AssertionError("the last look decides")

    return point


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("start", [0.7, 3.0, 60.0])
def test_the_capacity_of_a_queue_is_found_within_five_percent(seed: int, start: float) -> None:
    sent: list[int] = []
    found = search(measure(np.random.default_rng(seed), 120_000, sent), start=start, objectives=["ttft.p95"])
    assert found.low * 0.95 <= _CAPACITY <= found.high * 1.05, found.text()
    assert found.high <= found.low * 1.0501 and found.stopped_because == "within 5%"
    assert 0.95 <= math.sqrt(found.low * found.high) / _CAPACITY <= 1.05


def test_points_far_from_the_capacity_need_few_requests() -> None:
    sent: list[int] = []
    rng = np.random.default_rng(0)
    point = measure(rng, 40_000, sent)
    assert point(1.0).is_met and point(40.0).is_met is False
    assert max(sent) <= 400


def test_decisions_are_wrong_no_more_often_than_they_say() -> None:
    wrong = 0
    for seed in range(100):
        sent: list[int] = []
        found = measure(np.random.default_rng(seed), 20_000, sent)(_CAPACITY * 0.9)
        wrong += not found.is_met
    assert wrong <= 5


def test_neighbours_that_are_alike_widen_the_interval() -> None:
    rng = np.random.default_rng(0)
    alone = (rng.random(4000) < 0.1).astype(float)
    runs = np.repeat((rng.random(80) < 0.1).astype(float), 50)
    spans = [share_of(Sample(bad, np.ones(4000), bad, 0.05), 0.95) for bad in (alone, runs)]
    assert spans[1].high - spans[1].low > 3 * (spans[0].high - spans[0].low)


def test_a_server_that_never_fails_and_one_that_always_does_end_the_search() -> None:
    def always(is_met: bool) -> Callable[[float], Point]:
        return lambda rate: Point(rate, is_met, True, 100, ())

    best = search(always(True), start=1, objectives=["x"])
    assert best.high == math.inf and "at least" in best.text()
    worst = search(always(False), start=1, objectives=["x"])
    assert worst.low == 0 and "not met even by" in worst.text()
    assert best.to_json()["high_requests_per_s"] is None


def test_one_objective_that_is_missed_is_enough() -> None:
    good, bad, level = np.zeros(400), np.ones(400), np.random.default_rng(0).random(400)
    samples = [Sample(good, np.ones(400), level, 0.05, "a"), Sample(bad, np.ones(400), level, 0.05, "b")]
    found = judge(samples, rate=1, number_of_looks=3, error=0.05, is_last=False)
    assert found is not None and not found.is_met and found.is_decided


def test_an_undecided_point_is_decided_by_its_estimate_at_last_and_says_so() -> None:
    bad = np.zeros(100)
    bad[::25] = 1
    sample = Sample(bad, np.ones(100), np.random.default_rng(0).random(100), 0.05, "a")
    assert judge([sample], rate=1, number_of_looks=3, error=0.05, is_last=False) is None
    last = judge([sample], rate=1, number_of_looks=3, error=0.05, is_last=True)
    assert last is not None and last.is_met and not last.is_decided


def test_a_search_from_nowhere_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        search(lambda rate: Point(rate, True, True, 1, ()), start=0, objectives=[])
