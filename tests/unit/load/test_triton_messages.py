"""Triton's messages, written and read by hand, beside the classes that protobuf generates."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from trtbuild_client.load.exchange import Exchange, Job
from trtbuild_client.load.model_messages import model_policy, tensor_specs
from trtbuild_client.load.outcomes import Mark, Outcome
from trtbuild_client.load.protowire import WireError, fields, read_varint, varint
from trtbuild_client.load.template import Template
from trtbuild_client.load.triton import TritonExchange
from trtbuild_client.load.triton_reply import Reply, split
from trtbuild_client.wire import Tensor


def pack(text: bytes) -> bytes:
    return struct.pack("<I", len(text)) + text


def response(
    text: bytes | None,
    count: int | None,
    *,
    final: bool = False,
    raw: bool = True,
    request_id: str = "r-1",
    **more: int,
) -> Any:
    """Return a ModelStreamInferResponse as a server would send it."""
    message = service_pb2.ModelStreamInferResponse()
    inner = message.infer_response
    inner.model_name, inner.model_version, inner.id = "ensemble", "1", request_id
    inner.parameters["triton_final_response"].bool_param = final
    inner.parameters["sequence_id"].int64_param = 0
    outputs: list[tuple[str, str, bytes, Any]] = []
    if text is not None:
        outputs.append(("text_output", "BYTES", pack(text), [text]))
    if count is not None:
        outputs.append(("num_output_tokens", "INT32", struct.pack("<i", count), [count]))
    outputs += [(name, "INT64", struct.pack("<q", value), [value]) for name, value in more.items()]
    for name, dtype, data, values in outputs:
        output = inner.outputs.add(name=name, datatype=dtype, shape=[1, 1])
        if raw:
            inner.raw_output_contents.append(data)
        else:
            field = {"BYTES": "bytes_contents", "INT32": "int_contents", "INT64": "int64_contents"}[dtype]
            getattr(output.contents, field).extend(values)
    return message


class Running:
    """A request without a connection."""

    def __init__(self, **options: Any) -> None:
        self.late: list[Mark] = []
        self.ended = 0
        self.exchange = TritonExchange(Job(0, 0, 0, ("x",), 8), 0, self._end, self._late, **options)

    def _end(self, exchange: Exchange) -> None:
        self.ended += 1

    def _late(self, exchange: Exchange, mark: Mark) -> None:
        self.late.append(mark)

    def take(self, message: Any, now_ns: int = 0) -> None:
        data = message if isinstance(message, bytes) else message.SerializeToString()
        around = b"\xff\xff" + data + b"\xff"
        self.exchange.message(around, 2, 2 + len(data), now_ns)


@given(value=st.integers(0, 2**64 - 1))
def test_integers_are_written_and_read(value: int) -> None:
    assert read_varint(varint(value), 0) == (value, len(varint(value)))


def test_a_request_is_what_protobuf_reads() -> None:
    tensors = (
        Tensor("text_input", "BYTES", (1, 1), pack(b"prompt")),
        Tensor("max_tokens", "INT32", (1, 1), struct.pack("<i", 1)),
        Tensor("stop_words", "BYTES", (1, 2), pack(b"a") + pack(b"b")),
        Tensor("min_length", "INT32", (1, 1), struct.pack("<i", 1)),
    )
    template = Template("ensemble", tensors, length_names=("max_tokens", "min_length"), timeout_us=5_000_000)
    message = service_pb2.ModelInferRequest.FromString(
        template.message(Job(3, 0, 1, ("Яблоко 🙂", "answer", "again"), 300), "run-3")
    )
    assert (message.model_name, message.id) == ("ensemble", "run-3")
    assert message.parameters["triton_enable_empty_final_response"].bool_param
    assert message.parameters["timeout"].int64_param == 5_000_000
    assert [(each.name, each.datatype, list(each.shape)) for each in message.inputs] == [
        (each.name, each.dtype, list(each.shape)) for each in tensors
    ]
    assert list(message.raw_input_contents) == [
        pack("Яблоко 🙂\nanswer\nagain".encode()),
        struct.pack("<i", 300),
        pack(b"a") + pack(b"b"),
        struct.pack("<i", 300),
    ]


def random_response(rng: random.Random) -> Any:
    message = service_pb2.ModelStreamInferResponse()
    if rng.random() < 0.1:
        message.error_message = "wrong: " + "ü" * rng.randrange(200)
        return message
    inner = message.infer_response
    inner.model_name = rng.choice(["ensemble", "m" * 200, ""])
    inner.id = rng.choice(["", "a", "b" * 130])
    for name in rng.sample(["triton_final_response", "sequence_id", "x"], rng.randrange(4)):
        parameter = inner.parameters[name]
        rng.choice(
            [
                lambda p=parameter: setattr(p, "bool_param", rng.random() < 0.5),
                lambda p=parameter: setattr(p, "int64_param", rng.randrange(-5, 2**40)),
                lambda p=parameter: setattr(p, "string_param", "true"),
                lambda p=parameter: setattr(p, "double_param", rng.random()),
            ]
        )()
    names = rng.sample(
        ["text_output", "num_output_tokens", "cum_log_probs", "num_input_tokens", "odd"], rng.randrange(6)
    )
    for name in names:
        output = inner.outputs.add(
            name=name, datatype="BYTES" if name == "text_output" else "INT32", shape=[1, rng.randrange(300)]
        )
        if rng.random() < 0.2:
            output.parameters["p"].int64_param = 1
    for name in names:
        if name == "text_output":
            inner.raw_output_contents.append(pack(rng.randbytes(rng.choice([0, 1, 3, 127, 128, 300, 20_000]))))
        else:
            inner.raw_output_contents.append(struct.pack("<i", rng.randrange(2**31)))
    return message


@pytest.mark.parametrize("seed", range(300))
def test_random_responses_are_read_as_protobuf_reads_them(seed: int) -> None:
    rng = random.Random(seed)
    message = random_response(rng)
    data = message.SerializeToString()
    error, inner = split(data)
    assert error == message.error_message
    expected = message.infer_response
    reply = Reply(inner)
    flag = expected.parameters.get("triton_final_response")
    assert reply.is_final == (
        flag is not None and flag.WhichOneof("parameter_choice") == "bool_param" and flag.bool_param
    )
    assert [name.decode() for name in reply.outputs] == [each.name for each in expected.outputs]
    assert reply.raw == list(expected.raw_output_contents)
    for index, output in enumerate(expected.outputs):
        raw = expected.raw_output_contents[index]
        if output.name == "text_output":
            assert reply.text(b"text_output") == raw[4:]
        else:
            assert reply.number(output.name.encode()) == struct.unpack("<i", raw)[0]
    if reply.prefix:
        assert inner.startswith(reply.prefix) and len(inner) > len(reply.prefix)


@pytest.mark.parametrize("seed", range(100))
def test_the_quick_way_gives_what_the_slow_one_gives(seed: int) -> None:
    """Answers of many responses, in which prefixes repeat and change, are the same message by message."""
    rng = random.Random(seed)
    quick, slow = Running(), Running()
    for now_ns in range(1, 30):
        text = rng.randbytes(rng.choice([0, 1, 5, 126, 127, 128, 400]))
        count = rng.choice([1, 1, 1, 2, 0]) if seed % 2 else None
        more = {"num_input_tokens": 7} if rng.random() < 0.2 else {}
        message = response(text, count, raw=rng.random() < 0.9, **more)
        quick.take(message, now_ns)
        slow.exchange._prefix = b""
        slow.take(message, now_ns)
    for each in (quick, slow):
        each.take(response(None, None, final=True), 99)
    names = ("event_ns", "event_tokens", "text", "extras", "has_counts", "has_uncounted", "outcome", "end_ns")
    for name in names:
        assert getattr(quick.exchange, name) == getattr(slow.exchange, name), name
    assert quick.ended == 1


@pytest.mark.parametrize("raw", [True, False])
def test_the_servers_own_numbers_are_taken_from_the_last_response_with_outputs(raw: bool) -> None:
    running = Running()
    running.take(response(b"a", 1, raw=raw), 10)
    running.take(
        response(
            b"b", 2, raw=raw, num_input_tokens=11, kv_cache_reused_blocks=0, total_draft_tokens=12, total_accepted_draft_tokens=9,
            arrival_time_ns=1000, first_scheduled_time_ns=1500, first_token_time_ns=3000, last_token_time_ns=9000,
        ),
        20,
    )  # fmt: skip
    running.take(response(None, None, final=True), 25)
    assert running.exchange.extras == {
        "input_tokens": 11,
        "reused_blocks": 0,  # zero is a value
        "draft_tokens": 12,
        "accepted_draft_tokens": 9,
        "server_queue_ns": 500,
        "server_ttft_ns": 2000,
        "server_decode_ns": 6000,
    }
    assert running.exchange.event_ns.tolist() == [10, 20] and running.exchange.event_tokens.tolist() == [1, 2]


def end_of_stream(kind: str) -> Running:
    """Return a request of five tokens that ended in one of the three ways servers have."""
    running = Running()
    for index in range(5):
        running.take(response(b"t", 1, final=kind == "on data" and index == 4), index)
    if kind == "empty":
        running.take(response(None, None, final=True), 9)
    running.exchange.trailers(0, "", 10)
    return running


@pytest.mark.parametrize("kind", ["on data", "empty", "none"])
def test_an_answer_ends_however_the_server_ends_it(kind: str) -> None:
    exchange = end_of_stream(kind).exchange
    assert exchange.outcome is Outcome.OK
    assert sum(exchange.event_tokens) == 5 and exchange.event_ns[-1] == 4
    assert bool(exchange.marks & Mark.MISSING_FINAL) == (kind == "none")


def test_a_second_end_and_late_tokens_are_marked() -> None:
    running = end_of_stream("empty")
    running.take(response(None, None, final=True))
    running.take(response(b"late", 1))
    assert running.late == [Mark.DUPLICATE_FINAL, Mark.LATE_DATA] and running.ended == 1


def test_a_count_after_pieces_without_one_is_that_of_the_whole_answer() -> None:
    running = Running()
    for _ in range(3):
        running.take(response(b"t", None))
    running.take(response(b"t", 10, final=True))
    assert running.exchange.event_tokens.tolist() == [1, 1, 1, 7]


def test_cumulative_text_is_cut_to_what_is_new() -> None:
    running = Running(is_cumulative=True)
    for text in (b"a", b"aa", b"aa", b"aab"):
        running.take(response(text, None))
    assert running.exchange.text == [b"a", b"a", b"b"] and len(running.exchange.event_ns) == 3


def test_a_unary_answer_ends_with_its_only_message() -> None:
    running = Running(is_stream=False)
    running.take(response(b"all", 8).infer_response)
    assert running.exchange.outcome is Outcome.OK and sum(running.exchange.event_tokens) == 8


def test_an_error_message_without_id_ends_the_request() -> None:
    running = Running()
    running.take(service_pb2.ModelStreamInferResponse(error_message="no room"))
    assert running.exchange.outcome is Outcome.SERVER_ERROR and running.exchange.error == "no room"


def test_bytes_that_are_no_message_end_the_request(random_bytes: Any) -> None:
    for data in random_bytes(300):
        running = Running()
        running.take(data)  # never raises
    running = Running()
    running.take(b"\x12\x7fcut")
    assert running.exchange.outcome is Outcome.PROTOCOL_ERROR
    with pytest.raises(WireError):
        list(fields(b"\x07"))


def test_models_are_described_as_protobuf_describes_them() -> None:
    metadata = service_pb2.ModelMetadataResponse(name="m")
    metadata.inputs.add(name="text_input", datatype="BYTES", shape=[-1, 1])
    metadata.inputs.add(name="ids", datatype="INT32", shape=[-1, -1])
    metadata.outputs.add(name="text_output", datatype="BYTES", shape=[-1, 1])
    data = metadata.SerializeToString()
    assert tensor_specs(data, 4) == [("text_input", "BYTES", (-1, 1)), ("ids", "INT32", (-1, -1))]
    assert tensor_specs(data, 5) == [("text_output", "BYTES", (-1, 1))]
    config = service_pb2.ModelConfigResponse()
    config.config.max_batch_size = 8
    config.config.model_transaction_policy.decoupled = True
    config.config.input.add(name="seed", optional=True)
    config.config.input.add(name="text_input")
    config.config.ensemble_scheduling.step.add(model_name="tensorrt_llm")
    config.config.parameters["max_seq_len"].string_value = "256"
    assert model_policy(config.SerializeToString()) == {
        "max_batch_size": 8,
        "is_decoupled": True,
        "optional": {"seed"},
        "steps": ["tensorrt_llm"],
        "parameters": {"max_seq_len": "256"},
    }
