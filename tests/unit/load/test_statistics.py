"""Intervals, refusals, and metrics of records whose values are known."""

from __future__ import annotations

import json
import math
import statistics
import time
from array import array
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from trtbuild_client.load.datasets import Dataset
from trtbuild_client.load.distribution import distribution, with_failures
from trtbuild_client.load.intervals import (
    binomial_cdf,
    coverage,
    needed_for_claim,
    needed_for_interval,
    ranks,
    share_bounds,
)
from trtbuild_client.load.metrics import Values, View
from trtbuild_client.load.outcomes import Mark, Outcome
from trtbuild_client.load.plan import Plan
from trtbuild_client.load.run import Run
from trtbuild_client.load.show import lines
from trtbuild_client.load.show import table as show
from trtbuild_client.load.slo import parse
from trtbuild_client.load.strain import Strain, StrainReport
from trtbuild_client.load.summary import Summary, summarize
from trtbuild_client.load.table import RecordTable, merged
from trtbuild_client.load.validity import Allowed, check
from trtbuild_client.load.workload import Limits, Turn

_S = 10**9
#: Distributions of latencies -> (draws, quantile).
_DRAWN: dict[str, Any] = {
    "log-normal": lambda rng, size: rng.lognormal(0, 1, size),
    "bimodal": lambda rng, size: np.where(rng.random(size) < 0.7, rng.normal(10, 1, size), rng.normal(100, 5, size)),
    "pareto": lambda rng, size: rng.pareto(1.2, size),
}


def record(
    table: RecordTable, *events: tuple[float, int], due: float = 0, sent: float | None = None, end: float | None = None,
    outcome: Outcome = Outcome.OK, marks: int = 0, max_tokens: int = 8, output: int | None = None, error: str | None = None, **more: int,
) -> None:  # fmt: skip
    """Add a request; times in seconds."""
    sent = due if sent is None else sent
    last = events[-1][0] if events else sent + 1
    tokens = sum(count for _, count in events) if output is None else output
    table.append(
        {
            "number": len(table), "due_ns": round(due * _S), "sent_ns": round(sent * _S), "end_ns": round((last if end is None else end) * _S),
            "outcome": outcome, "marks": marks, "max_tokens": max_tokens, "output_tokens": tokens, "counted_by": 1, **more,
        },
        array("q", [round(at * _S) for at, _ in events]),
        array("i", [count for _, count in events]),
        error,
    )  # fmt: skip


def of(values: NDArray[Any], owner: NDArray[Any]) -> Values:
    """Return values with the request of each."""
    requests, sizes = np.unique(owner, return_counts=True)
    return Values(values, requests, sizes)


_IDLE = StrainReport(cpu_ns=1, wall_ns=100, loop_lag_p99_ns=0, loop_lag_max_ns=0, peak_rss_bytes=1, run_queue_ns=0)


def summary_of(
    table: RecordTable, *, plan: Plan | None = None, objectives: str = "", strain: StrainReport = _IDLE
) -> Summary:
    run = Run(table, [strain], 0, 1, 1)
    chosen = plan or Plan(limits=Limits(requests=10))
    dataset = Dataset([(Turn("x", 8),)], "test")
    return summarize(run, chosen, dataset, objectives=parse(objectives) if objectives else ())


def test_the_sample_floors_are_the_exact_ones() -> None:
    assert [needed_for_interval(p) for p in (0.5, 0.9, 0.95, 0.99, 0.999)] == [6, 36, 72, 368, 3688]
    assert needed_for_claim(0.9, misses=1) == 64
    assert (needed_for_claim(0.99), needed_for_claim(0.99, misses=1)) == (459, 662)
    assert (needed_for_claim(0.999, confidence=0.95), needed_for_claim(0.999)) == (2995, 4603)


@pytest.mark.parametrize("p", [0.5, 0.9, 0.95, 0.99, 0.999])
def test_an_interval_exists_exactly_from_the_floor_on_and_covers_at_most_three_points_too_much(p: float) -> None:
    floor = needed_for_interval(p)
    assert ranks(floor - 1, p) is None
    for n in (floor, floor + 1, floor + 7, 2 * floor, 5 * floor, 10_000):
        if n < floor:
            continue
        pair = ranks(n, p)
        assert pair is not None and 1 <= pair[0] < pair[1] <= n
        # With fewer than 50 values the steps of the binomial distribution are larger than that.
        assert 0.95 <= coverage(n, p, *pair) <= (0.98 if n >= 50 else 0.99), (n, pair)


