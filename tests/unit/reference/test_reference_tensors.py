"""From tensors to requests: every public input is used, refused, or neutral."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trtbuild.reference.sampling import RequestError
from trtbuild.reference.tensors import IMPLEMENTED, UNSUPPORTED, CoreRequest, is_stop_request, read_requests, read_words
from trtbuild.trtllm.tensors import ENGINE_MODELS
from trtbuild.trtllm.versions import RELEASES

DTYPES: dict[str, Any] = {
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_UINT64": np.uint64,
    "TYPE_UINT8": np.uint8,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_BOOL": np.bool_,
    "TYPE_STRING": np.object_,
}
#: The inputs of all releases that trtbuild knows.
PUBLIC_INPUTS = {
    tensor.name: f"TYPE_{tensor.dtypes[0]}"
    for release in RELEASES
    for tensor in ENGINE_MODELS["tensorrt_llm"].of(release, "input").values()
}


def tensors(**changes: Any) -> dict[str, np.ndarray]:
    """The tensors of one request as the backend sees them: scalars have lost their second dimension."""
    given = {
        "input_ids": np.array([[5, 6, 7, 0]], np.int32),
        "input_lengths": np.array([3], np.int32),
        "request_output_len": np.array([9], np.int32),
        **changes,
    }
    return {name: value for name, value in given.items() if value is not None}


def read(*, exclude_input: bool = True, is_decoupled: bool = True, **changes: Any) -> CoreRequest:
    (request,) = read_requests(tensors(**changes), exclude_input=exclude_input, is_decoupled=is_decoupled)
    return request


def value_of(name: str, number: float) -> np.ndarray:
    if PUBLIC_INPUTS[name] == "TYPE_STRING":
        return np.array([[str(number).encode()]], np.object_)
    return np.array([[number]], DTYPES.get(PUBLIC_INPUTS[name], np.float32))


def test_every_public_input_is_either_implemented_or_refused() -> None:
    assert len(PUBLIC_INPUTS) > 50
    assert set(PUBLIC_INPUTS) == IMPLEMENTED | set(UNSUPPORTED)
    assert not IMPLEMENTED & set(UNSUPPORTED)


@pytest.mark.parametrize("name", [name for name, neutral in UNSUPPORTED.items() if set(neutral) != {False, True}])
def test_an_input_that_is_not_implemented_makes_the_request_fail(name: str) -> None:
    with pytest.raises(RequestError, match=f"^{name} = .* is not supported"):
        read(**{name: value_of(name, True if PUBLIC_INPUTS[name] == "TYPE_BOOL" else 7)})


@pytest.mark.parametrize(
    ("name", "neutral"), [(name, value) for name, values in UNSUPPORTED.items() for value in values]
)
def test_a_neutral_value_is_let_through(name: str, neutral: float) -> None:
    assert read(**{name: value_of(name, neutral)}) == read()


@pytest.mark.parametrize("name", ["draft_input_ids", "embedding_bias", "stop_words_list", "decoder_input_ids"])
def test_an_empty_tensor_asks_for_nothing(name: str) -> None:
    assert read(**{name: np.zeros((1, 2, 0) if name == "stop_words_list" else (1, 0), np.int32)}) == read()


def test_scalars_may_come_with_or_without_their_second_dimension() -> None:
    assert read(input_lengths=np.array([[3]], np.int32), seed=np.array([[8]], np.uint64)) == read(
        seed=np.array([8], np.uint64)
    )


def test_all_settings_arrive_where_they_belong() -> None:
    request = read(
        end_id=np.array([2], np.int32),
        pad_id=np.array([0], np.int32),
        temperature=np.array([0.5], np.float32),
        runtime_top_k=np.array([4], np.int32),
        runtime_top_p=np.array([0.25], np.float32),
        seed=np.array([2**64 - 1], np.uint64),
        repetition_penalty=np.array([1.5], np.float32),
        presence_penalty=np.array([-0.5], np.float32),
        frequency_penalty=np.array([0.75], np.float32),
        min_tokens=np.array([3], np.int32),
        stop_words_list=np.array([[[10, 20, 21, 30], [1, 3, 4, -1]]], np.int32),
        bad_words_list=np.array([[[9], [1]]], np.int32),
        draft_input_ids=np.array([[8, 9]], np.int32),
        return_log_probs=np.array([True]),
        return_perf_metrics=np.array([True]),
        return_num_input_tokens=np.array([True]),
        return_num_output_tokens=np.array([True]),
        streaming=np.array([True]),
    )
    params = request.params
    assert request.draft == (8, 9)
    assert request.prompt == [5, 6, 7] and request.max_tokens == 9 and request.is_streaming
    assert (params.end_id, params.temperature, params.top_k, params.top_p) == (2, 0.5, 4, 0.25)
    assert (params.seed, params.min_tokens) == (2**64 - 1, 3)
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.5, -0.5, 0.75)
    assert params.stop_words == ((10,), (20, 21), (30,)) and params.bad_words == ((9,),)
    assert request.wants_log_probs and request.wants_perf_metrics
    assert request.wants_num_input_tokens and request.wants_num_output_tokens


def test_an_embedding_bias_becomes_one_value_per_token() -> None:
    bias = read(embedding_bias=np.array([[0.0, 1.5, -2.0]], np.float32)).params.embedding_bias
    assert bias is not None and bias.tolist() == [0.0, 1.5, -2.0]


def test_an_end_id_of_minus_one_ends_nothing() -> None:
    assert read(end_id=np.array([-1], np.int32)).params.end_id is None
    assert read().params.end_id is None


@pytest.mark.parametrize(
    ("default", "asked", "streaming", "echoes"),
    [(True, None, False, False), (False, None, False, True), (True, False, False, True), (False, True, False, False), (False, None, True, False)],
)  # fmt: skip
def test_the_prompt_is_echoed_only_when_wanted_and_never_streamed(
    default: bool, asked: bool | None, streaming: bool, echoes: bool
) -> None:
    wish = None if asked is None else np.array([asked])
    request = read(exclude_input=default, exclude_input_in_output=wish, streaming=np.array([streaming]))
    assert request.echoes_prompt is echoes


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"input_ids": None}, "input_ids or encoder_input_features is not present"),
        ({"input_lengths": None}, "input_lengths is not present"),
        ({"request_output_len": None}, "request_output_len is not present"),
        ({"input_lengths": np.array([0], np.int32)}, "input_lengths = 0.*allowed: 1 to 4"),
        ({"input_lengths": np.array([5], np.int32)}, "input_lengths = 5.*allowed: 1 to 4"),
        ({"input_ids": np.zeros((1, 0), np.int32)}, "input_ids with 0 tokens"),
        ({"seed": np.array([[1, 2]], np.uint64)}, "seed has 2 values"),
        ({"request_output_len": np.zeros((1, 0), np.int32)}, "request_output_len.*empty"),
    ],
)
def test_a_broken_request_says_what_is_broken(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        read(**changes)


def test_streaming_needs_a_decoupled_model() -> None:
    with pytest.raises(RequestError, match="Streaming is only supported if model is deployed using decoupled mode"):
        read(is_decoupled=False, streaming=np.array([True]))


def test_rows_of_a_batch_become_requests_of_their_own() -> None:
    batch = tensors(
        input_ids=np.array([[1, 2, 3], [4, 0, 0]], np.int32),
        input_lengths=np.array([3, 1], np.int32),
        request_output_len=np.array([5, 6], np.int32),
        seed=np.array([7, 8], np.uint64),
    )
    first, second = read_requests(batch, exclude_input=True, is_decoupled=True)
    assert (first.prompt, first.max_tokens, first.params.seed, first.batch_index) == ([1, 2, 3], 5, 7, 0)
    assert (second.prompt, second.max_tokens, second.params.seed, second.batch_index) == ([4], 6, 8, 1)
    with pytest.raises(RequestError, match="Batch size > 1 requires.*decoupled"):
        read_requests(batch, exclude_input=True, is_decoupled=False)


def test_a_request_to_stop_is_recognized() -> None:
    assert is_stop_request(tensors(stop=np.array([True])))
    assert not is_stop_request(tensors(stop=np.array([False]))) and not is_stop_request(tensors())


@pytest.mark.parametrize(
    ("ids", "ends", "problem"),
    [
        ([1, 2], [2, 1], "non-increasing"),
        ([1, 2], [1, 1], "non-increasing"),
        ([1, 2], [0, 2], "non-increasing"),
        ([1, 2], [1, 3], "out-of-bound"),
        ([1, 2, 3], [1, -1, 3], "additional -1s"),
    ],
)
def test_a_broken_word_list_is_refused_in_the_backends_words(ids: list[int], ends: list[int], problem: str) -> None:
    with pytest.raises(RequestError, match=f"bad_words_list: Sparse list .*{problem}"):
        read_words(np.array([ids, ends]), "bad_words_list")


def test_a_word_list_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(RequestError, match="odd length"):
        read_words(np.array([[1, 2, 3]]), "stop_words_list")
