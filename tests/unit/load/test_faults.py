"""Whatever goes wrong is counted under its own name, and nothing hangs: against the mock server and bare sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from trtbuild_client.load.datasets import Dataset
from trtbuild_client.load.exchange import Exchange, Job
from trtbuild_client.load.outcomes import Mark, Outcome
from trtbuild_client.load.plan import Plan
from trtbuild_client.load.run import Run, run
from trtbuild_client.load.target import Target
from trtbuild_client.load.triton import TritonExchange
from trtbuild_client.load.workload import Limits, Turn
from trtbuild_client.mock.options import MockOptions
from trtbuild_client.mock.server import running

_APIS = ("triton-grpc", "triton-http", "openai-chat")
#: Long beside what a busy machine adds, short beside a test.
_SHORT_NS = 300_000_000


def load(mock_address: str, api: str, prompt: str, *, requests: int = 2, tokens: int = 6, **limits: int) -> Run:
    """Send some requests one after the other."""
    url = mock_address if api == "triton-grpc" else f"http://{mock_address}"
    endpoint, _ = Target(url, "ensemble", api=api).open()
    plan = Plan(limits=Limits(requests=requests, **limits))
    return run(endpoint, plan, Dataset([(Turn(prompt, tokens),)], "test"))


def outcomes(done: Run) -> list[Outcome]:
    return [Outcome(each) for each in done.table.columns["outcome"]]


def marks(done: Run) -> list[Mark]:
    return [Mark(each) & ~Mark.NEW_CONNECTION for each in done.table.columns["marks"]]


@pytest.fixture(scope="module")
def mock() -> Iterator[dict[str, str]]:
    """A mock without faults of its own; prompts ask for them."""
    with running(MockOptions()) as server:
        assert server.grpc and server.http
        yield {"triton-grpc": server.grpc, "triton-http": server.http, "openai-chat": server.http}


#: fault -> what it is called, by API; None where the answer is well, but for the marks.
_FAULTS: list[tuple[str, dict[str, Outcome], Mark]] = [
    ("error at=2", {"triton-grpc": Outcome.SERVER_ERROR, "triton-http": Outcome.ERROR_IN_200, "openai-chat": Outcome.ERROR_IN_200}, Mark(0)),
    ("error_without_id at=2", {"triton-grpc": Outcome.SERVER_ERROR, "triton-http": Outcome.ERROR_IN_200, "openai-chat": Outcome.ERROR_IN_200}, Mark(0)),
    ("http_200_error", {"triton-http": Outcome.ERROR_IN_200, "openai-chat": Outcome.ERROR_IN_200}, Mark(0)),
    ("reset at=2", {"triton-grpc": Outcome.STREAM_RESET}, Mark(0)),
    ("drop at=2", dict.fromkeys(_APIS, Outcome.CONNECTION_LOST), Mark(0)),
    ("duplicate_final", {"triton-grpc": Outcome.OK, "openai-chat": Outcome.OK}, Mark.DUPLICATE_FINAL),
    ("truncated_utf8", dict.fromkeys(_APIS, Outcome.OK), Mark.INVALID_UTF8),
    ("cut_utf8", {"triton-grpc": Outcome.OK}, Mark(0)),
    ("truncated at=3", dict.fromkeys(_APIS, Outcome.OK), Mark.SHORT),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "api", "outcome", "mark"),
    [(fault, api, outcome, mark) for fault, by_api, mark in _FAULTS for api, outcome in by_api.items()],
)
def test_a_fault_is_counted_under_its_name(
    mock: dict[str, str], fault: str, api: str, outcome: Outcome, mark: Mark
) -> None:
    done = load(mock[api], api, f"[mock fault={fault}]", total_ns=20 * 10**9)
    assert outcomes(done) == [outcome] * 2
    if mark:
        assert all(mark in each for each in marks(done))
    else:
        assert marks(done) == [mark] * 2


@pytest.mark.parametrize("api", ["triton-grpc"])
def test_requests_that_are_refused_are_counted(mock: dict[str, str], api: str) -> None:
    done = load(mock[api], api, "[mock fault=busy]")
    assert outcomes(done) == [Outcome.SERVER_ERROR] * 2
    assert "Exceeds maximum queue size" in (done.table.error_of(0) or "")


@pytest.mark.parametrize("api", _APIS)
def test_a_stall_ends_at_its_deadline_and_keeps_the_tokens(mock: dict[str, str], api: str) -> None:
    begun = time.monotonic()
    done = load(mock[api], api, "[mock fault=stall at=2]", requests=1, stall_ns=_SHORT_NS)
    assert outcomes(done) == [Outcome.TIMEOUT_STALL]
    assert done.table.columns["events"].tolist() == [2]
    assert done.table.error_of(0) == "timeout_stall: no other token within 300 ms"
    assert time.monotonic() - begun < 15


@pytest.mark.parametrize("api", _APIS)
@pytest.mark.parametrize(
    ("limit", "outcome"), [("first_token_ns", Outcome.TIMEOUT_FIRST_TOKEN), ("total_ns", Outcome.TIMEOUT_TOTAL)]
)
def test_silence_ends_at_the_deadline(mock: dict[str, str], api: str, limit: str, outcome: Outcome) -> None:
    done = load(mock[api], api, "[mock fault=stall at=0]", requests=1, **{limit: _SHORT_NS})
    assert outcomes(done) == [outcome]
    took_ns = done.table.columns["end_ns"][0] - done.table.columns["sent_ns"][0]
    assert _SHORT_NS <= took_ns < 20 * _SHORT_NS


def test_a_grpc_answer_without_final_flag_ends_with_its_stream(mock: dict[str, str]) -> None:
    done = load(mock["triton-grpc"], "triton-grpc", "[mock fault=no_final]", stall_ns=5 * 10**9)
    assert outcomes(done) == [Outcome.OK] * 2
    assert marks(done) == [Mark.MISSING_FINAL] * 2


def test_an_event_that_is_none_is_counted(mock: dict[str, str]) -> None:
    assert (
        outcomes(load(mock["triton-http"], "triton-http", "[mock fault=broken_event at=2]")) == [Outcome.BAD_EVENT] * 2
    )
    assert (
        outcomes(load(mock["triton-grpc"], "triton-grpc", "[mock fault=broken_event at=2]"))
        == [Outcome.PROTOCOL_ERROR] * 2
    )


def test_a_slow_accept_is_in_the_latency(mock: dict[str, str]) -> None:
    done = load(mock["triton-grpc"], "triton-grpc", "[mock fault=slow_accept]", requests=1)
    assert outcomes(done) == [Outcome.OK]
    assert done.table.columns["first_event_ns"][0] - done.table.columns["due_ns"][0] > 0.9e9


def test_faults_by_share_add_up() -> None:
    """100 requests, some of them failing: nothing is lost from the counts."""
    from trtbuild_client.load.summary import summarize
    from trtbuild_client.mock.faults import parse_share

    faults = tuple(parse_share(text) for text in ("reset@2=0.2", "error@1=0.2", "truncated_utf8=0.1"))
    with running(MockOptions(faults=faults, seed=3)) as server:
        assert server.grpc
        endpoint, _ = Target(server.grpc, "ensemble").open()
        plan = Plan(concurrency=8, limits=Limits(requests=100))
        dataset = Dataset([(Turn("x", 4),)], "test")
        done = run(endpoint, plan, dataset)
        truth = server.schedule()["requests"]
    summary = summarize(done, plan, dataset)
    counts = summary.counts
    assert counts["total"] == 100 == counts["ok"] + counts["failed"] + counts["cancelled"]
    by_fault = {kind: sum(each["fault"] == kind for each in truth) for kind in ("reset", "error", "truncated_utf8")}
    assert summary.by_outcome["stream_reset"] == by_fault["reset"] > 5
    assert summary.by_outcome["server_error"] == by_fault["error"] > 5
    assert summary.marks["invalid_utf8"] == by_fault["truncated_utf8"] > 2
    assert summary.error_rate == counts["failed"] / 100


def test_a_closed_port_is_named_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    endpoint = Target(f"http://127.0.0.1:{port}", "m", api="openai-completions").open()[0]
    done = run(endpoint, Plan(limits=Limits(requests=2)), Dataset([(Turn("x", 4),)], "test"))
    assert outcomes(done) == [Outcome.CONNECT_FAILED] * 2
    assert f"127.0.0.1:{port}" in (done.table.error_of(0) or "")


@contextmanager
def silent() -> Iterator[int]:
    """A listener that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_server_that_never_answers_ends_at_the_deadline() -> None:
    with silent() as port:
        endpoint = Target(f"http://127.0.0.1:{port}", "m", api="openai-completions").open()[0]
        limits = Limits(requests=1, total_ns=_SHORT_NS)
        done = run(endpoint, Plan(limits=limits), Dataset([(Turn("x", 4),)], "test"))
    assert outcomes(done) == [Outcome.TIMEOUT_TOTAL]


