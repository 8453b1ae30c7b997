"""Metrics as pure functions of records: formulas, and the cases without a value."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtbuild_client import stats
from trtbuild_client.records import Generation, RequestRecord, TokenEvent
from trtbuild_client.report import failure, summarize, table

SECOND_NS = 1_000_000_000


def record(*events: tuple[float, int], sent_s: float = 0.0, end_s: float | None = None, **fields: Any) -> RequestRecord:
    """Return a record with events of (seconds, tokens)."""
    last_s = events[-1][0] if events else sent_s + 1
    values: dict[str, Any] = {
        "request_id": "id",
        "model": "ensemble",
        "streamed": True,
        "max_tokens": 8,
        "counted_by": "server",
        "sent_ns": round(sent_s * SECOND_NS),
        "end_ns": round((last_s if end_s is None else end_s) * SECOND_NS),
        "events": tuple(TokenEvent(round(at_s * SECOND_NS), tokens) for at_s, tokens in events),
        **fields,
    }
    return RequestRecord(**values)


def summary(records: list[RequestRecord], *, streamed: bool = True) -> Any:
    return summarize(
        records, address="127.0.0.1:8001", model="ensemble", streamed=streamed, concurrency=1, has_unique_prompts=False
    )


def rendered(report: Any) -> str:
    from rich.console import Console

    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    with console.file:
        console.print(table(report))
    return console.export_text()


def test_latencies_are_per_token_where_several_tokens_come_in_one_response() -> None:
    chunks = record((0.10, 1), (0.20, 1), (0.30, 3))
    assert stats.ttft_ns(chunks) == 100_000_000
    assert chunks.output_tokens == 5
    assert stats.tpot_ns(chunks) == pytest.approx(50_000_000)
    assert stats.itl_ns(chunks) == pytest.approx([100_000_000, *[100_000_000 / 3] * 3])
    assert sum(stats.itl_ns(chunks)) / 4 == pytest.approx(stats.tpot_ns(chunks))


@given(st.lists(st.tuples(st.integers(1, 10**9), st.integers(1, 5)), min_size=2, max_size=8))
def test_inter_token_latencies_add_up_to_the_time_from_first_to_last_token(gaps: list[tuple[int, int]]) -> None:
    at_ns, events = 0, []
    for gap_ns, tokens in gaps:
        at_ns += gap_ns
        events.append(TokenEvent(at_ns, tokens))
    streamed = RequestRecord("id", "m", True, 9, 0, at_ns, tuple(events))
    assert sum(stats.itl_ns(streamed)) == pytest.approx(events[-1].at_ns - events[0].at_ns)
    assert len(stats.itl_ns(streamed)) == streamed.output_tokens - events[0].tokens


def test_one_token_has_a_first_token_time_and_no_time_per_output_token() -> None:
    one = record((0.5, 1))
    assert (stats.ttft_ns(one), stats.tpot_ns(one), stats.itl_ns(one)) == (SECOND_NS // 2, None, [])


def test_two_tokens_have_one_gap() -> None:
    assert stats.tpot_ns(record((0.5, 1), (0.75, 1))) == SECOND_NS / 4


def test_no_token_has_no_token_times() -> None:
    none = record()
    assert (stats.ttft_ns(none), stats.tpot_ns(none), stats.itl_ns(none)) == (None, None, [])
    assert stats.end_to_end_ns(none) == SECOND_NS


def test_an_answer_in_one_piece_has_no_token_times() -> None:
    assert stats.tpot_ns(record((0.5, 5))) is None
    whole = record((0.5, 5), streamed=False)
    assert (stats.ttft_ns(whole), stats.tpot_ns(whole), stats.itl_ns(whole)) == (None, None, [])


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=20), st.floats(0, 100))
def test_percentiles_are_those_of_numpy(values: list[float], q: float) -> None:
    assert stats.percentile(values, q) == pytest.approx(float(np.percentile(values, q, method="linear")), abs=1e-3)


def test_zero_is_a_value() -> None:
    each = stats.distribution([0, 5, 0])
    assert (each.n, each.mean, each.percentiles[0]) == (3, pytest.approx(5 / 3), 0)


def test_nothing_has_no_statistics() -> None:
    assert stats.distribution([]) == stats.Distribution(0, None, (None,) * 4)


def eight_of_ten() -> list[RequestRecord]:
    ok = [record((seconds, 1), end_s=seconds) for seconds in range(1, 9)]
    return ok + [record(end_s=0.1, outcome="failed", error="ServerBusy") for _ in range(2)]


def test_failures_show_in_the_percentiles_that_count_them_and_in_the_error_rate() -> None:
    report = summary(eight_of_ten())
    p95 = 2
    assert report.latencies_ns["end_to_end"].percentiles[p95] == pytest.approx(7.65 * SECOND_NS)
    assert math.isinf(report.latencies_ns["end_to_end_with_failures"].percentiles[p95])
    assert report.latencies_ns["end_to_end_with_failures"].percentiles[0] == pytest.approx(5.5 * SECOND_NS)
    assert report.counts.error_rate == 0.2
    values = report.to_json()
    assert values["latencies_ns"]["end_to_end_with_failures"]["p95"] == "failed"
    text = rendered(report)
    assert "failed = never" in text and "ServerBusy 2" in text
    assert failure(report, max_error_rate=0.2) is None
    problem = failure(report, max_error_rate=0.1)
    assert problem is not None and "2 of 10 requests failed" in problem[0]


@pytest.mark.parametrize("ok", [0, 3])
def test_errors_are_counted_and_not_their_kinds(ok: int) -> None:
    records = [record(outcome="failed", error="ServerError") for _ in range(97)] + [record((1, 1)) for _ in range(ok)]
    counts = stats.count(records)
    assert (counts.total, counts.failed, counts.ok, counts.errors) == (97 + ok, 97, ok, {"ServerError": 97})
    assert counts.error_rate is not None and 0 <= counts.error_rate <= 1


@given(st.lists(st.sampled_from(["ok", "failed", "cancelled"])))
def test_every_request_is_counted_once(outcomes: list[str]) -> None:
    counts = stats.count([record(outcome=outcome) for outcome in outcomes])
    assert counts.total == counts.ok + counts.failed + counts.cancelled == len(outcomes)
    assert sum(counts.errors.values()) == counts.failed


@pytest.mark.parametrize(
    ("records", "is_failure"),
    [([], True), ([record(outcome="failed", error="ServerError")], True), ([record()], False)],
)
def test_a_report_without_tokens_has_nulls_and_no_division_by_zero(
    records: list[RequestRecord], is_failure: bool
) -> None:
    report = summary(records)
    values = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert values["latencies_ns"]["ttft"] == {"n": 0, "mean": None, "p50": None, "p90": None, "p95": None, "p99": None}
    assert values["output_tokens_per_s"] == (None if is_failure else 0)
    assert (failure(report, max_error_rate=1.0) is not None) == is_failure
    assert "TTFT" in rendered(report)


def test_a_rate_over_no_time_has_no_value() -> None:
    assert stats.output_tokens_per_s([record((0, 3), end_s=0)]) is None


def test_the_rate_is_all_tokens_over_the_time_of_all_requests() -> None:
    records = [record((1, 2), end_s=2), record((2, 4), sent_s=1, end_s=3), record(outcome="failed", end_s=9)]
    assert stats.output_tokens_per_s(records) == pytest.approx(6 / 3)


def test_warm_up_requests_are_in_the_records_and_in_no_statistic() -> None:
    report = summary([record((9, 1), warmup=True), record((1, 1))])
    assert report.latencies_ns["ttft"].mean == SECOND_NS
    assert (report.counts.total, report.warmup.total) == (1, 1)
    assert [each["warmup"] for each in report.to_json()["records"]] == [True, False]


def test_cancelled_requests_are_neither_good_nor_bad() -> None:
    report = summary([record((1, 1)), record((50, 1), outcome="cancelled")])
    assert report.counts.error_rate == 0
    assert report.latencies_ns["end_to_end_with_failures"].n == report.latencies_ns["end_to_end"].n == 1


def test_without_streaming_the_table_says_so_and_names_the_option() -> None:
    text = rendered(summary([record((1, 4), streamed=False)], streamed=False))
    assert text.count("n/a") == 3 * 6 + 1
    assert "n/a (non-streaming)" in text and "--stream" in text
    assert "1000.0" in text


def test_requested_and_real_tokens_stand_side_by_side_and_a_lower_bound_is_called_one() -> None:
    text = rendered(summary([record((1, 3), max_tokens=100, counted_by="chunks")]))
    assert "3 of 100 requested tokens" in text
    assert "lower bound" in text


def test_the_peak_of_requests_in_flight_is_measured() -> None:
    records = [record(sent_s=0, end_s=2), record(sent_s=1, end_s=3), record(sent_s=2, end_s=4)]
    assert summary(records).peak_in_flight == 2


def test_an_answer_as_json_has_the_latencies_of_its_record() -> None:
    values = Generation(text="🙂", record=record((0.1, 1), (0.3, 1)), finish_reason="stop").to_json()
    assert values["text"] == "🙂"
    assert (values["ttft_ns"], values["tpot_ns"], values["end_to_end_ns"]) == (100_000_000, 200_000_000, 300_000_000)
    assert values["schema_version"] == 1
