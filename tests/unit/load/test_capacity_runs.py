"""Searches for the capacity on the mock: what is claimed, what ends them, what they say on the way."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from trtbuild_client.load import capacity_run
from trtbuild_client.load.arrivals import Arrivals
from trtbuild_client.load.capacity import Point, Sample, Share, judge, judge_alone, result, search
from trtbuild_client.load.datasets import Dataset
from trtbuild_client.load.plan import Plan
from trtbuild_client.load.session import LoadTest
from trtbuild_client.load.settings import Load, Prompts
from trtbuild_client.load.slo import parse
from trtbuild_client.load.target import Target
from trtbuild_client.load.validity import Allowed
from trtbuild_client.load.workload import Turn
from trtbuild_client.mock.distributions import parse_ns
from trtbuild_client.mock.options import MockOptions
from trtbuild_client.mock.server import RunningMock, running

Cli = Callable[..., tuple[int, str, str]]
#: For machines that do other work.
_ANYTHING = Allowed(cpu_share=1e9, send_lag_p99_ns=1e12, loop_lag_p99_ns=1e12)


@pytest.fixture
def mock() -> Iterator[RunningMock]:
    with running(MockOptions(ttft_ns=parse_ns("5ms"), itl_ns=parse_ns("4ms"))) as server:
        yield server


def sample(bad: list[float], weight: float = 1.0) -> Sample:
    return Sample(np.array(bad) * weight, np.full(len(bad), weight), np.arange(len(bad), dtype=float), 0.05, "x")


def upto(rate_of_client: float, rate_of_server: float = math.inf) -> Callable[[float], Point]:
    """Return a measurement in which the client is the limit above a rate, and answers take long."""

    def measure(rate: float) -> Point:
        problem = "the client was the limit" if rate > rate_of_client else ""
        is_met = rate <= rate_of_server
        return Point(rate, is_met, True, 100, (), achieved_per_s=rate * 0.8, problem=problem)

    return measure


def test_nothing_is_claimed_beyond_the_first_point_in_which_the_client_was_the_limit() -> None:
    found = search(upto(10.0), start=1.0, objectives=["x"])
    assert [point.rate for point in found.points] == [1, 2, 4, 8, 16]
    assert (found.low, found.high, found.problem) == (8 * 0.8, math.inf, "the client was the limit")
    assert found.text() == "holds at least 6.4 requests/s at x: the client was the limit"
    assert found.to_json()["points"][-1]["met"] is False and found.to_json()["points"][-1]["problem"]


def test_a_client_that_is_the_limit_at_once_leaves_the_answer_unknown() -> None:
    found = search(upto(0.5), start=1.0, objectives=["x"])
    assert (found.low, found.high) == (0, math.inf) and found.text().startswith("unknown whether x can be met")


def test_a_client_that_is_the_limit_between_two_rates_ends_the_search_with_the_span() -> None:
    points = [
        Point(4.0, True, True, 100, ()),
        Point(8.0, False, True, 100, ()),
        Point(5.6, True, True, 100, (), problem="p"),
    ]
    found = result(points, ["x"], "p")
    assert (found.low, found.high, found.problem) == (4.0, 8.0, "p")


def test_no_rate_below_the_floor_is_tried() -> None:
    found = search(lambda rate: Point(rate, False, True, 1, ()), start=8.0, floor=3.0, objectives=["x"])
    assert [point.rate for point in found.points] == [8, 4, 3] and "not met even by 3 requests/s" in found.text()


def test_an_objective_without_values_is_never_met() -> None:
    nothing = sample([0.0] * 50, weight=0.0)
    assert judge([nothing], rate=1, number_of_looks=2, error=0.05, is_last=False) is None
    last = judge([nothing], rate=1, number_of_looks=2, error=0.05, is_last=True)
    assert last is not None and not last.is_met and last.problem == "no answer has a value for x"
    alone = judge_alone([sample([0.0] * 5), nothing], rate=1)
    assert alone is not None and not alone.is_met and alone.problem


@pytest.mark.parametrize(
    ("bad", "is_missed"), [([1] * 5, True), ([1, 1, 1, 1, 0], True), ([1, 1, 0, 0, 0], False), ([0] * 5, False)]
)
def test_few_requests_decide_only_when_most_of_them_miss(bad: list[float], is_missed: bool) -> None:
    point = judge_alone([sample(bad)], rate=1)
    assert (point is not None) == is_missed
    assert point is None or (not point.is_met and point.is_decided and not point.problem)


def test_what_one_request_at_a_time_misses_is_said_at_once(mock: RunningMock, cli: Cli) -> None:
    arguments = ("bench", "--url", mock.grpc, "--find-capacity", "--slo", "itl.p95=1ms", "--output-tokens", 4)
    code, out, err = cli(*arguments)
    assert code == 3 and "itl.p95 <= 1 ms: not met even by one request at a time" in out
    assert err.startswith("5 requests, one at a time\n  missed at ")
    assert len(mock.schedule()["requests"]) == 5
    code, _, err = cli(*arguments, "--quiet")
    assert code == 3 and err.startswith("error: ")


def test_a_search_sets_times_and_ends_of_its_runs_itself(mock: RunningMock, cli: Cli, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 4, "output_length": 2, "hash_ids": [1]}\n')
    for more, message in ((("--duration", "5s"), "with a duration"), (("--dataset", trace), "with the times of")):
        code, _, err = cli("bench", "--url", mock.grpc, "--find-capacity", "--slo", "ttft=1s", *more)
        assert code == 2 and message in err
    assert mock.schedule()["requests"] == []


def test_a_server_that_answers_no_single_request_has_no_capacity(mock: RunningMock, cli: Cli) -> None:
    code, _, err = cli(
        "bench", "--url", mock.grpc, "--find-capacity", "--slo", "ttft=1s", "--prompt", "[mock fault=reset at=1]"
    )
    assert code == 1 and "no request succeeded: " in err


def test_an_objective_that_no_answer_has_a_value_for_is_unknown_in_every_output(cli: Cli, tmp_path: Path) -> None:
    page, short = tmp_path / "r.html", tmp_path / "r.aiperf"
    with running(MockOptions(output_tokens=1)) as mock:
        asked = (
            "bench",
            "--url",
            mock.grpc,
            "--requests",
            8,
            "--slo",
            "itl.p95=1s",
            "--output-tokens",
            4,
            "--allow-invalid",
        )
        code, out, err = cli(*asked, "--html", page, "--aiperf", short)
        assert code == 0 and "goodput unknown: no answer has a value for itl.p95 <= 1000 ms" in re.sub(
            r"\s+", " ", out
        ), err
        assert "n/a" in page.read_text() and "goodput" not in json.loads(short.read_text())
        code, _, err = cli(*asked, "--find-capacity")
        assert code == 3 and "unknown whether itl.p95 <= 1000 ms can be met: no answer has a value" in err


def test_a_busy_client_ends_the_search_with_3_and_every_point_is_said(mock: RunningMock, cli: Cli) -> None:
    code, out, err = cli(
        "bench", "--url", mock.grpc, "--find-capacity", "--slo", "ttft.p95=5s", "--output-tokens", 2, "--requests", 20, "--rate", 20,
        "--max-send-lag", "0.0001ms", "--json",
    )  # fmt: skip
    found = json.loads(out)
    assert code == 3 and "the client was the limit at 20 requests/s" in err
    assert found["capacity"]["low_requests_per_s"] == 0 and len(found["runs"]) == len(found["capacity"]["points"]) == 1
    assert err.count("20 req/s poisson: at most 20 requests\n  says nothing at 20 requests/s") == 3


def test_a_burst_that_is_shorter_than_an_answer_is_no_rate(mock: RunningMock) -> None:
    load = Load(rates=(1e9,), requests=20, allowed=_ANYTHING)
    prompts = Prompts(text="x")
    found = capacity_run.search(LoadTest(Target(mock.grpc or "", "ensemble"), load, prompts, parse("ttft.p95=50s")))
    assert found.low == 0 and "give more --requests" in found.problem


@pytest.mark.parametrize(("low", "allow", "code"), [(5.0, False, 3), (5.0, True, 0), (0.0, True, 3)])
def test_the_exit_code_says_whether_the_search_came_to_an_end(
    low: float, allow: bool, code: int, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [Point(low, True, True, 100, ())] if low else []
    found = result(
        [*points, Point(9.0, True, True, 100, (), problem="the client was the limit")],
        ["x"],
        "the client was the limit",
    )
    monkeypatch.setattr(capacity_run, "search", lambda test: found)
    seen, out, _ = cli("bench", "--find-capacity", "--slo", "ttft=1s", *(["--allow-invalid"] if allow else []))
    assert seen == code and found.text() in re.sub(r"\s+", " ", out)


def test_a_rate_of_conversations_says_so_and_what_it_is_in_requests() -> None:
    dataset = Dataset([tuple(Turn("x", 2) for _ in range(turns)) for turns in (1, 3)], "test")
    plan = Plan(arrivals=Arrivals(10.0, end_rate=20.0))
    assert plan.label(dataset) == "10 to 20 conversations/s (up to 20 to 40 req/s) poisson"
    load = plan.to_json(dataset)
    assert (load["rate"], load["rate_of"], load["turns_mean"]) == (10.0, "conversations", 2.0)
    single = Dataset([(Turn("x", 2),)], "test")
    assert Plan(arrivals=Arrivals(10.0)).label(single) == "10 req/s poisson"
    assert Plan(arrivals=Arrivals(10.0)).to_json(single)["rate_of"] == "requests"


def test_the_capacity_for_conversations_is_in_requests() -> None:
    """Two requests of about 20 ms at a time make at most 100 per second, and a third of that in conversations of three turns."""
    with running(MockOptions(ttft_ns=parse_ns("20ms"), max_concurrency=2)) as mock:
        load = Load(requests=300, allowed=_ANYTHING)
        prompts = Prompts(turns=3)
        test = LoadTest(Target(mock.grpc or "", "ensemble"), load, prompts, parse("ttft.p90=100ms"))
        found = capacity_run.search(test, tolerance=0.5)
    assert 30 < found.low <= found.high < 130, found.text()
    for point, (summary, _) in zip(found.points, test.runs, strict=True):
        assert point.requests_per_s <= 3 * point.rate * (1 + 1e-9)
        if point.is_met:
            assert point.requests_per_s <= (summary.rates["offered_requests_per_s"] or 0) * (1 + 1e-9)
    assert any(share.estimate is not None for point in found.points for share in point.shares)
    assert all(isinstance(share, Share) for point in found.points for share in point.shares)
