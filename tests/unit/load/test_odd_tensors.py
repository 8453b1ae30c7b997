"""Responses of Triton that are none: whatever tensors come, one request fails by name."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.load.asked import Asked
from tritonclient.grpc import service_pb2

from trtbuild_client.counts import MOST
from trtbuild_client.load.outcomes import Outcome
from trtbuild_client.load.triton import TritonExchange


def packed(text: bytes) -> bytes:
    return struct.pack("<I", len(text)) + text


def response(*outputs: tuple[str, str, bytes], final: bool = False) -> bytes:
    """Return a ModelStreamInferResponse with (name, data type, raw tensor)."""
    message = service_pb2.ModelStreamInferResponse()
    message.infer_response.parameters["triton_final_response"].bool_param = final
    for name, dtype, raw in outputs:
        message.infer_response.outputs.add(name=name, datatype=dtype, shape=[1])
        message.infer_response.raw_output_contents.append(raw)
    return message.SerializeToString()


def answered(*messages: bytes) -> tuple[Outcome, str, dict[str, int]]:
    """Return what becomes of a stream of messages that ends well."""
    asked = Asked(TritonExchange)
    for message in messages:
        asked.exchange.message(b"\0" + message, 1, 1 + len(message), 1)
    asked.exchange.trailers(0, "", 2)
    return asked.record()


_TEXT = ("text_output", "BYTES", packed(b"a"))


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        ([("text_output", "INT32", b"\1\0\0\0")], "text_output has data type INT32, not BYTES"),
        ([("text_output", "BYTES", b"\xff\0\0\0a")], "text_output has 5 bytes, its first text would need 259"),
        ([_TEXT, ("num_output_tokens", "FP32", b"\0\0\x80\x3f")], "num_output_tokens has data type FP32, no integer"),
        ([_TEXT, ("num_output_tokens", "INT32", b"\1\0\0")], "num_output_tokens has 3 bytes, one INT32 has 4"),
        ([_TEXT, ("num_output_tokens", "INT32", b"\1\0\0\0\1\0\0\0")], "num_output_tokens has 8 bytes, one INT32 has 4"),
        ([_TEXT, ("num_output_tokens", "INT32", struct.pack("<i", -4))], "num_output_tokens is -4, no count"),
        ([_TEXT, ("num_output_tokens", "INT64", struct.pack("<q", MOST + 1))], f"num_output_tokens is {MOST + 1}, no count"),
        ([_TEXT, ("num_output_tokens", "BYTES", packed(b"9" * 5000))], "num_output_tokens has 5000 digits, at most 20 are an integer"),
        ([_TEXT, ("num_input_tokens", "UINT64", b"\xff" * 8)], f"num_input_tokens is {2**64 - 1}, no count"),
        ([_TEXT, ("arrival_time_ns", "INT64", struct.pack("<q", -(2**63))), ("first_token_time_ns", "INT64", struct.pack("<q", 1))],
         f"first_token_time_ns {2**63 + 1} ns after arrival_time_ns: no time of 64 bits"),
    ],
)  # fmt: skip
def test_a_tensor_of_another_type_or_size_fails_its_request_by_name(outputs: list[Any], text: str) -> None:
    good = response(*((name, dtype, packed(b"b") if dtype == "BYTES" else raw) for name, dtype, raw in (_TEXT,)))
    outcome, error, row = answered(good, response(*outputs, final=True))
    assert outcome is Outcome.BAD_EVENT and text in error and row["output_tokens"] >= 1
    unary = Asked(lambda *arguments: TritonExchange(*arguments, is_stream=False))
    raw = service_pb2.ModelStreamInferResponse.FromString(response(*outputs)).infer_response.SerializeToString()
    unary.exchange.message(raw, 0, len(raw), 1)
    assert unary.record()[0] is Outcome.BAD_EVENT


@pytest.mark.parametrize("raw", [struct.pack("<i", -4), b"\1\0\0", b"\1\0\0\0\0\0\0\0", b"\xff" * 300])
def test_a_count_that_is_none_is_seen_behind_a_beginning_that_repeats(raw: bytes) -> None:
    def counted(count: bytes) -> bytes:
        return response(_TEXT, ("num_output_tokens", "INT32", count))

    one = struct.pack("<i", 1)
    outcome, error, row = answered(counted(one), counted(one), counted(raw), response(final=True))
    assert outcome is Outcome.BAD_EVENT and "num_output_tokens" in error and row["output_tokens"] == 2


def test_fewer_tensors_than_outputs_are_named() -> None:
    message = service_pb2.ModelStreamInferResponse.FromString(response(_TEXT, ("num_output_tokens", "INT32", b"")))
    del message.infer_response.raw_output_contents[1]
    outcome, error, _ = answered(message.SerializeToString())
    assert (outcome, error) == (Outcome.BAD_EVENT, "num_output_tokens is output 2, but there are 1 raw tensors")


def test_a_stream_of_no_response_is_no_answer_and_an_empty_final_one_is() -> None:
    text = "an answer without text_output, num_output_tokens or final response"
    assert answered()[:2] == (Outcome.BAD_EVENT, text)
    assert answered(response(("other", "INT32", b"\0\0\0\0")))[:2] == (Outcome.BAD_EVENT, text)
    assert answered(response(final=True))[0] is Outcome.OK


_OUTPUT = st.tuples(
    st.sampled_from(["text_output", "num_output_tokens", "num_input_tokens", "arrival_time_ns", "first_token_time_ns", "odd"]),
    st.sampled_from(["BYTES", "INT8", "INT32", "INT64", "UINT64", "FP32", "BOOL", "", "ünknown"]),
    st.binary(max_size=12) | st.binary(max_size=300).map(packed) | st.sampled_from([b"\1\0\0\0", b"\1" + b"\0" * 7]),
)  # fmt: skip
_RESPONSE = st.builds(lambda outputs, final: response(*outputs, final=final), st.lists(_OUTPUT, max_size=4), st.booleans())  # fmt: skip


@given(
    messages=st.lists(st.tuples(_RESPONSE, st.integers(1, 3)), max_size=3),
    cut=st.integers(0, 400),
    flip=st.integers(0, 400),
)
def test_no_tensors_whatever_break_a_run(messages: list[tuple[bytes, int]], cut: int, flip: int) -> None:
    every = [message for message, times in messages for _ in range(times)]
    outcome, error, row = answered(*every)
    assert (outcome is Outcome.OK) == (not error) and 0 <= row["output_tokens"] <= MOST
    if every:  # the same once more, cut, and with a byte that is another
        last = every[-1]
        broken = bytearray(last)
        if broken:
            broken[flip % len(broken)] ^= 1 << flip % 8
        answered(*every, last[:cut], bytes(broken))
