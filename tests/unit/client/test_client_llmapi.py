"""TensorRT-LLM's llmapi model, stock or ours: other names of inputs, cumulative streams, numbers that come as text."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from tests.unit.client.fake_triton import FakeTriton, Model, data, end, int32, int64

from trtbuild_client import Client, InvalidRequest

Connect = Callable[..., Client]
INPUTS: dict[str, tuple[str, list[int], bool]] = {
    "text_input": ("BYTES", [-1], False),
    "streaming": ("BOOL", [1], True),
    "sampling_param_top_k": ("INT32", [1], True),
    "sampling_param_top_p": ("FP32", [1], True),
    "sampling_param_temperature": ("FP32", [1], True),
    "sampling_param_max_tokens": ("INT32", [1], True),
    "sampling_param_frequency_penalty": ("FP32", [1], True),
    "sampling_param_presence_penalty": ("FP32", [1], True),
    "sampling_param_stop": ("BYTES", [-1], True),
    "sampling_param_seed": ("UINT64", [1], True),
    "sampling_param_exclude_input_from_output": ("BOOL", [1], True),
    "sampling_param_return_perf_metrics": ("BOOL", [1], True),
    "return_finish_reason": ("BOOL", [1], True),
}


def text(value: str) -> tuple[str, list[int], bytes]:
    """Return a BYTES [1] output."""
    return "BYTES", [1], struct.pack("<I", len(value)) + value.encode()


@pytest.fixture
def llmapi(triton: FakeTriton) -> FakeTriton:
    """Return a server with such a model."""
    triton.models["tensorrt_llm"] = Model(inputs=dict(INPUTS), max_batch_size=0)
    return triton


def test_parameters_go_under_the_names_and_in_the_shapes_of_the_model(llmapi: FakeTriton, connect: Connect) -> None:
    llmapi.answer(data("x", finish_reason=text("stop")), end(), model="tensorrt_llm")
    with connect(model="tensorrt_llm") as client:
        client.generate("one two", max_tokens=5, top_k=3, temperature=0.5, seed=7, stop_words=["a", "b"])
    sent = llmapi.inputs()
    assert {name: shape for name, (_, shape, _) in sent.items()} == {
        "text_input": [1], "streaming": [1], "sampling_param_top_k": [1], "sampling_param_temperature": [1], "sampling_param_max_tokens": [1],
        "sampling_param_stop": [2], "sampling_param_seed": [1], "sampling_param_exclude_input_from_output": [1], "return_finish_reason": [1],
    }  # fmt: skip
    assert sent["sampling_param_max_tokens"][2] == struct.pack("<i", 5)
    assert (sent["streaming"][2], sent["sampling_param_exclude_input_from_output"][2]) == (b"\x00", b"\x01")


def test_a_cumulative_stream_is_read_without_being_told(llmapi: FakeTriton, connect: Connect) -> None:
    llmapi.answer(
        data("A"), data("AB"), data("AB\ufffd"), data("ABé", finish_reason=text("length")), end(), model="tensorrt_llm"
    )
    with connect(model="tensorrt_llm") as client:
        stream = client.stream("x", max_tokens=64)
        assert [chunk.text for chunk in stream] == ["A", "B", "é"]
    assert (stream.generation.text, stream.generation.finish_reason) == ("ABé", "length")
    assert stream.generation.warnings == ()


def test_other_models_stream_deltas_as_before(triton: FakeTriton, connect: Connect) -> None:
    triton.answer(data("A"), data("A"), end())
    with connect() as client:
        assert [chunk.text for chunk in client.stream("x")] == ["A", "A"]


@pytest.mark.parametrize("is_stock", [True, False])
def test_measurements_are_numbers_whether_they_come_as_text_or_not(
    llmapi: FakeTriton, connect: Connect, is_stock: bool
) -> None:
    outputs = (
        {"kv_cache_reused_block": text("3"), "arrival_time_ns": text("10"), "first_token_time_ns": text("25"), "acceptance_rate": text("0.5")}
        if is_stock
        else {"kv_cache_reused_block": int32(3), "arrival_time_ns": int64(10), "first_token_time_ns": int64(25)}
    )  # fmt: skip
    llmapi.answer(data("x", **outputs), end(), model="tensorrt_llm")
    with connect(model="tensorrt_llm") as client:
        server = client.generate("x", return_perf_metrics=True).record.server
    assert server is not None
    assert (server.kv_cache_reused_blocks, server.ttft_ns) == (3, 15)
    assert server.acceptance_rate == (0.5 if is_stock else None)


def test_a_parameter_that_the_model_lacks_is_refused_by_name(llmapi: FakeTriton, connect: Connect) -> None:
    with connect(model="tensorrt_llm") as client, pytest.raises(InvalidRequest, match="no input 'min_tokens'"):
        client.generate("x", min_tokens=3)