@pytest.mark.parametrize("name", _DRAWN)
@pytest.mark.parametrize("n", [50, 100, 368, 1000, 10_000])
def test_intervals_cover_the_true_percentile_as_often_as_they_say(name: str, n: int) -> None:
    rng = np.random.default_rng(n)
    truth = np.sort(_DRAWN[name](rng, 4_000_000))
    trials = 4000 if n <= 1000 else 600
    drawn = np.sort(_DRAWN[name](rng, (trials, n)), axis=1)
    for p in (0.5, 0.9, 0.95, 0.99):
        pair = ranks(n, p)
        if n < needed_for_interval(p):
            assert pair is None  # no number is better than a wrong one
            continue
        assert pair is not None
        true = truth[int(p * len(truth))]
        covered = float(np.mean((drawn[:, pair[0] - 1] <= true) & (true <= drawn[:, pair[1] - 1])))
        error = 3 * math.sqrt(0.05 * 0.95 / trials)  # of the simulation itself
        assert 0.94 - error <= covered <= 0.98 + error, (p, covered)


def test_many_tokens_of_few_requests_say_less_than_as_many_requests() -> None:
    rng = np.random.default_rng(1)
    covered = narrow = 0
    for _ in range(300):
        speeds = rng.lognormal(0, 0.5, 60)  # a request is fast or slow as a whole
        values = (speeds[:, None] * rng.lognormal(0, 0.05, (60, 40))).ravel()
        owner = np.repeat(np.arange(60), 40)
        honest = distribution(of(values, owner), (50.0,)).percentiles[0]
        naive = distribution(of(values, np.arange(2400)), (50.0,)).percentiles[0]
        assert honest.low is not None and honest.high is not None and naive.low is not None and naive.high is not None
        covered += honest.low <= 1.0 <= honest.high
        narrow += naive.low <= 1.0 <= naive.high
    assert covered > 270 and narrow < 150


def test_tokens_that_do_not_depend_on_their_request_count_in_full() -> None:
    rng = np.random.default_rng(2)
    found = distribution(of(rng.exponential(1, 5000), np.repeat(np.arange(100), 50)))
    assert found.n_effective > 3000


@pytest.mark.parametrize(
    ("k", "n", "p"), [(0, 10, 0.5), (3, 10, 0.3), (9, 10, 0.99), (495, 500, 0.99), (250, 500, 0.5)]
)
def test_the_binomial_distribution_is_the_sum_of_its_terms(k: int, n: int, p: float) -> None:
    exact = sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))
    assert binomial_cdf(k, n, p) == pytest.approx(exact, rel=1e-9)


def test_shares_have_bounds_even_when_nothing_was_seen() -> None:
    low, high = share_bounds(0, 100, 0.95)
    assert low == 0 and 0.03 < high < 0.04
    assert share_bounds(0, 0, 0.95) == (0.0, 1.0)


def test_tokens_of_one_chunk_share_its_time() -> None:
    table = RecordTable()
    record(table, (0.10, 1), (0.20, 1), (0.30, 3))
    view = View(table)
    assert view.values("ttft").values.tolist() == [0.10 * _S]
    assert view.values("tpot").values.tolist() == [0.05 * _S]
    assert view.values("itl").values == pytest.approx([0.1 * _S, *[0.1 * _S / 3] * 3])


def test_short_answers_have_the_metrics_that_exist() -> None:
    table = RecordTable()
    record(table)
    record(table, (0.1, 1))
    record(table, (0.1, 1), (0.3, 1))
    view = View(table)
    assert len(view.values("ttft").values) == 2
    assert view.values("tpot").values.tolist() == [0.2 * _S] == view.values("itl").values.tolist()
    assert view.values("e2e").owner.tolist() == [0, 1, 2]
    text = json.dumps(summary_of(table).to_json(), allow_nan=False)  # never NaN
    assert '"empty"' not in text  # marks are those of the records; these were made without


