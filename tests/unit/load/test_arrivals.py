"""Schedules: their rates, their distributions, and that a seed gives one and the same."""

from __future__ import annotations

import numpy as np
import pytest

from trtbuild_client.errors import InvalidRequest
from trtbuild_client.load.arrivals import Arrivals, share


def kolmogorov_smirnov(values: np.ndarray, cdf: np.ndarray) -> float:
    """Return the p-value of the one-sample test (asymptotic, Kolmogorov's series)."""
    n = len(values)
    steps = np.arange(1, n + 1) / n
    distance = float(np.max(np.maximum(steps - cdf, cdf - (steps - 1 / n))))
    x = (np.sqrt(n) + 0.12 + 0.11 / np.sqrt(n)) * distance
    return float(min(1.0, 2 * sum((-1) ** (k - 1) * np.exp(-2 * k * k * x * x) for k in range(1, 101))))


@pytest.mark.parametrize("seed", range(5))
def test_poisson_arrivals_are_exponentially_apart(seed: int) -> None:
    times = np.array(Arrivals(200, seed=seed).times(duration_s=30)) / 1e9
    assert 5700 < len(times) < 6300 and times[-1] <= 30
    gaps = np.sort(np.diff(times, prepend=0.0))
    assert kolmogorov_smirnov(gaps, 1 - np.exp(-200 * gaps)) > 0.001
    # Given their number, the arrivals of a Poisson process are uniform.
    assert kolmogorov_smirnov(times, times / 30) > 0.001


def test_constant_arrivals_would_not_pass_for_poisson() -> None:
    gaps = np.sort(np.diff(np.array(Arrivals(200, "constant").times(duration_s=30)) / 1e9))
    assert gaps.std() < 1e-8 and gaps.mean() == pytest.approx(1 / 200)
    assert kolmogorov_smirnov(gaps, 1 - np.exp(-200 * gaps)) < 1e-6


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_arrivals_have_the_burstiness_asked_for(burstiness: float) -> None:
    gaps = np.diff(np.array(Arrivals(100, "gamma", burstiness, seed=1).times(requests=20_000)) / 1e9)
    assert gaps.mean() == pytest.approx(0.01, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.05)


@pytest.mark.parametrize(("first", "last"), [(10, 100), (100, 10), (50, 50)])
def test_a_ramp_changes_its_rate_evenly(first: float, last: float) -> None:
    times = np.array(Arrivals(first, end_rate=last, seed=3).times(duration_s=100)) / 1e9
    assert len(times) == pytest.approx((first + last) / 2 * 100, rel=0.05)
    passed = first * times + (last - first) / 200 * times**2
    assert kolmogorov_smirnov(passed / passed[-1], passed / passed[-1]) > 0.001
    gaps = np.sort(np.diff(passed))
    assert kolmogorov_smirnov(gaps, 1 - np.exp(-gaps)) > 0.001
    early, late = int((times < 10).sum()), int((times >= 90).sum())
    assert early == pytest.approx((first + (last - first) * 0.05) * 10, rel=0.25)
    assert late == pytest.approx((first + (last - first) * 0.95) * 10, rel=0.25)


def test_a_seed_gives_the_same_schedule_and_another_one_another() -> None:
    assert Arrivals(50, seed=1).times(requests=100) == Arrivals(50, seed=1).times(requests=100)
    assert Arrivals(50, seed=1).times(requests=100) != Arrivals(50, seed=2).times(requests=100)


def test_processes_share_one_schedule() -> None:
    times = Arrivals(50).times(requests=101)
    parts = [share(times, process, 3) for process in range(3)]
    assert sorted(time for part in parts for time in part) == list(times)


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (lambda: Arrivals(0), "above 0"),
        (lambda: Arrivals(float("nan")), "above 0"),
        (lambda: Arrivals(1, "gamma", 0), "above 0"),
        (lambda: Arrivals(1, "uniform"), "Known: constant"),
        (lambda: Arrivals(1).times(), "number of requests or a duration"),
        (lambda: Arrivals(1, end_rate=2).times(requests=5), "duration"),
        (lambda: Arrivals(1e9).times(duration_s=1e9), "Lower the rate"),
    ],
)
def test_what_cannot_be_is_refused(make: object, hint: str) -> None:
    with pytest.raises(InvalidRequest, match=hint):
        make()  # type: ignore[operator]  # a lambda of the table above
