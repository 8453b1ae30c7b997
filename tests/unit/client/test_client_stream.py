"""Streaming: the end of a stream, cancellation, deadlines, errors, one request per stream."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from tests.unit.client.fake_triton import FakeTriton, Model, Session, data, end, failure, int32, tokens

from trtbuild_client import (
    Cancelled,
    Client,
    ClientError,
    ConnectError,
    DeadlineExceeded,
    InvalidRequest,
    ModelNotFound,
    NotReady,
    RequestRefused,
    ServerBusy,
    ServerError,
    StreamingUnsupported,
)

Connect = Callable[..., Client]
FIVE = ("one", " two", " three", " four", " five")


def read(stream: Iterable[Any]) -> list[str]:
    return [chunk.text for chunk in stream]


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([*(data(text) for text in FIVE[:4]), data(FIVE[4], final=True)], id="flag on the last data"),
        pytest.param([*(data(text) for text in FIVE), end()], id="flag in an empty response"),
        pytest.param([data(text, final=None) for text in FIVE], id="no flag until the stream closes"),
    ],
)
def test_a_stream_ends_cleanly_with_five_tokens_however_the_end_is_marked(
    triton: FakeTriton, connect: Connect, messages: list[Any]
) -> None:
    triton.answer(*messages)
    stream = connect().stream("count")
    assert read(stream) == list(FIVE)
    record = stream.generation.record
    assert (record.outcome, record.output_tokens, len(record.events)) == ("ok", 5, 5)
    assert stream.generation.text == "".join(FIVE)
    assert not triton.cancelled.is_set()


def test_the_empty_final_response_does_not_move_the_time_of_the_last_token(
    triton: FakeTriton, connect: Connect
) -> None:
    may_end = threading.Event()

    def script(request: Any, session: Session) -> Iterable[Any]:
        yield data("only")
        assert may_end.wait(20)
        yield end()

    triton.scripts["ensemble"] = script
    stream = connect().stream("x")
    for chunk in stream:
        read_ns = time.perf_counter_ns()
        assert chunk.text == "only"
        may_end.set()
    record = stream.generation.record
    assert record.events[-1].at_ns <= read_ns < record.end_ns
    assert record.output_tokens == 1


def test_a_server_that_never_closes_its_stream_does_not_hold_the_client_after_the_final_response(
    triton: FakeTriton, connect: Connect
) -> None:
    def script(request: Any, session: Session) -> Iterable[Any]:
        yield from tokens("a")
        session.hold()

    triton.scripts["ensemble"] = script
    started_s = time.monotonic()
    stream = connect(timeout_s=20).stream("x")
    assert read(stream) == ["a"]
    assert stream.generation.record.outcome == "ok"
    assert time.monotonic() - started_s < 5


def two_tokens_then_silence(request: Any, session: Session) -> Iterable[Any]:
    yield from tokens("one", " two")[:2]
    session.hold()


def test_leaving_the_loop_cancels_the_request_at_the_server(triton: FakeTriton, connect: Connect) -> None:
    triton.scripts["ensemble"] = two_tokens_then_silence
    stream = connect().stream("x")
    for chunk in stream:
        if chunk.index == 1:
            left_s = time.monotonic()
            break
    assert triton.cancelled.wait(5)
    assert time.monotonic() - left_s < 1
    generation = stream.generation
    assert (generation.text, generation.finish_reason) == ("one two", "cancelled")
    assert (generation.record.outcome, generation.record.output_tokens) == ("cancelled", 2)


def test_the_end_of_a_with_block_cancels_a_reader_that_is_still_held(triton: FakeTriton, connect: Connect) -> None:
    triton.scripts["ensemble"] = two_tokens_then_silence
    with connect().stream("x") as stream:
        reader = iter(stream)
        next(reader)
    assert triton.cancelled.wait(5)
    assert stream.generation.finish_reason == "cancelled"
    assert list(reader) == []


def test_a_stream_cancelled_by_id_from_another_thread_ends_within_a_second(
    triton: FakeTriton, connect: Connect
) -> None:
    triton.scripts["ensemble"] = two_tokens_then_silence
    client = connect()
    stream = client.stream("x", request_id="mine")
    cancelled_s: list[float] = []

    def cancel() -> None:
        cancelled_s.append(time.monotonic())
        assert client.cancel("mine")

    for chunk in stream:
        if chunk.index == 1:
            threading.Thread(target=cancel).start()
    assert time.monotonic() - cancelled_s[0] < 1
    assert triton.cancelled.wait(5)
    assert (stream.generation.finish_reason, stream.generation.num_output_tokens) == ("cancelled", 2)
    assert client.cancel("mine") is False


def test_a_stream_cancelled_before_it_is_read_sends_nothing(triton: FakeTriton, connect: Connect) -> None:
    stream = connect().stream("x")
    stream.cancel()
    assert read(stream) == []
    assert stream.generation.record.outcome == "cancelled"
    assert triton.received == []


def test_generate_raises_cancelled_when_another_thread_cancels_it(triton: FakeTriton, connect: Connect) -> None:
    client = connect()

    def script(request: Any, session: Session) -> Iterable[Any]:
        yield data("half")
        threading.Thread(target=client.cancel_all).start()
        session.hold()

    triton.scripts["ensemble"] = script
    with pytest.raises(Cancelled, match="was cancelled"):
        client.generate("x")
    assert triton.cancelled.wait(5)


def test_cancelling_an_ensemble_asks_its_core_to_stop_because_triton_does_not(
    triton: FakeTriton, connect: Connect
) -> None:
    triton.models["ensemble"].steps = ("preprocessing", "tensorrt_llm")
    triton.models["preprocessing"] = Model(inputs={"QUERY": ("BYTES", [1], False)})
    triton.models["tensorrt_llm"] = Model(
        inputs={
            "input_ids": ("INT32", [-1], True),
            "input_lengths": ("INT32", [1], False),
            "request_output_len": ("INT32", [1], False),
            "stop": ("BOOL", [1], True),
            "temperature": ("FP32", [1], True),
        }
    )
    triton.scripts["ensemble"] = two_tokens_then_silence
    triton.answer(end(), model="tensorrt_llm")
    for _ in connect().stream("x", request_id="r1"):
        break
    stop = triton.received[-1]
    assert (stop.model_name, stop.id) == ("tensorrt_llm", "r1")
    assert triton.inputs() == {
        "input_ids": ("INT32", [1, 1], bytes(4)),
        "input_lengths": ("INT32", [1, 1], b"\1\0\0\0"),
        "request_output_len": ("INT32", [1, 1], b"\1\0\0\0"),
        "stop": ("BOOL", [1, 1], b"\1"),
    }


def test_a_complete_answer_of_an_ensemble_asks_nobody_to_stop(triton: FakeTriton, connect: Connect) -> None:
    triton.models["ensemble"].steps = ("tensorrt_llm",)
    triton.models["tensorrt_llm"] = Model(inputs={"stop": ("BOOL", [1], True)})
    client = connect()
    assert read(client.stream("x")) == [" Paris", "."]
    client.generate("x")
    assert [request.model_name for request in triton.received] == ["ensemble", "ensemble"]


def test_a_decoupled_model_is_asked_over_the_stream_rpc_even_for_one_answer(
    triton: FakeTriton, connect: Connect
) -> None:
    triton.answer(data("all at once", num_output_tokens=int32(3)), end())
    generation = connect().generate("x", max_tokens=3)
    assert (generation.text, generation.finish_reason, generation.num_output_tokens) == ("all at once", "length", 3)
    assert triton.methods == ["ModelStreamInfer"]
    assert triton.inputs()["stream"] == ("BOOL", [1, 1], b"\0")


def test_a_model_that_is_not_decoupled_answers_over_the_unary_rpc_and_refuses_to_stream(
    triton: FakeTriton, connect: Connect
) -> None:
    triton.models["ensemble"].decoupled = False
    triton.answer(data("whole"))
    client = connect()
    assert client.generate("x").text == "whole"
    assert triton.methods == ["ModelInfer"]
    with pytest.raises(StreamingUnsupported, match="not decoupled"):
        client.stream("x")
    assert triton.methods == ["ModelInfer"]


def test_a_unary_request_can_be_cancelled_and_has_a_deadline(triton: FakeTriton, connect: Connect) -> None:
    triton.models["ensemble"].decoupled = False
    arrived = threading.Event()

    def script(request: Any, session: Session) -> Iterable[Any]:
        arrived.set()
        session.hold()
        yield data("too late")

    triton.scripts["ensemble"] = script
    client = connect()
    threading.Thread(target=lambda: arrived.wait(20) and client.cancel_all()).start()
    with pytest.raises(Cancelled):
        client.generate("x")
    with pytest.raises(DeadlineExceeded):
        client.generate("x", timeout_s=0.2)


def test_a_silent_server_fails_at_the_total_deadline_and_is_told(triton: FakeTriton, connect: Connect) -> None:
    triton.scripts["ensemble"] = two_tokens_then_silence
    client = connect(timeout_s=0.5)
    assert client.info.is_decoupled
    started_s = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=rf"ensemble.*{triton.address}.*0\.5 s") as caught:
        read(client.stream("x"))
    assert 0.4 <= time.monotonic() - started_s <= 1.5
    assert (caught.value.phase, caught.value.partial_text) == ("total", "one two")
    assert triton.cancelled.wait(5)


def test_the_first_token_has_a_deadline_of_its_own(triton: FakeTriton, connect: Connect) -> None:
    def script(request: Any, session: Session) -> Iterable[Any]:
        session.hold()
        yield end()

    triton.scripts["ensemble"] = script
    stream = connect(first_token_timeout_s=0.2, between_tokens_timeout_s=9).stream("x")
    with pytest.raises(DeadlineExceeded, match="first token") as caught:
        read(stream)
    assert caught.value.phase == "first_token"
    assert (stream.generation.record.outcome, stream.generation.record.error) == ("failed", "DeadlineExceeded")
    assert triton.cancelled.wait(5)


def test_the_time_between_tokens_has_a_deadline_of_its_own(triton: FakeTriton, connect: Connect) -> None:
    triton.scripts["ensemble"] = two_tokens_then_silence
    with pytest.raises(DeadlineExceeded, match="further token") as caught:
        read(connect(first_token_timeout_s=9, between_tokens_timeout_s=0.2).stream("x"))
    assert (caught.value.phase, caught.value.partial_text) == ("between_tokens", "one two")


def test_a_slow_reader_is_not_mistaken_for_a_slow_server(triton: FakeTriton, connect: Connect) -> None:
    triton.answer(*tokens("a", "b"))
    texts = []
    for chunk in connect(between_tokens_timeout_s=0.1).stream("x"):
        threading.Event().wait(0.3)
        texts.append(chunk.text)
    assert texts == ["a", "b"]


def test_a_closed_port_fails_within_two_seconds_and_names_the_address() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started_s = time.monotonic()
    with Client(f"127.0.0.1:{port}") as client, pytest.raises(ConnectError, match=f"127.0.0.1:{port}") as caught:
        client.generate("x")
    assert time.monotonic() - started_s < 2
    assert "trtbuild serve" in caught.value.hint


def test_a_listener_that_never_speaks_fails_at_the_timeout() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        started_s = time.monotonic()
        with Client(address, timeout_s=2.0) as client, pytest.raises(ConnectError, match=address):
            client.generate("x")
        assert 1.6 <= time.monotonic() - started_s <= 2.4


def test_a_connection_that_breaks_in_the_middle_keeps_the_text_that_came(triton: FakeTriton, connect: Connect) -> None:
    triton.scripts["ensemble"] = two_tokens_then_silence
    stream = connect().stream("x")
    with pytest.raises(ClientError) as caught:
        for chunk in stream:
            if chunk.index == 1:
                triton.close()
    assert caught.value.partial_text == "one two"
    assert stream.generation.record.outcome == "failed"


def test_an_unknown_model_is_refused_with_the_models_there_are(triton: FakeTriton, connect: Connect) -> None:
    triton.models["tensorrt_llm_bls"] = Model()
    with pytest.raises(ModelNotFound, match="'ensembel'") as caught:
        connect("ensembel").generate("x")
    assert "ensemble, tensorrt_llm_bls" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[request id: 7] Exceeds maximum queue size", ServerBusy),
        ("in ensemble 'ensemble', Request timeout expired", ServerBusy),
        ("unexpected inference input 'nope' for model 'ensemble'", RequestRefused),
        ("Request for unknown model: 'ensemble' has no available versions", NotReady),
        ("Executor failed process requestId 5 due to the following error: out of blocks", ServerError),
    ],
)
def test_an_error_within_a_stream_is_typed_and_keeps_the_text_that_came(
    triton: FakeTriton, connect: Connect, text: str, error: type[ClientError]
) -> None:
    triton.answer(data("half"), failure(text))
    stream = connect().stream("x")
    with pytest.raises(error, match=r"model 'ensemble' on 127\.0\.0\.1:\d+: .*") as caught:
        read(stream)
    assert type(caught.value) is error
    assert (caught.value.partial_text, stream.generation.text) == ("half", "half")
    assert caught.value.hint
    assert (stream.generation.record.error, stream.generation.finish_reason) == (error.__name__, None)


def test_readiness_is_asked_of_server_and_model(triton: FakeTriton, connect: Connect) -> None:
    client = connect()
    client.check_ready()
    triton.models["ensemble"].ready = False
    with pytest.raises(NotReady, match="model 'ensemble'"):
        client.check_ready()
    triton.ready = False
    with pytest.raises(NotReady, match=triton.address):
        client.check_ready()


def test_readiness_of_an_unknown_model_says_that_it_is_unknown(connect: Connect) -> None:
    with pytest.raises(ModelNotFound):
        connect("nope").check_ready()


def test_every_request_has_a_unique_id_asks_for_the_empty_final_response_and_sends_its_deadline_in_microseconds(
    triton: FakeTriton, connect: Connect
) -> None:
    client = connect(timeout_s=5.0)
    for _ in range(2):
        read(client.stream("x"))
    first, second = triton.received
    assert first.id and second.id and first.id != second.id
    assert first.parameters["triton_enable_empty_final_response"].bool_param is True
    assert first.parameters["timeout"].int64_param == 5_000_000


def test_an_id_that_is_running_cannot_be_used_twice(triton: FakeTriton, connect: Connect) -> None:
    triton.scripts["ensemble"] = two_tokens_then_silence
    client = connect()
    for _ in client.stream("x", request_id="same"):
        with pytest.raises(InvalidRequest, match="already running"):
            read(client.stream("x", request_id="same"))
        break
    triton.answer(*tokens("again"))
    assert read(client.stream("x", request_id="same")) == ["again"]


def test_a_stream_is_read_once_and_its_answer_is_there_after_the_end(connect: Connect) -> None:
    stream = connect().stream("x")
    with pytest.raises(InvalidRequest, match="not there yet"):
        _ = stream.generation
    read(stream)
    with pytest.raises(InvalidRequest, match="only once"):
        read(stream)
    assert stream.generation.text == " Paris."


def test_one_client_serves_many_threads(triton: FakeTriton, connect: Connect) -> None:
    triton.scripts["ensemble"] = lambda request, session: tokens("got ", request.id)
    client = connect()
    texts: dict[int, str] = {}

    def ask(index: int) -> None:
        texts[index] = "".join(read(client.stream("x", request_id=f"id{index}")))

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == {index: f"got id{index}" for index in range(8)}


def test_a_closed_client_says_so_and_closing_cancels_what_runs(triton: FakeTriton, connect: Connect) -> None:
    triton.scripts["ensemble"] = two_tokens_then_silence
    client = connect()
    stream = client.stream("x")
    for chunk in stream:
        if chunk.index == 1:
            client.close()
    assert triton.cancelled.wait(5)
    with pytest.raises(InvalidRequest, match="closed"):
        client.generate("x")


@pytest.mark.parametrize(
    "url",
    ["ftp://127.0.0.1:8001", "http://127.0.0.1:8001/v2", "127.0.0.1", "127.0.0.1:", ":8001", "host:99999", "host:x"],
)
def test_an_address_must_be_host_and_port(url: str) -> None:
    with pytest.raises(InvalidRequest, match="HOST:PORT"):
        Client(url)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "5ms", True])
def test_a_timeout_must_be_a_number_of_seconds_above_zero(timeout: Any) -> None:
    with pytest.raises(InvalidRequest, match="timeout_s"):
        Client(timeout_s=timeout)


def test_a_request_that_begins_while_another_thread_closes_the_client_is_the_clients_error(
    triton: FakeTriton, connect: Callable[..., Client]
) -> None:
    client = connect()
    _ = client.info
    client._transport.close()  # what `close` does between the look at the flag and the request
    with pytest.raises(InvalidRequest, match="cannot be sent"):
        client.generate("x")