@pytest.mark.parametrize(("longest_s", "most"), [(0.01, 1), (0.01, 3), (0.01, 900), (30.0, 1), (30.0, 900)])
def test_metrics_are_those_of_the_events_of_each_request_in_whatever_order_they_ended(
    longest_s: float, most: int
) -> None:
    rng = np.random.default_rng(3)
    tables = [RecordTable(), RecordTable()]
    expected: dict[float, list[float]] = {}
    for number in range(40):
        gaps = rng.integers(0, round(longest_s * _S), rng.integers(0, 9)) / _S
        at = (7 + np.cumsum(gaps)).tolist()
        counts = rng.integers(1, most + 1, len(gaps)).tolist()
        due = float(rng.uniform(0, 5))
        record(tables[number % 2], *zip(at, counts, strict=True), due=due)
        at_ns = [round(each * _S) for each in at]
        expected[due] = [(b - a) / k for a, b, k in zip(at_ns, at_ns[1:], counts[1:], strict=False) for _ in range(k)]
    table = merged(tables)
    itl = View(table).values("itl")
    in_order = [expected[due] for due in sorted(expected)]
    assert itl.values.tolist() == [each for values in in_order for each in values]
    assert itl.owner.tolist() == [index for index, values in enumerate(in_order) for _ in values]
    assert itl.count(itl.values >= 0).tolist() == [len(values) for values in in_order if values]
    wide = View(table).values("tpot")
    assert wide.values.tolist() == pytest.approx([
        (events[-1] - events[0]) / (sum(tokens) - 1)
        for events, tokens in ((table.event_ns(index), table.event_tokens(index)) for index in range(40)) if len(events) > 1
    ])  # fmt: skip


def test_a_table_grows_while_its_metrics_are_kept() -> None:
    table = RecordTable()
    record(table, (0.1, 1), (0.3, 1))
    view = View(table)
    kept = view.values("itl")
    record(table, (0.1, 1), (0.4, 1))
    assert kept.values.tolist() == [0.2 * _S] and len(View(table).values("itl").values) == 2


def test_an_event_takes_five_bytes_and_more_only_when_it_must() -> None:
    table = RecordTable()
    record(table, (100.0, 255), (102.1, 1))
    assert (table.events.gaps_ns.itemsize, table.events.tokens.itemsize) == (4, 1)
    record(table, (100.0, 256), (102.2, 1))
    assert (table.events.gaps_ns.itemsize, table.events.tokens.itemsize) == (8, 4)
    assert [table.event_ns(index).tolist() for index in (0, 1)] == [
        [100 * _S, 102_100_000_000], [100 * _S, 102_200_000_000],
    ]  # fmt: skip
    assert table.event_tokens(1).tolist() == [256, 1]


def test_equal_values_are_shared_among_their_requests() -> None:
    owner = np.repeat(np.arange(50), 40)
    many = of(np.arange(6000.0), np.repeat(np.arange(1000), 6))
    assert many.count(many.values % 3 == 0).tolist() == [2] * 1000
    assert distribution(of(np.full(2000, 7), owner)).n_effective == 2000  # whichever are called the lower half
    half = distribution(of(np.tile([1, 7], 1000), owner))
    assert half.n_effective == 2000 and half.at(50.0).value == 4.0
    rng = np.random.default_rng(5)
    steps = np.floor(rng.exponential(1, 2000) * 4)
    found, smooth = distribution(of(steps, owner)), distribution(of(steps + rng.uniform(0, 1, 2000), owner))
    assert found.n_effective > 0.7 * smooth.n_effective > 500


def test_the_mean_and_deviation_of_many_values_are_right() -> None:
    values = np.random.default_rng(6).integers(10**6, 10**9, 50_001).astype(np.int32)
    found = distribution(of(values, np.repeat(np.arange(7143), 8)[:50_001]))
    assert found.mean == pytest.approx(statistics.fmean(values.tolist()), rel=1e-12)
    assert found.std == pytest.approx(statistics.stdev(values.tolist()), rel=1e-12)


def test_the_clock_starts_when_a_request_was_due() -> None:
    table = RecordTable()
    record(table, (1.5, 1), (2.0, 1), due=0, sent=1.0)
    view = View(table)
    assert view.values("ttft").values[0] == 1.5 * _S and view.values("ttft_from_sent").values[0] == 0.5 * _S
    assert view.values("e2e").values[0] == 2 * _S and view.values("e2e_from_sent").values[0] == 1 * _S
    assert view.values("send_lag").values[0] == 1 * _S


