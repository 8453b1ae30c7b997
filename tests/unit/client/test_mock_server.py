"""The mock server over gRPC and HTTP: what it answers, when, and that it writes down what it did."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import socket
import struct
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from trtbuild_client import Client, ClientError
from trtbuild_client.mock.distributions import constant, parse_counts, parse_ns
from trtbuild_client.mock.options import MockOptions
from trtbuild_client.mock.schedule import WORDS
from trtbuild_client.mock.server import MockServer, RunningMock, running

_MS = 1_000_000


@pytest.fixture(scope="module")
def mock() -> Iterator[RunningMock]:
    """A mock that answers at once."""
    with running() as server:
        yield server


def ask(mock: RunningMock, path: str, body: Any = None) -> tuple[int, bytes]:
    """Return status and body of an HTTP answer; a broken connection raises."""
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"http://{mock.http}{path}", data=data), timeout=20
        ) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def events(body: bytes) -> list[Any]:
    """Return the documents of an event stream."""
    texts = [line.removeprefix("data: ") for line in body.decode().split("\n\n") if line]
    return [text if text == "[DONE]" else json.loads(text) for text in texts]


def infer(request_id: str, prompt: str, max_tokens: int, *, wants_final: bool = True) -> Any:
    """Return a streaming request for the ensemble."""
    request = service_pb2.ModelInferRequest(model_name="ensemble", id=request_id)
    request.parameters["triton_enable_empty_final_response"].bool_param = wants_final
    encoded = prompt.encode()
    for name, dtype, raw in (
        ("text_input", "BYTES", struct.pack("<I", len(encoded)) + encoded),
        ("max_tokens", "INT32", struct.pack("<i", max_tokens)),
        ("stream", "BOOL", b"\1"),
    ):
        request.inputs.add(name=name, datatype=dtype, shape=[1, 1])
        request.raw_input_contents.append(raw)
    return request


def replies(mock: RunningMock, *requests: Any) -> Iterator[Any]:
    """Yield what comes back on one stream for several requests."""
    with grpc.insecure_channel(mock.grpc) as channel:
        yield from service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter(requests), timeout=20)


def expected(tokens: int) -> str:
    return "".join(WORDS[number % len(WORDS)] for number in range(tokens))


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_text_is_streamed_token_by_token_and_counted(mock: RunningMock, model: str) -> None:
    with Client(mock.grpc, model) as client:
        stream = client.stream("hello", max_tokens=30)
        assert "".join(chunk.text for chunk in stream) == expected(30)
    record = stream.generation.record
    assert (record.output_tokens, record.counted_by, len(record.events)) == (30, "server", 30)


def test_a_whole_answer_is_one_response(mock: RunningMock) -> None:
    with Client(mock.grpc) as client:
        answer = client.generate("hello there", max_tokens=7)
    assert (answer.text, answer.num_output_tokens, answer.record.input_tokens) == (expected(7), 7, 2)


def test_token_ids_come_from_the_model_behind(mock: RunningMock) -> None:
    body = {"input_ids": [5, 6, 7], "input_lengths": 3, "request_output_len": 4, "streaming": False}
    status, answer = ask(mock, "/v2/models/tensorrt_llm/generate", body)
    assert status == 200
    assert json.loads(answer)["output_ids"] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("release", "seed", "min_tokens", "has_counts"),
    [
        ("0.17", "random_seed", "min_length", False),
        ("0.20", "seed", "min_tokens", False),
        ("1.2", "seed", "min_tokens", True),
    ],
)
def test_tensors_are_called_as_in_the_release(release: str, seed: str, min_tokens: str, has_counts: bool) -> None:
    with running(MockOptions(release=release)) as mock, Client(mock.grpc) as client:
        assert {seed, min_tokens} <= set(client.info.inputs)
        assert ("num_output_tokens" in client.info.outputs) is has_counts
        assert client.generate("x", max_tokens=3, seed=1, min_tokens=3).text == expected(3)


def test_inputs_are_described_as_the_templates_describe_them(mock: RunningMock) -> None:
    """The tensors of the templates and of the mock, name for name, with data type, dims and whether they are optional."""
    from tests.unit.client.templates import template_inputs

    for name in ("ensemble", "tensorrt_llm_bls"):
        with Client(mock.grpc, name) as client:
            ours = {key: (spec.dtype, spec.dims, spec.is_optional) for key, spec in client.info.inputs.items()}
        assert ours == template_inputs(name)


def test_the_llm_api_model_repeats_its_text_and_says_numbers_as_texts() -> None:
    with running(MockOptions(variant="llmapi")) as mock:
        body = {
            "text_input": "a", "sampling_param_max_tokens": 3, "streaming": True,
            "sampling_param_return_perf_metrics": True, "return_finish_reason": True,
        }  # fmt: skip
        status, answer = ask(mock, "/v2/models/tensorrt_llm/generate_stream", body)
    assert status == 200
    found = events(answer)
    assert [each["text_output"] for each in found] == [expected(1), expected(2), expected(3)]
    assert found[-1]["arrival_time_ns"].isdecimal() and found[-1]["finish_reason"] == "length"


def test_requests_on_one_stream_are_answered_interleaved(mock: RunningMock) -> None:
    order = [
        each.infer_response.id
        for each in replies(mock, infer("a", "[mock itl=3ms]", 20), infer("b", "[mock itl=3ms]", 20))
    ]
    assert order.count("a") == order.count("b") == 21
    switches = sum(one != other for one, other in pairwise(order))
    assert switches > 4


def test_the_end_is_said_only_to_those_who_ask_for_it(mock: RunningMock) -> None:
    flags = [
        [each.infer_response.parameters["triton_final_response"].bool_param for each in replies(mock, request)]
        for request in (infer("", "x", 2), infer("", "x", 2, wants_final=False))
    ]
    assert flags == [[False, False, True], [False, False]]


def test_the_end_may_come_with_the_last_tokens() -> None:
    with running(MockOptions(has_final_on_data=True)) as mock:
        found = list(replies(mock, infer("", "x", 2)))
    assert [each.infer_response.parameters["triton_final_response"].bool_param for each in found] == [False, True]


def test_what_was_sent_and_when_is_written_down() -> None:
    """Tolerances: never early; the recorded time of writing at most 250 ms late on a busy machine."""
    options = MockOptions(
        ttft_ns=constant(50 * _MS), itl_ns=constant(10 * _MS), tokens_per_response=parse_counts("list:1,1,3")
    )
    with running(options) as mock, Client(mock.grpc) as client:
        stream = client.stream("x y z", max_tokens=5, request_id="mine")
        list(stream)
        (entry,) = mock.schedule()["requests"]
        assert json.loads(ask(mock, "/mock/schedule")[1])["requests"] == [entry]
    assert (entry["request_id"], entry["outcome"], entry["tokens"], entry["input_tokens"]) == (
        "mine",
        "ok",
        [1, 1, 3],
        3,
    )
    due_ms = [round((at - entry["started_ns"]) / _MS) for at in entry["intended_ns"]]
    assert due_ms == [50, 60, 90]
    assert all(0 <= sent - due < 250 * _MS for sent, due in zip(entry["sent_ns"], entry["intended_ns"], strict=True))
    # Both clocks are the machine's monotonic clock, so arrivals can be compared with the truth.
    arrived = [event.at_ns for event in stream.generation.record.events]
    assert all(0 <= at - sent < 250 * _MS for at, sent in zip(arrived, entry["sent_ns"], strict=True))


def test_schedules_depend_on_the_seed_and_the_number_of_the_request_only() -> None:
    def offsets(seed: int) -> list[list[int]]:
        options = MockOptions(seed=seed, ttft_ns=parse_ns("exponential:1ms"), itl_ns=parse_ns("lognormal:1ms,0.5"))
        with running(options) as mock, Client(mock.grpc) as client:
            for _ in range(2):
                client.generate("x", max_tokens=4)
                list(client.stream("x", max_tokens=4))
            return [[at - each["started_ns"] for at in each["intended_ns"]] for each in mock.schedule()["requests"]]

    first, again, other = offsets(1), offsets(1), offsets(2)
    assert first == again
    assert first != other
    assert first[1] != first[3]


def test_in_a_burst_everything_leaves_at_once() -> None:
    with running(MockOptions(itl_ns=constant(10 * _MS), is_burst=True)) as mock, Client(mock.grpc) as client:
        list(client.stream("x", max_tokens=20))
        (entry,) = mock.schedule()["requests"]
    assert len(entry["sent_ns"]) == 20 and len(set(entry["sent_ns"])) == 1


def test_only_so_many_requests_are_worked_on_and_only_so_many_wait() -> None:
    options = MockOptions(max_concurrency=1, max_queue=1)
    with running(options) as mock, Client(mock.grpc) as client:
        first = iter(client.stream("[mock fault=stall at=1]", max_tokens=4))
        next(first)
        late = infer("late", "x", 1)
        late.parameters["timeout"].int64_param = 50_000  # microseconds
        assert "Request timeout expired" in next(replies(mock, late)).error_message
        second = replies(mock, infer("waits", "x", 1), infer("too many", "x", 1))
        assert "Exceeds maximum queue size" in next(second).error_message
        first.close()  # type: ignore[attr-defined]  # a generator behind the type Iterator
        assert next(second).infer_response.id == "waits"


def test_a_prompt_that_was_seen_before_costs_no_prefill() -> None:
    options = MockOptions(prefill_ns_per_token=10 * _MS, has_prompt_cache=True)
    with running(options) as mock, Client(mock.grpc) as client:
        for prompt in ("one two three", "one two three", "one two"):
            list(client.stream(prompt, max_tokens=1))
        due = [each["intended_ns"][0] - each["started_ns"] for each in mock.schedule()["requests"]]
    assert due == [30 * _MS, 0, 20 * _MS]


def test_statistics_and_metrics_advance_for_the_ensemble_and_its_members() -> None:
    with running() as mock, Client(mock.grpc) as client:
        for _ in range(3):
            client.generate("x", max_tokens=2)
        with grpc.insecure_channel(mock.grpc) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            (stats,) = stub.ModelStatistics(service_pb2.ModelStatisticsRequest(name="ensemble")).model_stats
        text = urllib.request.urlopen(f"http://{mock.metrics}/metrics", timeout=20).read().decode()
        status, document = ask(mock, "/v2/models/tensorrt_llm/stats")
    assert (stats.inference_count, stats.inference_stats.success.count) == (3, 3)
    assert stats.inference_stats.success.ns > 0 and stats.last_inference > 0
    assert 'nv_inference_request_success{model="tensorrt_llm",version="1"} 3' in text
    assert (
        'nv_trt_llm_kv_cache_block_metrics{model="tensorrt_llm",kv_cache_block_type="fraction",version="1"} 0' in text
    )
    assert status == 200 and json.loads(document)["model_stats"][0]["inference_count"] == 3


def test_server_measurements_are_given_when_asked_for(mock: RunningMock) -> None:
    with Client(mock.grpc) as client:
        server = client.generate("[mock ttft=20ms itl=5ms]", max_tokens=3, return_perf_metrics=True).record.server
    assert server is not None
    assert (server.ttft_ns, server.decode_ns) == (pytest.approx(20 * _MS + (server.queue_ns or 0), abs=_MS), 10 * _MS)


@pytest.mark.parametrize(
    ("name", "values", "status", "text"),
    [
        ("nope", {}, 404, "unknown model"),
        ("ensemble", {"text_input": "x"}, 400, "max_tokens"),
        ("ensemble", {"text_input": "x", "max_tokens": 0}, 400, "single value > 0"),
        ("ensemble", {"text_input": "x", "max_tokens": 1.5}, 500, "Unable to parse 'data'"),
        ("ensemble", {"text_input": "x", "max_tokens": 2, "stream": True}, 200, "exactly 1 response"),
        ("preprocessing", {"QUERY": "x"}, 503, "only describes"),
    ],
)
def test_generate_refuses_as_triton_does(mock: RunningMock, name: str, values: Any, status: int, text: str) -> None:
    code, body = ask(mock, f"/v2/models/{name}/generate", values)
    assert code == status
    assert text in json.loads(body)["error"]


def test_generate_ignores_names_it_does_not_know_and_echoes_the_id(mock: RunningMock) -> None:
    status, body = ask(
        mock, "/v2/models/ensemble/generate", {"text_input": "x", "max_tokens": 1, "maxtokens": 9, "id": "7"}
    )
    assert status == 200
    assert json.loads(body)["id"] == "7"


def test_wrong_tensors_are_refused_over_grpc(mock: RunningMock) -> None:
    wrong = infer("w", "x", 1)
    wrong.inputs[1].datatype = "INT64"
    more = infer("m", "x", 1)
    more.inputs.add(name="nonsense", datatype="BOOL", shape=[1, 1])
    more.raw_input_contents.append(b"\0")
    fewer = infer("f", "x", 1)
    del fewer.inputs[1], fewer.raw_input_contents[1]
    texts = [each.error_message for each in replies(mock, wrong, more, fewer)]
    for text, part in zip(
        texts, ("data-type is 'INT64'", "unexpected inference input", "expected number of inputs"), strict=True
    ):
        assert part in text


def test_unary_inference_is_only_for_models_that_are_not_decoupled(mock: RunningMock) -> None:
    with grpc.insecure_channel(mock.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError, match="decoupled transaction policy"):
            stub.ModelInfer(infer("", "x", 1), timeout=20)
    with running(MockOptions(is_decoupled=False)) as other, Client(other.grpc) as client:
        assert client.generate("x", max_tokens=5).text == expected(5)


def test_chats_and_completions_come_as_openai_events(mock: RunningMock) -> None:
    body = {
        "model": "ensemble", "messages": [{"role": "user", "content": "[mock reasoning=1] hi"}], "max_tokens": 3,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    found = events(ask(mock, "/v1/chat/completions", body)[1])
    deltas = [each["choices"][0]["delta"] for each in found[:3]]
    assert [delta.get("reasoning_content") for delta in deltas] == [WORDS[0], None, None]
    assert [delta.get("content") for delta in deltas] == [None, WORDS[1], WORDS[2]]
    assert found[2]["choices"][0]["finish_reason"] == "length"
    assert (found[3]["choices"], found[3]["usage"]["completion_tokens"], found[4]) == ([], 3, "[DONE]")
    whole = json.loads(ask(mock, "/v1/completions", {"model": "ensemble", "prompt": "x", "max_tokens": 3})[1])
    assert (whole["object"], whole["choices"][0]["text"]) == ("text_completion", expected(3))


def test_only_the_bearer_of_the_token_is_served() -> None:
    with running(MockOptions(token="secret")) as mock:
        assert ask(mock, "/v2")[0] == 401
        with grpc.insecure_channel(mock.grpc) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            with pytest.raises(grpc.RpcError, match="bearer token"):
                stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=20)
            metadata = [("authorization", "Bearer secret")]
            assert stub.ServerReady(service_pb2.ServerReadyRequest(), metadata=metadata, timeout=20).ready


def test_large_messages_pass_in_both_directions_within_flow_control(mock: RunningMock) -> None:
    prompt = "word " * 200_000
    with Client(mock.grpc) as client:
        answer = client.generate(prompt, max_tokens=100_000, tensors={"exclude_input_in_output": False})
    assert answer.text == prompt + expected(100_000)


def test_cancelling_reaches_the_request(mock: RunningMock) -> None:
    with Client(mock.grpc) as client:
        stream = client.stream("[mock itl=50ms]", max_tokens=500, request_id="given up")
        for _ in stream:
            break
        client.generate("x", max_tokens=1)  # answered after the server has seen the cancellation
    entries = {each["request_id"]: each for each in mock.schedule()["requests"]}
    assert entries["given up"]["outcome"] == "cancelled"


def test_requests_of_one_id_can_be_stopped(mock: RunningMock) -> None:
    with grpc.insecure_channel(mock.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        running_call = stub.ModelStreamInfer(iter([infer("s", "[mock fault=stall at=1]", 9)]), timeout=20)
        next(running_call)
        request = service_pb2.ModelInferRequest(model_name="tensorrt_llm", id="s")
        for name, dtype, shape, raw in (
            ("input_ids", "INT32", [1, 1], b"\0" * 4),
            ("input_lengths", "INT32", [1, 1], b"\1\0\0\0"),
            ("request_output_len", "INT32", [1, 1], b"\1\0\0\0"),
            ("stop", "BOOL", [1, 1], b"\1"),
        ):
            request.inputs.add(name=name, datatype=dtype, shape=shape)
            request.raw_input_contents.append(raw)
        list(stub.ModelStreamInfer(iter([request]), timeout=20))
        assert [each.infer_response.parameters["triton_final_response"].bool_param for each in running_call] == [True]


def test_the_command_prints_its_addresses_and_ends_on_sigterm(tmp_path: Any) -> None:
    schedule = tmp_path / "schedule.json"
    ports = ("--grpc-port", "0", "--http-port", "0", "--metrics-port", "0")
    with subprocess.Popen(
        [sys.executable, "-m", "trtbuild", "mock", *ports, "--schedule-file", str(schedule)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None and process.stderr is not None
            addresses = json.loads(process.stdout.readline())
            with Client(addresses["grpc"]) as client:
                stalled = iter(client.stream("[mock fault=stall at=1]", max_tokens=4))
                next(stalled)
                process.send_signal(signal.SIGTERM)
                assert process.wait(20) == 0
                with pytest.raises(ClientError):
                    next(stalled)
            assert process.stderr.read() == ""
        finally:
            process.kill()
    assert [each["outcome"] for each in json.loads(schedule.read_text())["requests"]] == ["cancelled"]


@pytest.mark.parametrize("turns", range(5))
def test_connections_that_come_while_it_closes_are_closed(turns: int) -> None:
    """A socket that is left open is an error of every test (`filterwarnings`)."""

    async def begin_and_close() -> None:
        server = MockServer(MockOptions(http_port=None, metrics_port=None))
        addresses = await server.start()
        host, _, port = str(addresses.grpc).rpartition(":")
        with socket.create_connection((host, int(port))) as connection:
            for _ in range(turns):
                await asyncio.sleep(0)
            await server.close()
            for _ in range(3):  # what closes does so in the next turns
                await asyncio.sleep(0)
            connection.settimeout(5)
            with suppress(ConnectionResetError):
                while connection.recv(1 << 16):
                    pass

    asyncio.run(begin_and_close())
    gc.collect()
