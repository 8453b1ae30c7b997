"""From chunks to responses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.unit.reference.test_reference_tensors import read

from trtbuild.reference.reply import Outputs, Reply
from trtbuild.reference.sequence import Chunk, KvUse, Sequence, Timing
from trtbuild.reference.tensors import CoreRequest

STATISTICS = {
    "kv_cache_alloc_new_blocks": (1, np.int32),
    "kv_cache_reused_blocks": (2, np.int32),
    "kv_cache_alloc_total_blocks": (3, np.int32),
    "arrival_time_ns": (100, np.int64),
    "first_scheduled_time_ns": (200, np.int64),
    "first_token_time_ns": (300, np.int64),
    "last_token_time_ns": (400, np.int64),
    "acceptance_rate": (0.0, np.float32),
    "total_accepted_draft_tokens": (0, np.int32),
    "total_draft_tokens": (0, np.int32),
}


def respond(request: CoreRequest, *chunks: Chunk) -> tuple[list[Outputs], list[str | None]]:
    """Play an answer; return the responses and how it finished."""
    sent: list[Outputs] = []
    ends: list[str | None] = []
    reply = Reply(request, sent.append, lambda _, error: ends.append(error))
    timing = Timing(100, 200, 300, 400)
    sequence = Sequence("0", request.prompt, request.params, 9, reply, timing=timing, kv=KvUse(2, 3))
    sequence._num_released = sum(len(chunk.token_ids) for chunk in chunks)
    for chunk in chunks:
        reply(sequence, chunk)
    return sent, ends


def ids(responses: list[Outputs]) -> list[Any]:
    return [outputs["output_ids"].tolist() for outputs in responses]


def test_draft_tokens_are_counted_with_the_last_response() -> None:
    request, sent = read(return_perf_metrics=np.array([True])), list[Outputs]()
    reply = Reply(request, sent.append, lambda _, error: None)
    sequence = Sequence("0", request.prompt, request.params, 9, reply, draft=(4, 5, 6))
    assert [sequence.push(token) for token in (4, 5, 7)] == [None, None, "draft"]
    [outputs] = sent
    assert outputs["output_ids"].tolist() == [[[4, 5, 7]]]
    assert (outputs["total_draft_tokens"], outputs["total_accepted_draft_tokens"]) == (3, 2)
    assert outputs["acceptance_rate"] == pytest.approx(2 / 3)


def test_a_stream_carries_only_new_tokens() -> None:
    request = read(streaming=np.array([True]))
    sent, ends = respond(request, Chunk([4]), Chunk([5, 6]), Chunk([7], finish_reason="length"))
    assert ids(sent) == [[[[4]]], [[[5, 6]]], [[[7]]]]
    assert [outputs["sequence_length"].tolist() for outputs in sent] == [[[1]], [[2]], [[1]]]
    assert {name: array.dtype for name, array in sent[0].items()} == {
        "output_ids": np.int32,
        "sequence_length": np.int32,
    }
    assert ends == [None]


def test_a_whole_answer_is_one_response() -> None:
    sent, ends = respond(read(), Chunk([4]), Chunk([5]), Chunk([], finish_reason="end_id"))
    assert ids(sent) == [[[[4, 5]]]] and ends == [None]


def test_the_prompt_comes_first_when_it_is_echoed() -> None:
    sent, _ = respond(read(exclude_input=False), Chunk([4], finish_reason="length"))
    assert ids(sent) == [[[[5, 6, 7, 4]]]] and sent[0]["sequence_length"].tolist() == [[4]]


@pytest.mark.parametrize("streaming", [True, False])
def test_an_empty_answer_is_one_empty_response(streaming: bool) -> None:
    sent, ends = respond(read(streaming=np.array([streaming])), Chunk([], finish_reason="end_id"))
    assert ids(sent) == [[[[]]]] and sent[0]["sequence_length"].tolist() == [[0]] and ends == [None]
    assert sent[0]["output_ids"].shape == (1, 1, 0)


def test_a_stream_that_ends_without_a_new_token_sends_nothing_more() -> None:
    sent, ends = respond(read(streaming=np.array([True])), Chunk([4]), Chunk([], finish_reason="stop_words"))
    assert ids(sent) == [[[[4]]]] and ends == [None]


def test_statistics_come_with_the_last_response_in_their_types() -> None:
    request = read(streaming=np.array([True]), return_perf_metrics=np.array([True]))
    sent, _ = respond(request, Chunk([4]), Chunk([], finish_reason="end_id"))
    assert set(sent[0]) == {"output_ids", "sequence_length"}
    assert ids(sent) == [[[[4]]], [[[]]]]
    for name, (value, dtype) in STATISTICS.items():
        assert sent[1][name].tolist() == [[value]] and sent[1][name].dtype == dtype


def test_token_counts_come_only_when_asked_for() -> None:
    request = read(return_num_input_tokens=np.array([True]), return_num_output_tokens=np.array([True]))
    (outputs,), _ = respond(request, Chunk([4, 5], finish_reason="length"))
    assert outputs["num_input_tokens"].tolist() == [[3]] and outputs["num_output_tokens"].tolist() == [[2]]
    assert set(respond(read(), Chunk([4], finish_reason="length"))[0][0]) == {"output_ids", "sequence_length"}


def test_token_counts_of_a_stream_are_those_of_each_response() -> None:
    request = read(streaming=np.array([True]), return_num_output_tokens=np.array([True]))
    sent, _ = respond(request, Chunk([4]), Chunk([5, 6]), Chunk([], finish_reason="end_id"))
    assert [outputs["num_output_tokens"].tolist() for outputs in sent] == [[[1]], [[2]]]


def test_log_probabilities_are_parallel_to_the_tokens_and_sum_up() -> None:
    request = read(streaming=np.array([True]), return_log_probs=np.array([True]))
    sent, _ = respond(request, Chunk([4], [-0.5]), Chunk([5, 6], [-1.0, -0.25], "length"))
    assert [outputs["output_log_probs"].tolist() for outputs in sent] == [[[[-0.5]]], [[[-1.0, -0.25]]]]
    assert [outputs["cum_log_probs"].tolist() for outputs in sent] == [[[-0.5]], [[-1.75]]]


def test_rows_of_a_batch_carry_their_index() -> None:
    (outputs,), _ = respond(replace(read(), batch_index=1), Chunk([4], finish_reason="length"))
    assert outputs["batch_index"].tolist() == [[1]]


def test_a_stopped_request_is_answered_with_what_it_had() -> None:
    sent, ends = respond(read(), Chunk([4]), Chunk([5]), Chunk([], finish_reason="cancelled"))
    assert ids(sent) == [[[[4, 5]]]] and ends == [None]


def test_an_error_is_passed_on_without_a_response() -> None:
    sent, ends = respond(read(), Chunk([4]), Chunk([], None, "error", "it broke"))
    assert sent == [] and ends == ["it broke"]
