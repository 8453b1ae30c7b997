"""What is made of the responses: text, counts, reasons, log probabilities, the server's own times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.client.fake_triton import FakeTriton, data, end, fp32, int32, int64, pack, tokens
from tritonclient.grpc import service_pb2

from trtbuild_client import Client, InvalidRequest, ServerError

Connect = Callable[..., Client]


def test_a_stop_word_ends_text_and_request_wherever_it_is_divided(triton: FakeTriton, connect: Connect) -> None:
    def script(request: Any, session: Any) -> Any:
        yield from tokens("hi<|im", "_end|>", "never seen")[:2]
        session.hold()

    triton.scripts["ensemble"] = script
    stream = connect().stream("x", stop_words=["<|im_end|>"])
    assert [chunk.text for chunk in stream] == ["hi"]
    generation = stream.generation
    assert (generation.text, generation.finish_reason, generation.record.outcome) == ("hi", "stop", "ok")
    assert triton.cancelled.wait(5)


def test_a_whole_answer_is_cut_at_the_stop_word_too(triton: FakeTriton, connect: Connect) -> None:
    triton.answer(data("hi<|im_end|>rest", num_output_tokens=int32(9)), end())
    generation = connect().generate("x", stop_words=["<|im_end|>"], max_tokens=9)
    assert (generation.text, generation.finish_reason) == ("hi", "stop")
    assert not triton.cancelled.is_set()


def test_what_only_began_like_a_stop_word_is_part_of_the_answer(triton: FakeTriton, connect: Connect) -> None:
    triton.answer(*tokens("a", "\n"))
    stream = connect().stream("x", stop_words=["\n\n"])
    assert [chunk.text for chunk in stream] == ["a", "\n"]
    assert stream.generation.text == "a\n"


def test_a_character_divided_between_responses_is_whole_in_the_stream(triton: FakeTriton, connect: Connect) -> None:
    smile = "🙂".encode()
    triton.answer(data(smile[:1]), data(smile[1:3]), data(smile[3:] + b"!"), end())
    assert [chunk.text for chunk in connect().stream("x")] == ["🙂!"]


def test_cumulative_text_is_streamed_as_its_new_parts(triton: FakeTriton, connect: Connect) -> None:
    triton.answer(data("Hel"), data("Hello \ufffd"), data("Hello 🙂"), end())
    stream = connect().stream("x", text_mode="cumulative")
    assert [chunk.text for chunk in stream] == ["Hel", "lo ", "🙂"]


def test_cumulative_text_read_as_deltas_is_reported(triton: FakeTriton, connect: Connect) -> None:
    triton.answer(*(data("abcdefg"[:length]) for length in range(1, 7)), end())
    stream = connect().stream("x")
    assert len(list(stream)) == 6
    assert any("text_mode" in warning for warning in stream.generation.warnings)


def test_an_unknown_text_mode_is_refused(connect: Connect) -> None:
    with pytest.raises(InvalidRequest, match="text_mode='sum'"):
        connect().stream("x", text_mode="sum")


@pytest.mark.parametrize("text", ["Once upon a time there was", "time", "Once upon a time"])
def test_an_answer_that_begins_with_the_prompt_is_left_alone(triton: FakeTriton, connect: Connect, text: str) -> None:
    triton.answer(data(text), end())
    assert connect().generate("Once upon a time").text == text


def test_tokens_are_those_the_server_counted_in_each_response(triton: FakeTriton, connect: Connect) -> None:
    triton.answer(
        data("a", num_output_tokens=int32(1), num_input_tokens=int32(4)),
        data("", num_output_tokens=int32(1)),
        data("bcd", num_output_tokens=int32(3)),
        data("held back", num_output_tokens=int32(0)),
        end(),
    )
    stream = connect().stream("x", max_tokens=8)
    assert [chunk.text for chunk in stream] == ["a", "bcd", "held back"]
    record = stream.generation.record
    assert [event.tokens for event in record.events] == [1, 1, 3]
    assert (record.output_tokens, record.counted_by, record.input_tokens) == (5, "server", 4)
    assert stream.generation.finish_reason == "stop"


@pytest.mark.parametrize("total", [3, 5])
def test_a_count_in_the_last_response_only_is_that_of_the_whole_answer(
    triton: FakeTriton, connect: Connect, total: int
) -> None:
    triton.answer(data("a"), data("b"), data("c"), data("", num_output_tokens=int32(total)), end())
    stream = connect().stream("x", max_tokens=5)
    list(stream)
    assert (stream.generation.num_output_tokens, stream.generation.record.counted_by) == (total, "server")
    assert stream.generation.finish_reason == ("length" if total == 5 else "stop")


def test_without_counts_responses_with_text_are_a_lower_bound_and_the_reason_is_unknown(
    triton: FakeTriton, connect: Connect
) -> None:
    triton.answer(data("a"), data(""), data("bc"), end())
    stream = connect().stream("x", max_tokens=2)
    list(stream)
    assert (stream.generation.num_output_tokens, stream.generation.record.counted_by) == (2, "chunks")
    assert stream.generation.finish_reason is None


def test_an_answer_of_max_tokens_ended_because_of_its_length(triton: FakeTriton, connect: Connect) -> None:
    triton.answer(*tokens("a", "b"))
    assert connect().generate("x", max_tokens=2).finish_reason == "length"


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([end()], "stop"),
        ([data("", num_output_tokens=int32(0)), end()], "stop"),
        ([data(""), end()], None),
        ([], "stop"),
    ],
)
def test_an_empty_answer_is_an_answer(
    triton: FakeTriton, connect: Connect, messages: list[Any], reason: str | None
) -> None:
    triton.answer(*messages)
    stream = connect().stream("x")
    assert list(stream) == []
    generation = stream.generation
    assert (generation.text, generation.num_output_tokens, generation.record.outcome) == ("", 0, "ok")
    assert generation.finish_reason == reason
    assert generation.record.counted_by == ("server" if reason else "chunks")  # texts that are empty may be tokens
    assert generation.to_json()["ttft_ns"] is None


def test_log_probabilities_are_none_unless_asked_for(triton: FakeTriton, connect: Connect) -> None:
    triton.answer(data("a", output_log_probs=fp32(0, 0), cum_log_probs=fp32(0)), end())
    generation = connect().generate("x")
    assert (generation.log_probs, generation.cum_log_prob) == (None, None)
    assert "return_log_probs" not in triton.inputs()


def test_log_probabilities_that_are_asked_for_are_collected(triton: FakeTriton, connect: Connect) -> None:
    triton.answer(
        data("a", num_output_tokens=int32(1), output_log_probs=fp32(-0.5), cum_log_probs=fp32(-0.5)),
        data("b", num_output_tokens=int32(1), output_log_probs=fp32(-0.25), cum_log_probs=fp32(-0.75)),
        end(),
    )
    stream = connect().stream("x", return_log_probs=True)
    list(stream)
    assert (stream.generation.log_probs, stream.generation.cum_log_prob) == ((-0.5, -0.25), -0.75)
    assert stream.generation.warnings == ()


def test_more_log_probabilities_than_tokens_and_zeros_only_are_reported(triton: FakeTriton, connect: Connect) -> None:
    triton.answer(data("a", num_output_tokens=int32(1), output_log_probs=fp32(0, 0, 0)), end())
    warnings = connect().generate("x", return_log_probs=True).warnings
    assert any("3 log probabilities for 1 tokens" in warning for warning in warnings)
    assert any("greedy" in warning for warning in warnings)


def test_the_servers_own_times_are_kept_zero_included(triton: FakeTriton, connect: Connect) -> None:
    times = {
        "arrival_time_ns": int64(10),
        "first_scheduled_time_ns": int64(10),
        "first_token_time_ns": int64(25),
        "last_token_time_ns": int64(100),
        "kv_cache_reused_blocks": int32(0),
        "acceptance_rate": fp32(0.0),
    }
    triton.answer(data("a"), data("b", **times), end())
    server = connect().generate("x", return_perf_metrics=True).record.server
    assert server is not None
    assert (server.queue_ns, server.ttft_ns, server.decode_ns) == (0, 15, 75)
    assert (server.kv_cache_reused_blocks, server.acceptance_rate, server.total_draft_tokens) == (0, 0.0, None)


def test_server_times_that_nobody_asked_for_or_nobody_gave_are_none(triton: FakeTriton, connect: Connect) -> None:
    triton.answer(data("a", arrival_time_ns=int64(1)), end())
    assert connect().generate("x").record.server is None
    triton.answer(data("a"), end())
    assert connect().generate("x", return_perf_metrics=True).record.server is None
    triton.answer(data("a", first_token_time_ns=int64(7)), end())
    server = connect().generate("x", return_perf_metrics=True).record.server
    assert server is not None and server.ttft_ns is None


def test_all_beams_are_returned_each_cut_at_the_stop_word(triton: FakeTriton, connect: Connect) -> None:
    triton.answer(data(None, text_output=("BYTES", [1, 2], pack("one.", "two.x"))), end())
    generation = connect().generate("x", beam_width=2, stop_words=["."])
    assert (generation.text, generation.beams) == ("one", ("one", "two"))


def test_beams_cannot_be_streamed(connect: Connect) -> None:
    with pytest.raises(InvalidRequest, match="beam_width=2"):
        connect().stream("x", beam_width=2)


def test_other_outputs_are_there_by_name(triton: FakeTriton, connect: Connect) -> None:
    triton.answer(data("a", batch_index=int32(3)), end())
    assert connect().generate("x").outputs["batch_index"].tolist() == [[3]]


def test_outputs_in_typed_fields_are_read_like_raw_ones(triton: FakeTriton, connect: Connect) -> None:
    message = service_pb2.ModelStreamInferResponse()
    text = message.infer_response.outputs.add(name="text_output", datatype="BYTES", shape=[1, 1])
    text.contents.bytes_contents.append("typed 🙂".encode())
    count = message.infer_response.outputs.add(name="num_output_tokens", datatype="INT32", shape=[1, 1])
    count.contents.int_contents.append(2)
    triton.answer(message, end())
    generation = connect().generate("x")
    assert (generation.text, generation.num_output_tokens) == ("typed 🙂", 2)


@pytest.mark.parametrize(
    ("dtype", "shape", "raw"),
    [("BYTES", [1, 1], b"\5\0\0\0abc"), ("BYTES", [1, 2], b"\0\0\0\0"), ("INT32", [1, 1], b"abc"), ("ODD", [1], b"x")],
)
def test_an_output_that_cannot_be_read_is_an_error_of_the_server(
    triton: FakeTriton, connect: Connect, dtype: str, shape: list[int], raw: bytes
) -> None:
    triton.answer(data(None, text_output=(dtype, shape, raw)), end())
    with pytest.raises(ServerError, match="text_output"):
        connect().generate("x")
