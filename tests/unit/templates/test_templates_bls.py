"""The model `tensorrt_llm_bls`, with the real pre- and postprocessing behind it and a scripted core."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.unit.repo.public_tensors import public_of
from tests.unit.templates import triton_stub
from tests.unit.templates.fake_core import Batch, Core
from tests.unit.templates.tiny_tokenizers import byte_ids
from tests.unit.templates.triton_stub import InferenceRequest, InferenceResponse, Tensor, TritonError

WAIT_SECONDS = 20


@pytest.fixture
def serve(ask_bls: Callable[..., InferenceRequest]) -> Callable[..., InferenceRequest]:
    """Return a function that puts a core behind the model, asks it and returns the request with its answer."""

    def serve(
        core: Core,
        text: Any = "hi",
        *,
        parameters: dict[str, str] | None = None,
        decoupled: bool = True,
        before: Callable[[InferenceRequest], None] = lambda request: None,
        **inputs: Any,
    ) -> InferenceRequest:
        models = {"tensorrt_llm": core}
        return ask_bls(models, text, 8, inputs, parameters=parameters or {}, decoupled=decoupled, before=before)

    return serve


def texts(request: InferenceRequest) -> list[str]:
    """Return the text of every response."""
    return [response.values()["text_output"][0][0] for response in request.sender.responses]


def error(request: InferenceRequest) -> str:
    """Return the message of the error that is the whole answer."""
    [response] = request.sender.responses
    return str(response.error().message())


def pieces(text: str) -> list[list[int]]:
    return [[token_id] for token_id in byte_ids(text)]


STREAM = {"stream": [[True]]}


class TestText:
    def test_a_stream_is_exact_though_the_client_sends_no_id(self, serve: Callable[..., InferenceRequest]) -> None:
        assert texts(serve(Core([*pieces("a🙂b"), None]), **STREAM)) == ["a", "", "", "", "🙂", "b"]

    def test_an_answer_at_once_is_one_response(self, serve: Callable[..., InferenceRequest]) -> None:
        assert texts(serve(Core([byte_ids("é家 x"), None]))) == ["é家 x"]

    def test_without_decoupling_the_one_response_is_final(self, serve: Callable[..., InferenceRequest]) -> None:
        assert texts(serve(Core([byte_ids("é家")]), decoupled=False)) == ["é家"]

    def test_accumulated_text_grows(self, serve: Callable[..., InferenceRequest]) -> None:
        request = serve(Core(pieces("aéb")), parameters={"accumulate_tokens": "true"}, **STREAM)
        assert texts(request) == ["a", "a", "aé", "aéb"]

    def test_accumulation_is_for_streams_only(self, serve: Callable[..., InferenceRequest]) -> None:
        assert texts(serve(Core([byte_ids("ab")]), parameters={"accumulate_tokens": "true"})) == ["ab"]

    def test_two_requests_never_share_an_inner_id(self, serve: Callable[..., InferenceRequest]) -> None:
        core = Core(pieces("é")[:1])
        serve(core, **STREAM)
        core.pieces = pieces("é")[1:]
        assert texts(serve(core, **STREAM)) == [""]
        first, second = (request.request_id() for request in core.asked)
        assert first != second

    def test_rows_of_a_batch_are_put_together_by_their_index(self, serve: Callable[..., InferenceRequest]) -> None:
        first, second = byte_ids("é"), byte_ids("家")
        core = Batch([(1, 0, second[:1]), (0, 0, first[:1]), (1, 0, second[1:]), (0, 0, first[1:])])
        request = serve(core, ["a", "b"], stream=[[True], [True]])
        answers = [(r.values()["batch_index"][0][0], r.values()["text_output"][0][0]) for r in request.sender.responses]
        assert answers == [(1, ""), (0, ""), (1, "家"), (0, "é")]

    def test_returned_sequences_are_put_together_apart(self, serve: Callable[..., InferenceRequest]) -> None:
        ids = byte_ids("é")
        request = serve(Batch([(0, 0, ids[:1]), (0, 1, ids[:1]), (0, 1, ids[1:]), (0, 0, ids[1:])]), **STREAM)
        assert texts(request) == ["", "", "é", "é"]


class TestStopWords:
    def test_nothing_comes_behind_a_stop_word_and_the_core_is_stopped(
        self, serve: Callable[..., InferenceRequest]
    ) -> None:
        core = Core(pieces("one. STOP two"))
        assert "".join(texts(serve(core, stop_words=[["STOP"]], **STREAM))) == "one. "
        assert core.stops == [core.asked[0].request_id()]

    def test_a_beginning_that_is_none_comes_out_in_the_end(self, serve: Callable[..., InferenceRequest]) -> None:
        assert texts(serve(Core(pieces("a ST")), stop_words=[["STOP"]], **STREAM)) == ["a", " ", "", "", "ST"]

    def test_an_answer_at_once_is_cut_the_same(self, serve: Callable[..., InferenceRequest]) -> None:
        assert texts(serve(Core([byte_ids("one. STOP two")]), stop_words=[["STOP"]])) == ["one. "]
        assert texts(serve(Core([byte_ids("one. ST")]), stop_words=[["STOP"]])) == ["one. ST"]

    def test_those_of_the_deployment_count_too(self, serve: Callable[..., InferenceRequest]) -> None:
        request = serve(Core([byte_ids("a|b")]), parameters={"stop_words": '["|"]'}, stop_words=[["x", ""]])
        assert texts(request) == ["a"]

    def test_the_prompt_of_an_echo_is_not_searched(self, serve: Callable[..., InferenceRequest]) -> None:
        core = Core([byte_ids("é STOP") + byte_ids(" yes STOP no")])
        request = serve(core, "é STOP", stop_words=[["STOP"]], exclude_input_in_output=[[False]])
        assert texts(request) == ["é STOP yes "]

    def test_the_echo_may_be_the_default_of_the_deployment(self, serve: Callable[..., InferenceRequest]) -> None:
        core = Core([byte_ids("STOP") + byte_ids("a STOP")])
        request = serve(core, "STOP", parameters={"exclude_input_in_output": "false"}, stop_words=[["STOP"]])
        assert texts(request) == ["STOPa "]
        assert core.asked[0].values()["exclude_input_in_output"] == [[False]]


class TestWhatIsHandedOn:
    def test_every_input_reaches_the_core_under_its_name_there(self, serve: Callable[..., InferenceRequest]) -> None:
        core = Core([byte_ids("x")])
        scalars = {
            name: np.array([True]) for name in ("return_log_probs", "return_perf_metrics", "return_num_output_tokens")
        }
        serve(
            core,
            "hi",
            end_id=[[42]],
            bad_words=[["q"]],
            top_k=[[5]],
            top_p=[[0.5]],
            length_penalty=[[1.0]],
            seed=np.array([[7]], np.uint64),
            lora_weights=np.ones((1, 2, 3), np.float16),
            **scalars,
        )
        values = core.asked[0].values()
        assert values == {
            "input_ids": [byte_ids("hi")],
            "input_lengths": [[2]],
            "request_output_len": [[8]],
            "bad_words_list": [[byte_ids("q"), [1]]],
            "end_id": [[42]],
            "pad_id": [[257]],
            "runtime_top_k": [[5]],
            "runtime_top_p": [[0.5]],
            "len_penalty": [[1.0]],
            "seed": [[7]],
            "lora_weights": [[[1.0] * 3] * 2],
            "exclude_input_in_output": [[True]],
            **{name: [[True]] for name in scalars},
        }

    def test_every_output_but_the_tokens_reaches_the_client(self, serve: Callable[..., InferenceRequest]) -> None:
        core = Core([byte_ids("x")], num_output_tokens=[[1]], cum_log_probs=[[0]], arrival_time_ns=[[5]])
        [response] = serve(core).sender.responses
        assert response.values() == {
            "text_output": [["x"]],
            "num_output_tokens": [[1]],
            "cum_log_probs": [[0]],
            "arrival_time_ns": [[5]],
        }

    def test_maps_cover_all_public_tensors(self, shipped: Callable[[str], SimpleNamespace]) -> None:
        modules = shipped("tensorrt_llm_bls")
        request, refused, drafts = modules.core_request, modules.model.UNSUPPORTED, modules.speculation.INPUTS
        handled = {*request.TO_PREPROCESSING, *request.TO_CORE, *refused, *drafts, "exclude_input_in_output"}
        releases = [public_of(line)["tensorrt_llm_bls"][0] for line in ("0.17", "0.19", "0.20", "0.21", "1.2")]
        assert handled == {name for inputs in releases for name in inputs}


class TestErrors:
    @pytest.mark.parametrize(
        ("inputs", "message"),
        [
            ({"text_input": [[""]]}, "text_input must be one text per row that is not empty"),
            ({"max_tokens": [[1, 2]]}, "max_tokens is [[1, 2]], need one value per row"),
            ({"num_draft_tokens": [[3]]}, "num_draft_tokens: there is no draft model"),
            ({"use_draft_logits": np.array([True])}, "use_draft_logits: there is no draft model"),
            (
                {"image_input": np.zeros((1, 1, 3, 2, 2), np.float16)},
                "image_input: multimodal models are not supported",
            ),
            ({"image_url_input": [["x"]]}, "IMAGE_URL: multimodal models are not supported"),
            ({"embedding_bias_words": [["x"]]}, "must come together"),
            ({"text_input": [["a" * 64]]}, "the prompt has 64 tokens"),
        ],
    )
    def test_a_request_that_cannot_be_served_says_why_and_asks_nobody(
        self, serve: Callable[..., InferenceRequest], inputs: dict[str, Any], message: str
    ) -> None:
        core = Core([byte_ids("x")])
        assert message in error(serve(core, **inputs))
        assert core.asked == []

    def test_an_error_of_the_core_is_passed_on(self, serve: Callable[..., InferenceRequest]) -> None:
        request = serve(Core([TritonError("too long", TritonError.INVALID_ARG)]), **STREAM)
        assert error(request) == "too long"

    def test_an_error_in_the_middle_ends_the_stream(self, serve: Callable[..., InferenceRequest]) -> None:
        *good, bad = serve(Core([*pieces("ab"), TritonError("broken")]), **STREAM).sender.responses
        assert [response.values()["text_output"] for response in good] == [[["a"]], [["b"]]]
        assert bad.error().message() == "broken"

    def test_a_defect_is_named_without_a_traceback_which_goes_to_the_log(
        self, serve: Callable[..., InferenceRequest]
    ) -> None:
        def fail(core: Core) -> None:
            raise KeyError("gone")

        triton_stub.Logger.lines.clear()
        assert error(serve(Core([fail]), **STREAM)) == "internal error in tensorrt_llm_bls: KeyError: 'gone'"
        assert "Traceback" in triton_stub.Logger.lines[-1]

    def test_a_stream_from_a_deployment_that_does_not_stream(self, serve: Callable[..., InferenceRequest]) -> None:
        assert "serving.streaming: false" in error(serve(Core([byte_ids("x")]), decoupled=False, **STREAM))

    def test_several_beams_do_not_stream(self, serve: Callable[..., InferenceRequest]) -> None:
        core = Core([[1]])
        core.response = lambda ids: InferenceResponse(  # type: ignore[method-assign]  # one odd response
            [Tensor("output_ids", np.ones((1, 2, 1), np.int32)), Tensor("sequence_length", np.ones((1, 2), np.int32))]
        )
        assert error(serve(core, **STREAM)) == "beam_width is 2; streaming needs 1"


class TestCancellation:
    def test_the_core_is_stopped_while_it_is_silent(self, serve: Callable[..., InferenceRequest]) -> None:
        requests: list[InferenceRequest] = []

        def leave_and_wait(core: Core) -> None:
            requests[0].sender.cancel()
            assert core.stopped.wait(WAIT_SECONDS)

        core = Core([*pieces("ab"), leave_and_wait, *pieces("cd")])
        request = serve(core, before=requests.append, **STREAM)
        *good, last = request.sender.responses
        assert [response.values()["text_output"][0][0] for response in good] == ["a", "b"]
        assert last.error().code() == TritonError.CANCELLED
        assert set(core.stops) == {core.asked[0].request_id()}

    def test_an_answer_at_once_is_stopped_too(self, serve: Callable[..., InferenceRequest]) -> None:
        def wait(core: Core) -> None:
            assert core.stopped.wait(WAIT_SECONDS)

        request = serve(Core([wait, byte_ids("partial")]), before=lambda request: request.sender.cancel())
        assert error(request) == "the request was cancelled"

    def test_no_stop_is_sent_for_a_request_that_has_ended(self, serve: Callable[..., InferenceRequest]) -> None:
        core = Core(pieces("ab"))
        request = serve(core, **STREAM)
        request.sender.cancel()
        serve(Core(pieces("cd")), **STREAM)
        assert core.stops == []


class TestLeftovers:
    def test_the_core_is_stopped_and_drained_when_the_answer_cannot_go_on(
        self, serve: Callable[..., InferenceRequest]
    ) -> None:
        finished = []
        core = Core([[1], [999], [2], lambda core: finished.append(True)])
        *good, bad = serve(core, **STREAM).sender.responses
        assert len(good) == 1
        assert bad.error().message() == "token id 999 is outside the vocabulary of 300"
        assert core.stops == [core.asked[0].request_id()]
        assert finished == [True]

    def test_a_core_that_has_ended_by_itself_is_not_stopped(self, serve: Callable[..., InferenceRequest]) -> None:
        core = Core([*pieces("a"), TritonError("broken")])
        serve(core, **STREAM)
        assert core.stops == []