def test_failures_make_the_percentiles_they_reach_infinite() -> None:
    table = RecordTable()
    for second in range(1, 81):
        record(table, (second / 10, 1))
    for _ in range(20):
        record(table, outcome=Outcome.STREAM_RESET, error="reset")
    summary = summary_of(table)
    good, adjusted = summary.latencies["e2e"].at(95.0), summary.latencies["e2e_with_failures"].at(95.0)
    assert good.value == pytest.approx(7.605 * _S) and adjusted.value == math.inf
    assert summary.error_rate == 0.2
    assert summary.to_json()["latencies_ns"]["e2e_with_failures"]["percentiles"]["p95"]["value"] == "failed"


def test_few_values_have_no_percentile_and_say_how_many_are_needed() -> None:
    values = of(np.array([1.0, 2, 3, 4, 5, 6, 7, 8]), np.arange(8))
    found = with_failures(values, 2)
    assert len(found.values) == 10 and np.isinf(found.values[-2:]).all()
    refused = distribution(values).at(95.0)
    assert refused.value is None and refused.needs == 72
    assert distribution(values).at(50.0).value == 4.5


def test_equal_errors_are_counted_one_by_one() -> None:
    for successes in (0, 3):
        table = RecordTable()
        for _ in range(successes):
            record(table, (1, 1))
        for _ in range(97):
            record(table, outcome=Outcome.GRPC_STATUS, error="gRPC status 14", status=14)
        summary = summary_of(table)
        assert summary.counts == {"total": 97 + successes, "ok": successes, "failed": 97, "cancelled": 0, "warmup": 0}
        assert summary.by_outcome.get("grpc_status") == 97 and summary.errors == (("gRPC status 14", 97),)
        assert summary.error_rate == 97 / (97 + successes)


@pytest.mark.parametrize("kind", ["nothing", "one failed", "one empty"])
def test_results_without_tokens_have_no_rates_and_divide_by_nothing(kind: str) -> None:
    table = RecordTable()
    if kind == "one failed":
        record(table, outcome=Outcome.CONNECT_FAILED)
    if kind == "one empty":
        record(table, marks=Mark.EMPTY)
    summary = summary_of(table, objectives="ttft=1s")
    json.dumps(summary.to_json(), allow_nan=False)
    assert summary.latencies["ttft"].n == 0
    assert not summary.rates["output_tokens_per_s"]


def test_warmup_is_marked_and_left_out() -> None:
    table = RecordTable()
    record(table, (9.0, 1), marks=Mark.WARMUP)
    for _ in range(6):
        record(table, (1.0, 1))
    summary = summary_of(table)
    assert summary.counts["warmup"] == 1 and summary.counts["total"] == 6
    assert summary.latencies["ttft"].high == 1.0 * _S


def test_short_answers_are_said_and_rates_count_what_came() -> None:
    table = RecordTable()
    for _ in range(10):
        record(table, (0.5, 20), (1.0, 23), max_tokens=512, end=1.0)
    summary = summary_of(table)
    assert any("43 of 512 tokens on average (8%)" in each for each in summary.warnings)
    assert summary.rates["output_tokens_per_s"] == pytest.approx(430)


def test_a_concurrency_that_was_not_reached_is_said() -> None:
    table = RecordTable()
    record(table, (0.5, 8))
    summary = summary_of(table, plan=Plan(concurrency=32, limits=Limits(requests=64)))
    assert any("concurrency 32 was never reached: at most 1" in each for each in summary.warnings)


def test_goodput_counts_requests_that_meet_every_objective() -> None:
    table = RecordTable()
    record(table, (0.1, 1), (0.2, 1))  # good
    record(table, (0.9, 1), (1.0, 1))  # late
    record(table, (0.1, 1), (0.9, 1))  # slow
    record(table, (0.1, 1))  # unknown: it has no inter-token latency
    record(table, (0.9, 1))  # late, whatever its inter-token latency would be
    record(table, outcome=Outcome.STREAM_RESET)
    good = summary_of(table, objectives="ttft.p95=500ms,itl.p95=200ms").goodput
    assert good is not None and (good["good"], good["unknown"], good["share"]) == (1, 1, 1 / 5)


