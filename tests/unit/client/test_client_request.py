"""What is sent: parameters and their ranges, data types of the server, shapes, neutral values. Nothing wrong is ever sent."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.unit.client.fake_triton import TEXT_INPUTS, FakeTriton, pack

from trtbuild_client import Client, InvalidRequest
from trtbuild_client.parameters import PARAMETERS, Options, validate
from trtbuild_client.tensors import DTYPES, decode, encode
from trtbuild_client.wire import TensorSpec

Connect = Callable[..., Client]
NAN = float("nan")
INFINITY = float("inf")

BAD_VALUES = [
    ("top_k", -1),
    ("top_k", 1.5),
    ("top_k", True),
    ("top_p", 2.0),
    ("top_p", 100),
    ("top_p", 0),
    ("top_p", NAN),
    ("temperature", -0.1),
    ("temperature", NAN),
    ("temperature", INFINITY),
    ("temperature", "hot"),
    ("max_tokens", 0),
    ("max_tokens", 2**31),
    ("max_tokens", 1.0),
    ("seed", -1),
    ("seed", 2**64),
    ("min_tokens", -1),
    ("beam_width", 0),
    ("num_return_sequences", 2),
    ("repetition_penalty", 0),
    ("presence_penalty", NAN),
    ("frequency_penalty", INFINITY),
    ("end_id", -2),
    ("stop_words", "one string"),
    ("stop_words", [1]),
    ("bad_words", b"bytes"),
    ("return_log_probs", 1),
]


@pytest.mark.parametrize(("name", "value"), BAD_VALUES)
def test_a_bad_value_is_refused_with_field_and_range_and_never_sent(
    triton: FakeTriton, connect: Connect, name: str, value: Any
) -> None:
    with pytest.raises(InvalidRequest, match=name) as caught:
        connect().generate("x", **{name: value})
    assert repr(value) in caught.value.message
    assert PARAMETERS[name].allowed in caught.value.hint
    assert triton.received == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("seed", 2**64 - 1), ("seed", 0), ("top_k", 0), ("top_p", 1.0), ("temperature", 0.0), ("max_tokens", np.int64(5))],
)
def test_values_at_the_edge_of_a_range_are_taken(name: str, value: Any) -> None:
    assert validate({name: value}) == {name: value}


def test_more_least_tokens_than_most_tokens_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="min_tokens=5 is more than max_tokens=4"):
        validate({"min_tokens": 5, "max_tokens": 4})


@pytest.mark.parametrize(
    ("given", "meant"), [("runtime_top_k", "top_k"), ("temprature", "temperature"), ("stop", "stop_words")]
)
def test_an_unknown_parameter_is_refused_with_the_nearest_known_one(connect: Connect, given: str, meant: str) -> None:
    with pytest.raises(InvalidRequest, match=given) as caught:
        connect().generate("x", **{given: 1})
    assert f"'{meant}'" in caught.value.hint


def test_an_unknown_tensor_is_refused_with_the_nearest_input(triton: FakeTriton, connect: Connect) -> None:
    with pytest.raises(InvalidRequest, match="lora_task") as caught:
        connect().generate("x", tensors={"lora_task": 1})
    assert "'lora_task_id'" in caught.value.hint
    assert triton.received == []


def test_every_parameter_is_an_option_of_the_client_and_the_other_way_round() -> None:
    assert set(PARAMETERS) == set(Options.__annotations__)


def test_all_given_parameters_reach_the_server_in_its_data_types(triton: FakeTriton, connect: Connect) -> None:
    client = connect()
    client.generate(
        "Яблоко 🙂",
        max_tokens=7,
        stop_words=["\n", ","],
        top_k=50,
        top_p=0.5,
        temperature=0.7,
        seed=2**63,
        min_tokens=2,
        end_id=-1,
        return_log_probs=True,
        tensors={"lora_task_id": 9},
    )
    sent = triton.inputs()
    assert sent["text_input"] == ("BYTES", [1, 1], pack("Яблоко 🙂"))
    assert sent["max_tokens"] == ("INT32", [1, 1], struct.pack("<i", 7))
    assert sent["stop_words"] == ("BYTES", [1, 2], pack("\n", ","))
    assert sent["top_k"] == ("INT32", [1, 1], struct.pack("<i", 50))
    assert sent["top_p"] == ("FP32", [1, 1], struct.pack("<f", 0.5))
    assert sent["temperature"] == ("FP32", [1, 1], struct.pack("<f", 0.7))
    assert sent["seed"] == ("UINT64", [1, 1], struct.pack("<Q", 2**63))
    assert sent["min_tokens"] == ("INT32", [1, 1], struct.pack("<i", 2))
    assert sent["end_id"] == ("INT32", [1, 1], struct.pack("<i", -1))
    assert sent["return_log_probs"] == ("BOOL", [1, 1], b"\1")
    assert sent["lora_task_id"] == ("UINT64", [1, 1], struct.pack("<Q", 9))


def test_what_was_not_given_is_not_sent_except_counts_and_the_kind_of_answer(
    triton: FakeTriton, connect: Connect
) -> None:
    client = connect()
    client.generate("x")
    counts = {"return_num_input_tokens", "return_num_output_tokens"}
    assert set(triton.inputs()) == {"text_input", "max_tokens", "stream", "exclude_input_in_output", *counts}
    for _ in client.stream("x"):
        pass
    assert set(triton.inputs()) == {"text_input", "max_tokens", "stream", *counts}


def test_the_caller_may_ask_for_the_prompt_to_be_repeated(triton: FakeTriton, connect: Connect) -> None:
    connect().generate("x", exclude_input_in_output=False)
    assert triton.inputs()["exclude_input_in_output"] == ("BOOL", [1, 1], b"\0")


@pytest.mark.parametrize(
    ("words", "sent"),
    [
        (["\n"], ("\n",)),
        ([","], (",",)),
        (['"'], ('"',)),
        (["User:", "Assistant:"], ("User:", "Assistant:")),
        ([" "], (" ",)),
        (["", "a", "", "a", "b"], ("a", "b")),
        (("tuple",), ("tuple",)),
    ],
)
def test_stop_words_are_a_list_of_words_and_nothing_is_parsed(
    triton: FakeTriton, connect: Connect, words: list[str], sent: tuple[str, ...]
) -> None:
    connect().generate("x", stop_words=words)
    assert triton.inputs()["stop_words"] == ("BYTES", [1, len(sent)], pack(*sent))


@pytest.mark.parametrize("words", [[], [""], None])
def test_no_word_at_all_sends_no_tensor(triton: FakeTriton, connect: Connect, words: list[str] | None) -> None:
    connect().generate("x", stop_words=words)
    assert "stop_words" not in triton.inputs()


def test_stop_words_work_on_a_server_that_has_none(triton: FakeTriton, connect: Connect) -> None:
    del triton.models["ensemble"].inputs["stop_words"]
    assert connect().generate("x", stop_words=["."]).text == " Paris"


def test_names_follow_the_server(triton: FakeTriton, connect: Connect) -> None:
    inputs = triton.models["ensemble"].inputs
    inputs["random_seed"], inputs["min_length"] = inputs.pop("seed"), inputs.pop("min_tokens")
    connect().generate("x", seed=3, min_tokens=4)
    assert triton.inputs()["random_seed"] == ("UINT64", [1, 1], struct.pack("<Q", 3))
    assert triton.inputs()["min_length"] == ("INT32", [1, 1], struct.pack("<i", 4))


def test_data_types_follow_the_server_and_minus_one_is_refused_for_an_unsigned_one(
    triton: FakeTriton, connect: Connect
) -> None:
    for name in ("max_tokens", "end_id"):
        triton.models["ensemble"].inputs[name] = ("UINT32", [1], name == "end_id")
    client = connect()
    client.generate("x", max_tokens=5, end_id=2)
    assert triton.inputs()["max_tokens"] == ("UINT32", [1, 1], struct.pack("<I", 5))
    assert triton.inputs()["end_id"] == ("UINT32", [1, 1], struct.pack("<I", 2))
    with pytest.raises(InvalidRequest, match="'end_id'=-1 does not fit UINT32"):
        client.generate("x", end_id=-1)
    assert len(triton.received) == 1


def test_a_parameter_under_the_servers_own_name_is_held_to_the_same_range(triton: FakeTriton, connect: Connect) -> None:
    inputs = triton.models["ensemble"].inputs
    inputs["random_seed"] = inputs.pop("seed")
    with pytest.raises(InvalidRequest, match="seed=-1"):
        connect().generate("x", tensors={"random_seed": -1})


def test_a_known_parameter_that_the_model_lacks_is_refused(triton: FakeTriton, connect: Connect) -> None:
    del triton.models["ensemble"].inputs["bad_words"]
    with pytest.raises(InvalidRequest, match="no input 'bad_words'"):
        connect().generate("x", bad_words=["no"])
    assert triton.received == []


def test_inputs_that_a_server_insists_on_get_neutral_values(triton: FakeTriton, connect: Connect) -> None:
    inputs = triton.models["ensemble"].inputs
    triton.models["ensemble"].inputs = {
        name: (dtype, dims, name in ("end_id", "pad_id", "lora_task_id")) for name, (dtype, dims, _) in inputs.items()
    }
    connect().generate("x")
    sent = triton.inputs()
    assert sent["stop_words"] == sent["bad_words"] == ("BYTES", [1, 1], pack(""))
    assert sent["temperature"] == sent["top_p"] == sent["repetition_penalty"] == ("FP32", [1, 1], struct.pack("<f", 1))
    assert sent["presence_penalty"] == sent["frequency_penalty"] == ("FP32", [1, 1], bytes(4))
    assert sent["top_k"] == sent["beam_width"] == ("INT32", [1, 1], struct.pack("<i", 1))
    assert sent["seed"] == ("UINT64", [1, 1], bytes(8))
    assert sent["return_log_probs"] == ("BOOL", [1, 1], b"\0")


def test_an_input_without_a_neutral_value_must_be_given(triton: FakeTriton, connect: Connect) -> None:
    triton.models["ensemble"].inputs["end_id"] = ("INT32", [1], False)
    with pytest.raises(InvalidRequest, match="needs input 'end_id'"):
        connect().generate("x")
    connect().generate("x", end_id=2)


def test_a_model_without_text_is_refused_with_the_models_that_have_it(triton: FakeTriton, connect: Connect) -> None:
    triton.models["ensemble"].inputs = {"input_ids": ("INT32", [-1], False)}
    with pytest.raises(InvalidRequest, match="no input 'text_input'.*input_ids") as caught:
        connect().generate("x")
    assert "tensorrt_llm_bls" in caught.value.hint


def test_without_a_batch_dimension_tensors_have_none(triton: FakeTriton, connect: Connect) -> None:
    triton.models["ensemble"].max_batch_size = 0
    connect().generate("x", stop_words=["a", "b"])
    assert triton.inputs()["text_input"][1] == [1]
    assert triton.inputs()["stop_words"][1] == [2]


@pytest.mark.parametrize(("is_batched", "shapes"), [(True, [(1, 3), (1, 1)]), (False, [(3,), (1,)])])
def test_ids_and_their_length_get_the_shapes_the_server_wants(is_batched: bool, shapes: list[tuple[int, ...]]) -> None:
    ids = encode("input_ids", [0, 1, 2], TensorSpec("INT32", (-1,)), is_batched=is_batched)
    length = encode("input_lengths", 3, TensorSpec("INT32", (1,)), is_batched=is_batched)
    assert [ids.shape, length.shape] == shapes
    assert (ids.data, length.data) == (struct.pack("<3i", 0, 1, 2), struct.pack("<i", 3))


def test_a_value_that_already_has_the_batch_dimension_is_taken_as_it_is() -> None:
    spec = TensorSpec("INT32", (2, -1))
    assert encode("x", [[[1], [2]]], spec, is_batched=True) == encode("x", [[1], [2]], spec, is_batched=True)


@pytest.mark.parametrize(
    ("value", "dtype", "dims"),
    [
        ([1, 2], "INT32", (1,)),
        ([[1], [2]], "INT32", (-1,)),
        (2**31, "INT32", (1,)),
        (-1, "UINT64", (1,)),
        (2**64, "UINT64", (1,)),
        (1.0, "INT32", (1,)),
        (True, "INT32", (1,)),
        (1, "BOOL", (1,)),
        (NAN, "FP32", (1,)),
        (1e39, "FP32", (1,)),
        (70000.0, "FP16", (1,)),
        ("7", "INT32", (1,)),
        ([[1], [2, 3]], "INT32", (-1, -1)),
        (1, "BF16", (1,)),
        (7, "BYTES", (1,)),
        ("\ud800", "BYTES", (1,)),
    ],
)
def test_a_value_that_does_not_fit_is_refused_and_never_wrapped_cut_or_rounded(
    value: Any, dtype: str, dims: tuple[int, ...]
) -> None:
    with pytest.raises(InvalidRequest, match="'name'") as caught:
        encode("name", value, TensorSpec(dtype, dims), is_batched=True)
    assert caught.value.hint


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_every_data_type_comes_back_as_it_was_sent(dtype: str) -> None:
    values = np.array([[1, 0], [0, 1]], dtype=DTYPES[dtype])
    tensor = encode("x", values, TensorSpec(dtype, (2, -1)), is_batched=False)
    assert np.array_equal(decode("x", dtype, tensor.shape, tensor.data), values)


def test_texts_come_back_as_they_were_sent() -> None:
    tensor = encode("x", ["", "家🙂", b"\xff"], TensorSpec("BYTES", (-1,)), is_batched=True)
    assert decode("x", "BYTES", tensor.shape, tensor.data).tolist() == [[b"", "家🙂".encode(), b"\xff"]]


def test_what_the_command_line_could_not_decode_is_sent_as_the_bytes_it_was() -> None:
    as_in_a_c_locale = "Яблоко 🙂".encode().decode("ascii", "surrogateescape")
    tensor = encode("x", as_in_a_c_locale, TensorSpec("BYTES", (1,)), is_batched=True)
    assert tensor.data == pack("Яблоко 🙂")


def test_temperature_alone_is_sent_with_a_warning_because_decoding_stays_greedy(
    triton: FakeTriton, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    generation = connect().generate("x", temperature=0.7)
    assert any("greedily" in warning for warning in generation.warnings)
    assert "greedily" in caplog.text
    assert connect().generate("x", temperature=0.7, top_k=50).warnings == ()
    assert connect().generate("x", temperature=0.7, top_p=0.9).warnings == ()
    assert "temperature" in triton.inputs(0)


def test_temperature_zero_is_sent_as_greedy_decoding(triton: FakeTriton, connect: Connect) -> None:
    generation = connect().generate("x", temperature=0, top_p=0.9, top_k=40)
    assert triton.inputs()["top_k"] == ("INT32", [1, 1], struct.pack("<i", 1))
    assert not {"temperature", "top_p"} & set(triton.inputs())
    assert any("top_k=1" in warning for warning in generation.warnings)


def test_the_scripted_server_declares_what_the_client_names() -> None:
    wire_names = {name for parameter in PARAMETERS.values() for name in parameter.names}
    assert set(TEXT_INPUTS) - wire_names == {"text_input", "stream", "lora_task_id"}
