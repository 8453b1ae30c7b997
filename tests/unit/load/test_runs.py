"""Whole runs against the mock server: closed and open loops, conversations, processes, transports, and the command."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trtbuild_client.errors import ConnectError, InvalidRequest, ModelNotFound
from trtbuild_client.load.arrivals import Arrivals
from trtbuild_client.load.datasets import Dataset
from trtbuild_client.load.endpoints import Http
from trtbuild_client.load.exchange import Job
from trtbuild_client.load.metrics import View
from trtbuild_client.load.outcomes import COUNTED_BY, Mark, Outcome
from trtbuild_client.load.plan import Plan
from trtbuild_client.load.run import Run, run
from trtbuild_client.load.slo import parse
from trtbuild_client.load.summary import summarize
from trtbuild_client.load.target import Target, proxy_of
from trtbuild_client.load.validity import Allowed, check
from trtbuild_client.load.workload import Limits, Turn
from trtbuild_client.mock.distributions import parse_counts, parse_ns
from trtbuild_client.mock.options import MockOptions
from trtbuild_client.mock.server import RunningMock, running

Cli = Callable[..., tuple[int, str, str]]
_ONE = Dataset([(Turn("hello", 6),)], "test")


@pytest.fixture
def mock() -> Iterator[RunningMock]:
    with running(MockOptions(ttft_ns=parse_ns("30ms"), itl_ns=parse_ns("5ms"))) as server:
        yield server


def go(mock: RunningMock, plan: Plan, dataset: Dataset = _ONE, **target: Any) -> Run:
    endpoint, _ = Target(mock.grpc or "", "ensemble", **target).open()
    return run(endpoint, plan, dataset)


def test_a_closed_loop_keeps_its_concurrency_and_sends_what_was_asked(mock: RunningMock) -> None:
    done = go(mock, Plan(concurrency=5, limits=Limits(requests=40), warmup_requests=4))
    assert len(done.table) == 40 and done.peak_in_flight == 5 and done.connections_opened == 5
    assert set(done.table.columns["outcome"]) == {Outcome.OK}
    assert done.table.columns["output_tokens"].tolist() == [6] * 40
    assert sum(bool(each & Mark.WARMUP) for each in done.table.columns["marks"]) == 4
    assert done.table.columns["number"].tolist() == sorted(done.table.columns["number"])


@pytest.mark.parametrize("api", ["triton-grpc", "triton-http", "openai-chat", "openai-completions"])
def test_every_request_carries_an_id_of_its_own(mock: RunningMock, api: str) -> None:
    url = mock.grpc if api == "triton-grpc" else f"http://{mock.http}"
    for _ in range(2):
        run(Target(url, "ensemble", api=api).open()[0], Plan(concurrency=2, limits=Limits(requests=5)), _ONE)
    found = [each["request_id"].split("-") for each in mock.schedule()["requests"]]
    assert len({run_id for run_id, _ in found}) == 2
    assert sorted(int(number) for _, number in found) == sorted([*range(5), *range(5)])


@pytest.mark.parametrize("is_streaming", [True, False])
@pytest.mark.parametrize("api", ["triton-grpc", "triton-http"])
def test_several_tokens_in_a_response_are_counted_by_the_server(api: str, is_streaming: bool) -> None:
    with running(MockOptions(tokens_per_response=parse_counts("4"))) as mock:
        url = mock.grpc if api == "triton-grpc" else f"http://{mock.http}"
        endpoint, _ = Target(url, "ensemble", api=api, is_streaming=is_streaming).open()
        done = run(
            endpoint, Plan(limits=Limits(requests=3), is_streaming=is_streaming), Dataset([(Turn("x", 10),)], "x")
        )
    assert done.table.columns["output_tokens"].tolist() == [10] * 3
    assert {COUNTED_BY[each] for each in done.table.columns["counted_by"]} == {"server"}
    assert not any(each & Mark.SHORT for each in done.table.columns["marks"])
    assert set(done.table.columns["events"]) == ({3} if is_streaming else {1})
    assert min(done.table.columns["input_tokens"]) > 0


def test_options_over_tritons_http_are_held_to_the_models_inputs(mock: RunningMock) -> None:
    url = f"http://{mock.http}"
    endpoint, _ = Target(url, "ensemble", api="triton-http", options={"temperature": 0.5}).open()
    assert isinstance(endpoint, Http)
    body = endpoint.message(Job(0, 0, 0, ("a", "b", "c"), 7)).partition(b"\r\n\r\n")[2]
    sent = json.loads(body)
    wanted = {"text_input": "a\nb\nc", "max_tokens": 7, "min_tokens": 7, "temperature": 0.5, "stream": True}
    assert wanted.items() <= sent.items()
    assert sent["return_num_output_tokens"] is True and sent["return_perf_metrics"] is True
    with pytest.raises(InvalidRequest, match="temprature"):
        Target(url, "ensemble", api="triton-http", tensors={"temprature": 1}).open()


def test_waiting_for_a_turn_is_in_no_latency_of_a_closed_loop() -> None:
    with running(MockOptions(ttft_ns=parse_ns("200ms"), max_concurrency=4)) as mock:
        done = go(mock, Plan(concurrency=4, limits=Limits(requests=20)))
    ttft = View(done.table).values("ttft").values / 1e6
    assert len(ttft) == 20 and ttft.min() >= 199 and np.median(ttft) < 300


def test_an_open_loop_shows_the_waiting_that_the_server_causes() -> None:
    """20 requests at once for a server that takes one at a time: the last one waits for all others."""
    with running(MockOptions(ttft_ns=parse_ns("30ms"), max_concurrency=1)) as mock:
        done = go(mock, Plan(arrivals=Arrivals(1000, "constant"), limits=Limits(requests=20)))
    ttft = np.sort(View(done.table).values("ttft").values / 1e6)
    assert ttft[0] >= 29 and ttft[-1] >= 19 * 30 * 0.95 - 20 and done.peak_in_flight > 10


def test_an_open_loop_sends_on_its_schedule(mock: RunningMock) -> None:
    arrivals = Arrivals(100, seed=4)
    done = go(mock, Plan(arrivals=arrivals, limits=Limits(duration_ns=10**9)))
    planned = arrivals.times(duration_s=1.0)
    dues = sorted(each - done.started_ns for each in done.table.columns["due_ns"])
    assert dues == list(planned)
    lag = View(done.table).send_lag().values
    assert lag.min() >= 0 and np.median(lag) < 20e6  # a loaded machine; the median of an idle one is 0.1 ms


def test_what_a_run_measures_is_what_the_server_did(mock: RunningMock) -> None:
    done = go(mock, Plan(concurrency=2, limits=Limits(requests=20)))
    truth = {each["request_id"].rpartition("-")[2]: each for each in mock.schedule()["requests"]}
    errors = []
    for index in range(20):
        row = done.table.row(index)
        events = done.table.event_ns(index)
        sent = truth[str(row["number"])]["sent_ns"][: len(events)]
        errors += [arrival - left for arrival, left in zip(events, sent, strict=True)]
    assert min(errors) > -5e6 and np.median(errors) < 5e6  # the same clock; idle machines give 0.1 ms


def test_conversations_take_their_turns_and_carry_the_answers(mock: RunningMock) -> None:
    talk = (Turn("first", 3), Turn("second", 3, think_ns=20_000_000))
    endpoint, _ = Target(f"http://{mock.http}", "ensemble", api="openai-chat").open()
    done = run(endpoint, Plan(concurrency=2, limits=Limits(requests=8)), Dataset([talk] * 4, "talks"))
    rows = [done.table.row(index) for index in range(len(done.table))]
    by_session: dict[int, list[dict[str, int]]] = {}
    for row in rows:
        by_session.setdefault(row["session"], []).append(row)
    assert sorted(by_session) == [0, 1, 2, 3]
    for turns in by_session.values():
        first, second = sorted(turns, key=lambda row: row["turn"])
        assert second["due_ns"] == first["end_ns"] + 20_000_000
        assert second["input_tokens"] > first["input_tokens"]  # the first question and its answer came along


def test_a_failed_turn_ends_its_conversation(mock: RunningMock) -> None:
    talk = (Turn("[mock fault=reset at=1]", 3), Turn("never", 3))
    done = go(mock, Plan(limits=Limits(requests=3)), Dataset([talk], "talks"))
    assert done.table.columns["turn"].tolist() == [0, 0, 0]


def test_processes_share_the_work(mock: RunningMock) -> None:
    done = go(mock, Plan(concurrency=4, processes=2, limits=Limits(requests=21)))
    assert len(done.table) == 21 and len(done.strain) == 2 and len(set(done.table.columns["number"])) == 21
    done = go(mock, Plan(arrivals=Arrivals(100), processes=2, limits=Limits(requests=20)))
    assert len(done.table) == 20 and len(set(done.table.columns["due_ns"])) == 20


def test_grpcio_gives_the_same_records(mock: RunningMock) -> None:
    lean = go(mock, Plan(concurrency=2, limits=Limits(requests=10)))
    through = go(mock, Plan(concurrency=2, limits=Limits(requests=10)), transport="grpcio")
    for name in ("outcome", "output_tokens", "input_tokens", "events", "counted_by", "max_tokens"):
        assert lean.table.columns[name] == through.table.columns[name], name
    failed = go(
        mock, Plan(limits=Limits(requests=2)), Dataset([(Turn("[mock fault=error at=1]", 4),)], "x"), transport="grpcio"
    )
    assert [Outcome(each) for each in failed.table.columns["outcome"]] == [Outcome.SERVER_ERROR] * 2


def test_grpcio_ends_at_deadlines_too(mock: RunningMock) -> None:
    stall = Dataset([(Turn("[mock fault=stall at=1]", 4),)], "x")
    done = go(mock, Plan(limits=Limits(requests=1, stall_ns=300_000_000)), stall, transport="grpcio")
    assert [Outcome(each) for each in done.table.columns["outcome"]] == [Outcome.TIMEOUT_STALL]


def test_a_model_that_is_not_decoupled_is_asked_for_whole_answers() -> None:
    with running(MockOptions(is_decoupled=False)) as mock:
        from trtbuild_client.errors import StreamingUnsupported

        with pytest.raises(StreamingUnsupported):
            go(mock, Plan(limits=Limits(requests=2)))
        done = go(mock, Plan(limits=Limits(requests=2), is_streaming=False), is_streaming=False)
    assert done.table.columns["output_tokens"].tolist() == [6, 6]


def test_the_end_of_the_time_ends_the_run_and_what_runs_is_waited_for(mock: RunningMock) -> None:
    begun = time.monotonic()
    done = go(mock, Plan(concurrency=3, limits=Limits(duration_ns=500_000_000)))
    assert time.monotonic() - begun < 5 and len(done.table) > 6
    assert set(done.table.columns["outcome"]) == {Outcome.OK}


def test_what_is_not_done_after_the_drain_is_given_up(mock: RunningMock) -> None:
    slow = Dataset([(Turn("[mock itl=10s]", 6),)], "x")
    plan = Plan(concurrency=2, limits=Limits(duration_ns=200_000_000, drain_ns=300_000_000))
    done = go(mock, plan, slow)
    assert set(done.table.columns["outcome"]) == {Outcome.TIMEOUT_DRAIN}
    summary = summarize(done, plan, slow, objectives=parse("ttft=60m"))
    assert (summary.counts["failed"], summary.counts["cancelled"], summary.error_rate) == (2, 0, 1.0)
    assert summary.errors == (("timeout_drain: no end within 300 ms after the last request", 2),)
    assert summary.goodput is not None and summary.goodput["share"] == 0.0


def test_the_drain_begins_when_nothing_more_is_sent(mock: RunningMock) -> None:
    """Each answer takes longer than the drain, and another request may follow it."""
    slow = Dataset([(Turn("[mock ttft=300ms]", 2),)], "x")
    for limits, last in ((Limits(requests=3), Outcome.TIMEOUT_DRAIN), (Limits(duration_ns=500_000_000), None)):
        found = go(mock, Plan(limits=replace(limits, drain_ns=200_000_000)), slow).table.columns["outcome"].tolist()
        assert len(found) > 1 and set(found[:-1]) == {Outcome.OK} and last in (found[-1], None)


def test_what_a_rule_of_ours_ends_is_no_failure(mock: RunningMock) -> None:
    slow = Dataset([(Turn("[mock itl=10s]", 6),)], "x")
    plan = Plan(concurrency=2, limits=Limits(requests=9, drain_ns=10**9))
    done = run(Target(mock.grpc or "", "ensemble").open()[0], plan, slow, on_progress=lambda each: each.in_flight == 2)
    counts = summarize(done, plan, slow).counts
    assert (counts["total"], counts["failed"], counts["cancelled"]) == (2, 0, 2)


def test_a_pause_that_ends_after_the_time_ends_nothing_later(mock: RunningMock) -> None:
    talk = (Turn("first", 3), Turn("second", 3, think_ns=60 * 10**9))
    begun = time.monotonic()
    done = go(mock, Plan(limits=Limits(duration_ns=10**9)), Dataset([talk], "talks"))
    assert time.monotonic() - begun < 20 and done.table.columns["turn"].tolist() == [0]


#: Answers that do not come while requests are still being sent.
_LATER = Dataset([(Turn("[mock ttft=1s]", 2),)], "later")


class Slow:
    """An endpoint to which connecting takes its time."""

    def __init__(self, endpoint: Any) -> None:
        self._endpoint = endpoint

    def __getattr__(self, name: str) -> Any:
        return getattr(self._endpoint, name)

    def connect(self, *args: Any) -> Any:
        """Wait, then connect."""
        time.sleep(0.01)
        return self._endpoint.connect(*args)


@pytest.mark.parametrize("ramp_s", [0.0, 0.2])
def test_the_first_request_of_a_worker_is_due_when_the_client_gets_to_it(mock: RunningMock, ramp_s: float) -> None:
    endpoint = Slow(Target(mock.grpc or "", "ensemble").open()[0])
    done = run(endpoint, Plan(concurrency=20, ramp_s=ramp_s, limits=Limits(requests=40)), _LATER)
    rows = sorted((done.table.row(index) for index in range(40)), key=lambda row: row["number"])
    first, others = rows[:20], rows[20:]
    assert done.peak_in_flight == 20
    assert all(later["due_ns"] >= earlier["sent_ns"] for earlier, later in pairwise(first))
    for index, row in enumerate(first):
        assert row["due_ns"] >= done.started_ns + round(index * ramp_s / 20 * 1e9)
    # The others are due when the answers before have ended, whenever they are sent.
    for row, end in zip(others, sorted(row["end_ns"] for row in first), strict=True):
        assert 0 <= row["due_ns"] - end < 500_000_000


def test_what_an_open_loop_sends_late_is_late(mock: RunningMock) -> None:
    endpoint = Slow(Target(mock.grpc or "", "ensemble").open()[0])
    plan = Plan(arrivals=Arrivals(1000, "constant"), limits=Limits(duration_ns=20_000_000))
    done = run(endpoint, plan, _LATER)
    lag = np.sort(View(done.table).send_lag().values)
    # Also what could not be sent within the time is sent: it was due within it.
    assert len(lag) == len(plan.starts(_LATER) or ()) > 15 and lag[-1] > len(lag) * 8e6
    text = check(done.strain, lag, Allowed())[1].text
    assert re.search(rf"sent more than 2 ms late: \d+ of {len(lag)} requests", text)


def test_a_silent_or_closed_port_is_refused_before_the_run() -> None:
    with pytest.raises(ConnectError, match="127.0.0.1:1"):
        Target("127.0.0.1:1", "ensemble").open()


def test_an_unknown_model_is_refused_before_the_run(mock: RunningMock) -> None:
    with pytest.raises(ModelNotFound):
        Target(mock.grpc or "", "nothing").open()


@pytest.mark.parametrize(
    ("url", "api"),
    [
        ("127.0.0.1", None),
        ("ftp://x:1", None),
        ("http://h:99999", None),
        ("127.0.0.1:8001", "openai-chat"),
        ("http://h:80", "triton-grpc"),
    ],
)
def test_addresses_that_cannot_be_are_refused(url: str, api: str | None) -> None:
    with pytest.raises(InvalidRequest):
        Target(url, "m", api=api).open()


def test_a_proxy_of_the_environment_is_used_but_not_for_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("grpc_proxy", "https_proxy", "http_proxy", "no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert proxy_of("gpu.example") is None
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    assert proxy_of("gpu.example") == "http://proxy:3128" and proxy_of("127.0.0.1") is None
    monkeypatch.setenv("no_proxy", "localhost, .example")
    assert proxy_of("gpu.example") is None


def test_the_command_measures_and_writes_everything(mock: RunningMock, cli: Cli, tmp_path: Path) -> None:
    files = {name: tmp_path / f"r.{name}" for name in ("json", "html", "csv", "aiperf")}
    code, out, err = cli(
        "bench", "--url", mock.grpc, "--concurrency", "1,2", "--requests", 12, "--warmup", 2, "--output-tokens", 6, "--slo", "ttft=1s",
        "--allow-invalid", "-o", files["json"], "--html", files["html"], "--csv", files["csv"], "--aiperf", files["aiperf"],
    )  # fmt: skip
    assert code == 0, err
    assert "concurrency 1" in out and "concurrency 2" in out and "12 ok, 0 failed" in out and "goodput" in out
    assert all(path.stat().st_size > 500 for path in files.values())
    value = json.loads(files["json"].read_text())
    assert [each["label"] for each in value["runs"]] == ["concurrency 1", "concurrency 2"]
    assert value["runs"][0]["requests"]["warmup"] == 2 and value["endpoint"]["transport"] == "lean"
    assert len(value["runs"][0]["records"]["columns"]["due_ns"]) == 14


def test_the_command_says_when_requests_fail(mock: RunningMock, cli: Cli) -> None:
    code, out, err = cli(
        "bench", "--url", mock.grpc, "--requests", 6, "--prompt", "[mock fault=reset at=1]", "--allow-invalid", "--json"
    )
    assert code == 3 and "no request succeeded (6 failed" in err and "reset the stream" in err
    value = json.loads(out)
    assert value["runs"][0]["requests"]["by_outcome"] == {"stream_reset": 6} and "records" not in value["runs"][0]


def test_the_command_says_that_all_was_warm_up(mock: RunningMock, cli: Cli) -> None:
    code, _, err = cli("bench", "--url", mock.grpc, "--warmup", "1000s", "--duration", "0.3s", "--output-tokens", 2)
    assert code == 3 and re.search(
        r"concurrency 1: all \d+ requests were warm-up: nothing was measured\nhint: .*--warmup", err
    ), err


def test_the_command_ends_with_an_error_when_the_client_was_the_bottleneck(mock: RunningMock, cli: Cli) -> None:
    arguments = ("bench", "--url", mock.grpc, "--requests", 8, "--output-tokens", 6, "--max-send-lag", "0.0001ms")
    code, out, err = cli(*arguments)
    assert code == 3 and "the run is invalid" in err and "INVALID" in out
    assert cli(*arguments, "--allow-invalid")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--concurrency", 32, "--requests", 10), "concurrency 32 would never be reached with 10"),
        (("--concurrency", 2, "--rate", 5), "concurrency and rates at once"),
        (("--ramp", "1:5", "--requests", 5), "a ramp without duration"),
        (("--find-capacity",), "--find-capacity without --slo"),
        (("--no-stream", "--slo", "ttft.p95=1ms"), "without streaming"),
        (
            ("--no-stream", "--slo", "e2e=1s,tpot=1ms", "--find-capacity"),
            "objective 'tpot.p95 <= 1 ms' without streaming",
        ),
        (("--output-tokens", 1, "--slo", "itl.p95=1us"), "answers of one token"),
        (("--output-tokens", 1, "--slo", "tpot.p95=1us", "--find-capacity"), "answers of one token"),
        (("--rate", "0"), "one number above 0"),
        (("--input-tokens", "0"), "no number of tokens"),
        (("--max-seq-len", 100, "--input-tokens", 90, "--output-tokens", 20), "the model takes 100"),
        (("--param", "top_p=2"), "top_p"),
        (("--param", "runtime_top_k=5"), "runtime_top_k"),
        (("--param", "max_tokens=9", "--output-tokens", 3), "--param max_tokens=9\nhint: It is set by --output-tokens"),
        (("--param", "request_output_len=9"), "--output-tokens"),
        (("--param", "stream=false"), "--no-stream"),
        (("--param", "text_input=x"), "--prompt"),
        (("--param", "messages=[]"), "--prompt"),
        (("--param", "model=x"), "--model"),
        (("--param", "min_tokens=2"), "--free-length"),
        (("--param", "ignore_eos=false"), "--free-length"),
        (("--param", "top_k=2", "--param", "top_k=3"), "twice: 2 and 3"),
        (("--header", "nonsense"), "NAME: VALUE"),
        (("--processes", 3, "--concurrency", 2), "3 processes for a concurrency of 2"),
        (("--prompt", "x", "--dataset", __file__), "at once"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_sent(
    mock: RunningMock, cli: Cli, arguments: tuple[Any, ...], message: str
) -> None:
    code, _, err = cli("bench", "--url", mock.grpc, *arguments)
    assert code == 2 and message in err, err
    assert mock.schedule()["requests"] == []


def test_the_length_of_answers_can_be_left_to_a_parameter(mock: RunningMock, cli: Cli) -> None:
    code, _, err = cli(
        "bench", "--url", mock.grpc, "--requests", 2, "--free-length", "--param", "min_tokens=2", "--allow-invalid"
    )
    assert code == 0, err


@pytest.mark.slow
def test_the_capacity_of_the_mock_is_found(cli: Cli) -> None:
    """Four requests of about 55 ms at a time make 72 per second; the limit allows for some waiting."""
    with running(MockOptions(ttft_ns=parse_ns("30ms"), itl_ns=parse_ns("5ms"), max_concurrency=4)) as mock:
        code, out, err = cli(
            "bench",
            "--url",
            mock.grpc,
            "--find-capacity",
            "--slo",
            "ttft.p90=100ms",
            "--output-tokens",
            6,
            "--requests",
            150,
            "--json",
        )
    assert code == 0, err
    found = json.loads(out)["capacity"]
    assert found["stopped_because"] == "within 5%"
    assert 25 < found["low_requests_per_s"] < found["high_requests_per_s"] < 90
    assert all(point["shares"] for point in found["points"])


def test_the_run_says_nothing_of_numpy_or_grpc_until_it_needs_them() -> None:
    """Start-up is part of a load test's price: the loop of a process imports neither."""
    code = (
        "import sys, trtbuild_client.load.driver, trtbuild_client.load.endpoints\n"
        "sys.exit(','.join(name for name in ('numpy', 'grpc', 'tritonclient', 'pydantic', 'asyncio') if name in sys.modules) or 0)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    ("number", "is_group", "is_background", "code", "said"),
    [
        (signal.SIGINT, True, False, 130, "interrupted"),
        (signal.SIGINT, False, False, 130, "interrupted"),
        (signal.SIGINT, False, True, 130, "interrupted"),
        (signal.SIGTERM, True, False, 143, "terminated"),
        (signal.SIGTERM, False, True, 143, "terminated"),
    ],
)
def test_a_signal_ends_a_run_that_shows_and_writes_what_it_has(
    number: int,
    is_group: bool,
    is_background: bool,
    code: int,
    said: str,
    processes: int,
    mock: RunningMock,
    tmp_path: Path,
) -> None:
    """A terminal interrupts all processes of a command, `kill` one; a script's `command &` has SIGINT ignored."""
    out = tmp_path / "r.json"
    with bench_process(mock, "-o", str(out), "--processes", str(processes), is_background=is_background) as process:
        (os.killpg if is_group else os.kill)(process.pid, number)
        text, errors = process.communicate(timeout=20)  # both pipes end with the last process that holds them
    assert (process.returncode, errors.strip()) == (code, said)
    assert "INVALID: the run was interrupted" in text
    value = json.loads(out.read_text())
    assert value["runs"][0]["requests"]["ok"] >= 4 and not value["runs"][0]["valid"]
    assert value["runs"][0]["requests"]["cancelled"] <= 2


