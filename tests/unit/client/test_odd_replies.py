"""Replies that are none: whatever a server answers, `generate` and `probe` say what was wrong with it."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.client.fake_triton import FakeTriton, data, end, int32
from tritonclient.grpc import service_pb2

from trtbuild_client import Client, ClientError, ServerError, grpc_wire, http_documents
from trtbuild_client.answer import Answer
from trtbuild_client.events import documents
from trtbuild_client.http_wire import ResponseParser
from trtbuild_client.load import ask, limits
from trtbuild_client.records import RequestRecord
from trtbuild_client.text import DeltaAssembler
from trtbuild_client.wire import ModelInfo, Reply, TensorSpec

Connect = Callable[..., Client]
Cli = Callable[..., tuple[int, str, str]]
_OUTPUTS = {
    "text_output": "BYTES", "num_output_tokens": "INT32", "num_input_tokens": "INT32", "output_log_probs": "FP32", "cum_log_probs": "FP32",
    "arrival_time_ns": "INT64", "first_token_time_ns": "INT64", "acceptance_rate": "FP32", "finish_reason": "BYTES", "is_x": "BOOL",
}  # fmt: skip
_INFO = ModelInfo("m", {}, {name: TensorSpec(dtype, (1,)) for name, dtype in _OUTPUTS.items()}, 1, True)


def answered(*replies: Reply) -> Answer:
    """Return what is made of replies, every measurement asked for; finish it as a stream does."""
    answer = Answer({"return_log_probs": True, "return_perf_metrics": True, "max_tokens": 8}, DeltaAssembler())
    try:
        for reply in replies:
            answer.take(reply, 1)
    finally:
        record = RequestRecord("r", "m", True, 8, 0, 2, tuple(answer.events), counted_by=answer.counted_by)
        json.dumps(answer.generation(record, ()).to_json())
    return answer


def from_json(document: Any) -> Answer:
    return answered(http_documents.reply(document, _INFO, "a:1"))


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"text_output": "a", "num_output_tokens": "x"}, "num_output_tokens is 'x', no count"),
        ({"text_output": "a", "num_output_tokens": -4}, "num_output_tokens is -4, no count"),
        (
            {"text_output": "a", "num_output_tokens": 99999999999},
            "output 'num_output_tokens'=[99999999999] is no INT32",
        ),
        ({"text_output": "a", "num_output_tokens": 1.5}, "output 'num_output_tokens'=[1.5] is no INT32"),
        ({"text_output": "a", "num_output_tokens": True}, "output 'num_output_tokens'=[True] is no INT32"),
        ({"text_output": "a", "num_output_tokens": None}, "output 'num_output_tokens'=[None] is no INT32"),
        ({"text_output": 5}, "output 'text_output'=5 is no text"),
        ({"text_output": None}, "output 'text_output'=None is no text"),
        ({"text_output": "a", "num_input_tokens": {"a": 1}}, "output 'num_input_tokens'=[{'a': 1}] is no INT32"),
        ({"text_output": "a", "output_log_probs": ["x"]}, "output 'output_log_probs' is b'x', no number"),
        ({"text_output": "a", "cum_log_probs": "x"}, "output 'cum_log_probs' is b'x', no number"),
        ({"text_output": "a", "acceptance_rate": 10**400}, "is no FP32"),
        ({"text_output": "a", "acceptance_rate": 1e39}, "is no FP32"),
        ({}, "model 'm' on a:1 answered {}"),
        ([], "model 'm' on a:1 answered []"),
        ({"error": {"message": "boom"}}, "boom"),
    ],
)
def test_a_field_of_another_type_is_named(document: Any, text: str) -> None:
    with pytest.raises(ClientError) as caught:
        from_json(document)
    assert text in caught.value.message and caught.value.hint


def test_numbers_that_are_not_finite_are_kept() -> None:
    answer = from_json({"text_output": "a", "output_log_probs": [float("-inf"), float("nan"), 3, 3.4e38]})
    assert str(answer.generation(RequestRecord("r", "m", True, 8, 0, 2), ()).log_probs).startswith(
        "(-inf, nan, 3.0, 3.3"
    )


def test_numbers_come_as_texts_too_and_halves_of_characters_are_kept() -> None:
    answer = from_json({"text_output": "\ud83d\udcff", "num_output_tokens": "3", "arrival_time_ns": "None"})
    assert sum(each.tokens for each in answer.events) == 3 and answer.text.startswith("\ufffd")


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        ({"num_output_tokens": int32(-4)}, "num_output_tokens is -4, no count"),
        ({"num_output_tokens": ("FP32", [1, 1], struct.pack("<f", 1.5))}, "num_output_tokens is 1.5, no count"),
        ({"num_output_tokens": ("BYTES", [1, 1], b"\1\0\0\0x")}, "num_output_tokens is 'x', no count"),
        ({"num_output_tokens": ("INT32", [1, 2], b"\1\0\0\0")}, "output 'num_output_tokens' (INT32 [1, 2], 4 bytes) cannot be read"),
        ({"text_output": int32(5)}, "output 'text_output' is 5, no text"),
        ({"output_log_probs": ("BYTES", [], b"\1\0\0\0x")}, "output 'output_log_probs' is b'x', no number"),
    ],
)  # fmt: skip
def test_a_tensor_of_another_type_is_named(
    triton: FakeTriton, connect: Connect, outputs: dict[str, Any], text: str
) -> None:
    triton.answer(data(None if "text_output" in outputs else "a", **outputs), end())
    with pytest.raises(ServerError) as caught:
        connect().generate("x", return_log_probs=True)
    assert text in caught.value.message


@pytest.mark.parametrize("is_typed", [False, True])
def test_tensors_that_are_not_there_are_named(is_typed: bool) -> None:
    response = service_pb2.ModelInferResponse()
    for name in ("text_output", "num_output_tokens"):
        response.outputs.add(name=name, datatype="BYTES" if name == "text_output" else "INT8", shape=[2])
    if is_typed:
        response.outputs[0].contents.bytes_contents.extend([b"a", b"b"])
        response.outputs[1].contents.int_contents.extend([1, 400])
    else:
        response.raw_output_contents.append(b"\1\0\0\0a\1\0\0\0b")
    with pytest.raises(ServerError, match=r"=\[1, 400\] is no INT8" if is_typed else "2 outputs and 1 raw tensors"):
        grpc_wire.reply(response, is_final=True)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
_REPLY = st.fixed_dictionaries({}, optional=dict.fromkeys([*_OUTPUTS, "error", "model_name"], _JSON)) | _JSON
_TENSOR = st.fixed_dictionaries({}, optional=dict.fromkeys(("name", "datatype", "shape", "optional"), _JSON)) | _JSON
_TENSORS = st.lists(_TENSOR, max_size=2) | _JSON


def outcome(action: Callable[[], Any]) -> str:
    """Return what a question ends with; only errors of the client's own are allowed."""
    try:
        action()
    except ClientError as error:
        assert error.message and error.hint
        return type(error).__name__
    return "ok"