def test_goodput_is_unknown_when_no_answer_has_a_value() -> None:
    table = RecordTable()
    record(table, (0.1, 4))
    record(table, (0.1, 1))
    summary = summary_of(table, objectives="ttft.p95=500ms,itl.p95=200ms")
    good = summary.goodput
    assert good is not None and (good["good"], good["share"], good["requests_per_s"], good["unknown"]) == (
        None,
        None,
        None,
        2,
    )
    assert any("goodput unknown: no answer has a value for itl.p95 <= 200 ms" in line for line in lines(summary))


def test_failed_requests_are_not_good_whatever_is_known() -> None:
    table = RecordTable()
    record(table, outcome=Outcome.STREAM_RESET)
    good = summary_of(table, objectives="itl.p95=200ms").goodput
    assert good is not None and (good["good"], good["share"], good["unknown"]) == (0, 0.0, 0)


def test_a_busy_client_makes_a_run_invalid_and_says_why() -> None:
    def report(**more: int) -> StrainReport:
        return StrainReport(**{"cpu_ns": 1, "wall_ns": 100, "loop_lag_p99_ns": 0, "loop_lag_max_ns": 0, "peak_rss_bytes": 1, "run_queue_ns": 0, **more})  # fmt: skip

    assert all(each.is_passed for lags in ([1e6], []) for each in check([report()], np.array(lags), Allowed()))
    (_, late, _) = check([report()], np.array([3e6, 1e6]), Allowed())
    assert late.text.startswith("sent more than 2 ms late: 1 of 2 requests (99th percentile 2.98 ms)")
    for strain, lags, name in (
        ([report(), report(cpu_ns=95)], [0.0], "client_cpu_share"),
        ([report()], [3e6, 1e6], "send_lag_p99_ns"),
        ([report(loop_lag_p99_ns=9_000_000)], [0.0], "loop_lag_p99_ns"),
    ):
        failed = [each for each in check(strain, np.array(lags), Allowed()) if not each.is_passed]
        assert [each.name for each in failed] == [name] and failed[0].text


@pytest.mark.parametrize("wall_ns", [200_000_000, 2_000_000_000, 40_000_000_000])
def test_the_lag_of_the_loop_is_that_of_whatever_comes_at_any_time(
    monkeypatch: pytest.MonkeyPatch, wall_ns: int
) -> None:
    lengths = [50_000] * 980 + [5_000_000] * 20 + [100_000_000]
    now_ns = 1_000
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now_ns)
    strain = Strain()
    strain.start(500)
    for length in lengths:
        strain.unseen(length, 70_000_000 + length)
    now_ns += wall_ns
    strain.stop()
    lags = np.sort(np.concatenate([np.arange(length, 0, -1_000) for length in lengths]))
    allowed = wall_ns // 100_000  # of a microsecond each
    expected = float(lags[-allowed]) if allowed < len(lags) else 0.0
    report = strain.report()
    assert report.loop_lag_p99_ns == pytest.approx(expected, abs=2_000)
    assert (report.loop_lag_max_ns, report.loop_lag_max_at_ns) == (100_000_000, 70_000_000 - 500)


def test_one_long_stop_is_spoken_of_when_requests_ran_in_it() -> None:
    table = RecordTable()
    for number in range(40):
        record(table, due=number / 100, end=number / 100 + 0.025)
    for length_ms, at_ms, said in ((19, 100, None), (21, 100, 5), (21, 1000, None)):
        strain = StrainReport(1, 100, 0, length_ms * 10**6, 1, 0, at_ms * 10**6)
        warnings = summary_of(table, strain=strain).warnings
        found = [each for each in warnings if "looked at no socket" in each]
        if said is None:
            assert not found
        else:
            assert f"no socket for 21.0 ms, 0.10 s after the start, while {said} requests ran" in found[0]


def test_the_table_refuses_instead_of_guessing() -> None:
    from rich.console import Console

    table = RecordTable()
    for index in range(40):
        record(table, (0.1 + index / 1000, 1), (0.2, 1))
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123 - closed with the test
    console.print(show(summary_of(table)))
    console.file.close()
    text = console.export_text()
    assert "n < 368" in text and "TTFT" in text and "…" not in text