def test_processes_whose_command_was_killed_end_without_a_word(mock: RunningMock) -> None:
    with bench_process(mock, "--processes", "2") as process:
        os.kill(process.pid, signal.SIGKILL)
        assert process.communicate(timeout=20) == ("", "")


@contextmanager
def bench_process(mock: RunningMock, *more: str, is_background: bool = False) -> Iterator[subprocess.Popen[str]]:
    """Start a run of a minute in a group of its own; go on when it has sent some requests."""

    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    command = [sys.executable, "-m", "trtbuild", "bench", "--url", mock.grpc, "--prompt", "x", "--output-tokens", "6"]
    with subprocess.Popen(
        [*command, "--concurrency", "2", "--duration", "60s", *more],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=ignore if is_background else None,
    ) as process:
        for _ in range(200):
            time.sleep(0.05)
            if len(mock.schedule()["requests"]) > 6:
                break
        yield process


def test_one_timeout_is_seconds_here_and_microseconds_for_the_queue_of_the_server() -> None:
    from tests.unit.client.fake_triton import FakeTriton, tokens

    server = FakeTriton()
    try:
        server.scripts["ensemble"] = lambda request, session: tokens("a", "b")
        endpoint, described = Target(server.address, "ensemble", timeout_s=5.0).open()
        done = run(endpoint, Plan(limits=Limits(requests=1)), Dataset([(Turn("Яблоко 🙂", 2),)], "test"))
        assert described["transport"] == "lean" and done.table.columns["output_tokens"].tolist() == [2]
        assert server.received[-1].parameters["timeout"].int64_param == 5_000_000
        assert server.inputs()["text_input"][2][4:].decode() == "Яблоко 🙂"
        assert server.inputs()["min_tokens"][2] == server.inputs()["max_tokens"][2]
    finally:
        server.close()