def test_a_server_that_restarts_is_met_again() -> None:
    """The connection is lost, the port is closed for a while, then requests are answered again."""
    first = running(MockOptions())
    server = first.__enter__()
    assert server.grpc
    port = int(server.grpc.rpartition(":")[2])
    endpoint, _ = Target(server.grpc, "ensemble").open()
    plan = Plan(concurrency=2, limits=Limits(duration_ns=3 * 10**9))
    dataset = Dataset([(Turn("[mock itl=20ms]", 8),)], "test")
    results: list[Run] = []
    worker = threading.Thread(target=lambda: results.append(run(endpoint, plan, dataset)))
    worker.start()
    time.sleep(0.8)
    first.__exit__(None, None, None)
    time.sleep(0.5)
    with running(MockOptions(grpc_port=port)):
        worker.join(timeout=30)
        assert not worker.is_alive()
    found = outcomes(results[0])
    gone = [each for each in found if each is not Outcome.OK]
    allowed = {
        Outcome.CONNECTION_LOST,
        Outcome.CONNECT_FAILED,
        Outcome.SERVER_GOING_AWAY,
        Outcome.GRPC_STATUS,
        Outcome.STREAM_RESET,
    }
    assert gone and set(gone) <= allowed
    assert Outcome.CONNECT_FAILED in gone and found[0] is Outcome.OK and found[-1] is Outcome.OK


@pytest.mark.parametrize("api", ["triton-grpc", "triton-http"])
def test_equal_errors_are_one_text_whatever_the_ids_of_their_requests(mock: dict[str, str], api: str) -> None:
    done = load(mock[api], api, "[mock fault=error at=2]", requests=4)
    assert len(done.table.errors) == 1 and set(done.table.columns["error"]) == {0}
    assert "the mock was told to fail" in done.table.errors[0] and "request id: " not in done.table.errors[0]


def test_only_a_requests_own_id_is_taken_out_of_its_error() -> None:
    ended: list[Exchange] = []
    job = Job(number=7, session=0, turn=0, messages=("x",), max_tokens=1)
    each = TritonExchange(job, 0, ended.append, lambda exchange, mark: None)
    each.end(
        Outcome.SERVER_ERROR, 1, "[request id: 0123abcd-7] of [x]: 0123abcd-7, 0123abcd-77, [request id: <id_unknown>]"
    )
    assert ended[0].error == "of [x]: ID, 0123abcd-77, [request id: <id_unknown>]"
