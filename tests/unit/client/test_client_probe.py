"""The closed-loop probe against a server with known behaviour."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from tests.unit.client.fake_triton import FakeTriton, Session, data, end, failure, int32, tokens

from trtbuild_client import Client, InvalidRequest, NotReady, Probe, StreamingUnsupported, stats

Connect = Callable[..., Client]


def test_known_delays_are_measured(triton: FakeTriton, connect: Connect) -> None:
    """Tolerance: never early, and at most 250 ms late on a busy machine."""

    def script(request: Any, session: Session) -> Iterable[Any]:
        session.pause(0.2)
        yield data("a", num_output_tokens=int32(1))
        session.pause(0.1)
        yield data("bcd", num_output_tokens=int32(3))
        yield end()

    triton.scripts["ensemble"] = script
    report = Probe(requests=2, warmup=0).run(connect())
    for record in report.records:
        ttft_ns, tpot_ns = stats.ttft_ns(record), stats.tpot_ns(record)
        assert ttft_ns is not None and 200e6 <= ttft_ns <= 450e6
        assert tpot_ns is not None and 0 < tpot_ns <= 350e6 / 3
    assert report.output_tokens == 8


def test_waiting_for_a_worker_is_in_no_latency(triton: FakeTriton, connect: Connect) -> None:
    """Four rounds of 200 ms: a clock that ran while a request waited would show up to 800 ms."""

    def script(request: Any, session: Session) -> Iterable[Any]:
        session.pause(0.2)
        yield from tokens("a")

    triton.scripts["ensemble"] = script
    report = Probe(requests=12, concurrency=3, warmup=0).run(connect())
    assert all(200e6 <= latency <= 500e6 for latency in stats.of_each(report.records, stats.ttft_ns))
    assert report.peak_in_flight == 3


def test_the_asked_concurrency_is_reached(triton: FakeTriton, connect: Connect) -> None:
    together = threading.Barrier(4, timeout=20)

    def script(request: Any, session: Session) -> Iterable[Any]:
        together.wait()
        yield from tokens("a")

    triton.scripts["ensemble"] = script
    report = Probe(requests=8, concurrency=4, warmup=4).run(connect())
    assert (report.counts.ok, report.warmup.ok, report.peak_in_flight) == (8, 4, 4)


def test_warm_up_is_marked_and_sent_first(triton: FakeTriton, connect: Connect) -> None:
    report = Probe(requests=3, warmup=2).run(connect())
    assert [record.warmup for record in report.records] == [True, True, False, False, False]
    assert len(triton.received) == 5


def test_failures_are_counted_and_do_not_end_the_run(triton: FakeTriton, connect: Connect) -> None:
    numbers = iter(range(100))
    triton.scripts["ensemble"] = lambda request, session: (
        tokens("a") if next(numbers) % 2 else [failure("Exceeds maximum queue size")]
    )
    done: list[int] = []
    report = Probe(requests=6, warmup=0).run(connect(), done.append)
    assert (report.counts.ok, report.counts.failed, report.counts.errors) == (3, 3, {"ServerBusy": 3})
    assert done == [1] * 6
    assert "queue" in str(report.to_json()["records"][0]["error_message"])


def test_prompts_are_used_in_turn_and_unique_when_asked_for(triton: FakeTriton, connect: Connect) -> None:
    client = connect()
    Probe(requests=3, warmup=0, prompts=("one", "two")).run(client)
    sent = [triton.inputs(index)["text_input"][2][4:].decode() for index in range(3)]
    assert sent == ["one", "two", "one"]
    Probe(requests=3, warmup=2, prompts=("same",), has_unique_prompts=True).run(client)
    sent = [triton.inputs(index)["text_input"][2][4:].decode() for index in range(3, 8)]
    assert len(set(sent)) == 5
    assert all(prompt.endswith(" same") for prompt in sent)


def test_options_and_tensors_are_in_every_request(triton: FakeTriton, connect: Connect) -> None:
    Probe(requests=1, warmup=1, options={"max_tokens": 9}, tensors={"lora_task_id": 2}).run(connect())
    for index in range(2):
        assert triton.inputs(index)["max_tokens"][2] == b"\x09\0\0\0"
        assert "lora_task_id" in triton.inputs(index)


def test_answers_are_asked_to_have_one_length_where_the_server_can_do_it(triton: FakeTriton, connect: Connect) -> None:
    Probe(requests=1, warmup=0, options={"max_tokens": 9}).run(connect())
    assert triton.inputs()["min_tokens"][2] == b"\x09\0\0\0"
    Probe(requests=1, warmup=0, options={"max_tokens": 9, "min_tokens": 1}).run(connect())
    assert triton.inputs()["min_tokens"][2] == b"\x01\0\0\0"
    del triton.models["ensemble"].inputs["min_tokens"]
    Probe(requests=1, warmup=0, options={"max_tokens": 9}).run(connect())
    assert "min_tokens" not in triton.inputs()


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"requests": 10, "concurrency": 32}, "concurrency=32 would never be reached with 10 requests"),
        ({"requests": 0}, "requests=0"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"warmup": -1}, "warmup=-1"),
        ({"prompts": ()}, "no prompt"),
    ],
)
def test_counts_that_cannot_be_are_refused(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidRequest, match=match):
        Probe(**fields)


def test_a_server_that_is_not_ready_is_not_measured(triton: FakeTriton, connect: Connect) -> None:
    triton.ready = False
    with pytest.raises(NotReady):
        Probe().run(connect())
    assert triton.received == []


def test_a_model_that_cannot_stream_is_measured_only_without_streaming(triton: FakeTriton, connect: Connect) -> None:
    triton.models["ensemble"].decoupled = False
    triton.answer(data("whole", num_output_tokens=int32(4)))
    with pytest.raises(StreamingUnsupported, match="cannot stream"):
        Probe(requests=1, warmup=0).run(connect())
    report = Probe(requests=2, warmup=0, is_streaming=False).run(connect())
    assert report.latencies_ns["ttft"].n == 0
    assert report.latencies_ns["end_to_end"].n == 2
    assert report.output_tokens == 8