@given(document=_REPLY)
def test_no_json_whatever_is_unexpected(document: Any) -> None:
    outcome(lambda: from_json(document))
    outcome(
        lambda: http_documents.failure(
            http_documents.Head(500, {}), json.dumps(document).encode(), address="a:1", model="m"
        )
    )
    outcome(lambda: http_documents.known_models(200, json.dumps(document).encode()))


@given(
    metadata=st.fixed_dictionaries({}, optional={"inputs": _TENSORS, "outputs": _TENSORS}) | _JSON,
    config=st.fixed_dictionaries(
        {},
        optional={
            "input": _TENSORS,
            **dict.fromkeys(("max_batch_size", "model_transaction_policy", "ensemble_scheduling", "parameters"), _JSON),
        },
    )
    | _JSON,
)
def test_no_description_of_a_model_whatever_is_unexpected(metadata: Any, config: Any) -> None:
    assert outcome(lambda: http_documents.model_info("m", metadata, config, "a:1")) in ("ok", "ServerError")


@given(
    outputs=st.lists(
        st.tuples(st.sampled_from(list(_OUTPUTS)), st.sampled_from([*http_documents.DTYPES, "BYTES", "", "x"]), st.lists(st.integers(-2, 3), max_size=3), st.binary(max_size=12)),
        max_size=4,
    )
)  # fmt: skip
def test_no_tensors_whatever_are_unexpected(outputs: list[tuple[str, str, list[int], bytes]]) -> None:
    response = service_pb2.ModelInferResponse()
    for name, dtype, shape, raw in outputs:
        response.outputs.add(name=name, datatype=dtype, shape=shape)
        response.raw_output_contents.append(raw)
    outcome(lambda: answered(grpc_wire.reply(response, is_final=True)))


@pytest.mark.parametrize(
    ("head", "text"),
    [
        ("HTTP/1.1 \xb200 OK", "begins with"),
        ("HTTP/1.1 2000 OK", "begins with"),
        ("HTTP/1.1 200 OK\r\ncontent-length: " + "9" * 5000, "its length is"),
        ("HTTP/1.1 200 OK\r\ncontent-length: \xb2", "its length is"),
    ],
)
def test_numbers_of_a_head_that_are_none_are_refused(head: str, text: str) -> None:
    with pytest.raises(ServerError, match=text):
        ResponseParser(1000).push(f"{head}\r\n\r\n".encode("latin-1"))


def _answers(answers: list[bytes]) -> Callable[[str, bytes], bytes]:
    ready = b"\x08\x01"
    return lambda method, request: {"ModelMetadata": answers[0], "ModelConfig": answers[1]}.get(method, ready)


@given(
    answers=st.lists(
        st.binary(max_size=30) | st.binary(max_size=30).map(lambda raw: b"\x0a" + bytes([len(raw)]) + raw),
        min_size=2,
        max_size=2,
    )
)
def test_no_description_over_grpc_whatever_is_unexpected(answers: list[bytes]) -> None:
    assert outcome(lambda: ask.model_info_through(_answers(answers), "m", "a:1")) in ("ok", "ServerError")


def test_what_describes_no_model_is_named() -> None:
    with pytest.raises(ServerError, match="a:1 describes model 'm' in an unknown way"):
        ask.model_info_through(_answers([b"\x22\x03\x0a\x01\xff", b""]), "m", "a:1")
    assert limits.smallest([{"max_seq_len": "9" * 5000}, {"max_seq_len": "7"}]) == 7


def test_depth_is_no_json() -> None:
    with pytest.raises(ServerError, match="no JSON"):
        documents(b'{"text_output":' + b"[" * 100_000)
    deep = b'{"error":' + b"[" * 100_000
    assert "no JSON" not in http_documents.failure(http_documents.Head(500, {}), deep, address="a:1", model="m").message
    assert http_documents.known_models(200, b"[" * 100_000) == ""
