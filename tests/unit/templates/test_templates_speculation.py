"""Speculation in `tensorrt_llm_bls`: a draft model changes how many steps an answer takes, and never the answer."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tests.unit.templates.fake_lm import Rule, RuleCore
from tests.unit.templates.tiny_tokenizers import byte_ids
from tests.unit.templates.triton_stub import InferenceRequest, TritonError

WAIT_SECONDS = 20
MOST = 5
END = 256
TEXT = "the cat. STOP and é家🙂 go on"
DRAFT = {"tensorrt_llm_draft_model_name": "tensorrt_llm_draft", "max_draft_len": str(MOST)}
PERF = np.array([True])


def saying(text: str, prompt: str = "hi") -> Rule:
    """Return the rule that answers the prompt with a text and its end, over and over."""
    ids = [*byte_ids(text), END]
    return lambda tokens: ids[(len(tokens) - len(byte_ids(prompt))) % len(ids)]


def wild(seed: int, *, letters: str = "abS") -> Rule:
    """Return a rule that looks at all the text, with an end now and then."""
    choices = [*byte_ids(letters), *byte_ids(letters), *byte_ids(letters), END]

    def rule(tokens: Sequence[int]) -> int:
        return choices[zlib.crc32(repr((seed, list(tokens))).encode()) % len(choices)]

    return rule


def sometimes(rule: Rule, other: Rule, every: int) -> Rule:
    """Return a rule that follows another one at every n-th length of the text."""
    return lambda tokens: (other if len(tokens) % every == 0 else rule)(tokens)


@pytest.fixture
def serve(ask_bls: Callable[..., InferenceRequest]) -> Callable[..., InferenceRequest]:
    """Return a function that puts a core and a draft model behind the model, asks it and returns the request with its answer."""

    def serve(
        core: RuleCore,
        draft: RuleCore | None = None,
        text: Any = "hi",
        *,
        parameters: dict[str, str] | None = None,
        decoupled: bool = True,
        declared: tuple[str, ...] = (),
        before: Callable[[InferenceRequest], None] = lambda request: None,
        **inputs: Any,
    ) -> InferenceRequest:
        models = {"tensorrt_llm": core} | ({"tensorrt_llm_draft": draft} if draft is not None else {})
        return ask_bls(
            models,
            text,
            40,
            {"end_id": [[END]], **inputs},
            parameters={**(DRAFT if draft else {}), **(parameters or {})},
            decoupled=decoupled,
            declared=declared,
            before=before,
        )

    return serve


def text(request: InferenceRequest) -> str:
    """Return the text of all responses."""
    return "".join(response.values()["text_output"][0][0] for response in request.sender.responses)


def last(request: InferenceRequest) -> dict[str, Any]:
    """Return the outputs of the last response."""
    return dict(request.sender.responses[-1].values())


def error(request: InferenceRequest) -> str:
    """Return the message of the error that is the whole answer."""
    [response] = request.sender.responses
    return str(response.error().message())


STREAM = {"stream": [[True]]}
#: Draft model -> its rule for a core that says TEXT.
DRAFTS = {
    "always agrees": saying(TEXT),
    "never agrees": lambda tokens: 1,
    "sometimes agrees": sometimes(saying(TEXT), lambda tokens: 1, 3),
    "ends at once": lambda tokens: END,
    "ends early": sometimes(saying(TEXT), lambda tokens: END, 4),
    "never ends": sometimes(saying(TEXT), lambda tokens: 1, len(byte_ids(TEXT)) + 2),
}


class TestTheAnswerIsTheCoresOwn:
    @pytest.mark.parametrize("draft", DRAFTS)
    @pytest.mark.parametrize("stream", [True, False])
    @pytest.mark.parametrize("reports_end", [True, False])
    @pytest.mark.parametrize("count", [1, 2, MOST])
    def test_whatever_the_draft_model_says(
        self, serve: Callable[..., InferenceRequest], draft: str, stream: bool, reports_end: bool, count: int
    ) -> None:
        core = RuleCore(saying(TEXT), reports_end=reports_end)
        drafter = RuleCore(DRAFTS[draft], reports_end=reports_end)
        request = serve(core, drafter, num_draft_tokens=[[count]], stream=[[stream]])
        assert text(request) == TEXT
        assert drafter.asked
        if draft == "always agrees":
            assert len(core.asked) == -(-(len(byte_ids(TEXT)) + 1) // (count + 1))

    @pytest.mark.parametrize("seed", range(60))
    def test_for_rules_stop_words_and_lengths_of_all_kinds(
        self, serve: Callable[..., InferenceRequest], seed: int
    ) -> None:
        chance = random.Random(seed)
        rule = wild(seed)
        drafts = sometimes(rule, wild(seed + 1000), chance.choice([1, 2, 3, 5]))
        inputs = {
            "max_tokens": [[chance.choice([1, 2, 3, 7, 30])]],
            "stream": [[chance.random() < 0.5]],
            "stop_words": [chance.sample(["SS", "Sab", "bb", "S"], chance.randrange(3)) or [""]],
            "exclude_input_in_output": [[chance.random() < 0.7]],
        }
        reports_end = chance.random() < 0.5
        plain = serve(RuleCore(rule, reports_end=reports_end), **inputs)
        core, drafter = (RuleCore(each, reports_end=reports_end) for each in (rule, drafts))
        count = chance.randrange(1, MOST + 1)
        assert text(serve(core, drafter, num_draft_tokens=[[count]], **inputs)) == text(plain)

    def test_without_decoupling_too(self, serve: Callable[..., InferenceRequest]) -> None:
        request = serve(
            RuleCore(saying(TEXT)), RuleCore(DRAFTS["sometimes agrees"]), decoupled=False, num_draft_tokens=[[3]]
        )
        assert text(request) == TEXT
        assert len(request.sender.responses) == 1

    def test_a_core_that_goes_on_behind_the_draft_tokens_is_taken_at_its_word(
        self, serve: Callable[..., InferenceRequest]
    ) -> None:
        core = RuleCore(saying(TEXT))
        core.generate = lambda values: RuleCore.generate(core, {**values, "draft_input_ids": [[]]})  # type: ignore[method-assign]  # one odd core
        request = serve(core, RuleCore(DRAFTS["never agrees"]), num_draft_tokens=[[3]], return_perf_metrics=PERF)
        assert text(request) == TEXT
        assert last(request)["total_accepted_draft_tokens"] == [[0]]


class TestSteps:
    def test_a_stream_brings_the_tokens_of_a_step_together(self, serve: Callable[..., InferenceRequest]) -> None:
        request = serve(RuleCore(saying("abcdefgh")), RuleCore(saying("abcdefgh")), num_draft_tokens=[[2]], **STREAM)
        assert [response.values()["text_output"][0][0] for response in request.sender.responses] == ["abc", "def", "gh"]

    def test_accumulated_text_grows(self, serve: Callable[..., InferenceRequest]) -> None:
        core, draft, parameters = RuleCore(saying("abcd")), RuleCore(saying("abcd")), {"accumulate_tokens": "true"}
        request = serve(core, draft, parameters=parameters, num_draft_tokens=[[1]], **STREAM)
        assert [response.values()["text_output"][0][0] for response in request.sender.responses] == [
            "ab",
            "abcd",
            "abcd",
        ]

    def test_what_both_models_are_asked(self, serve: Callable[..., InferenceRequest]) -> None:
        core, draft = RuleCore(saying("abcdefgh")), RuleCore(saying("abxdefgh"))
        inputs = {
            "max_tokens": [[6]], "num_draft_tokens": [[3]], "min_tokens": [[4]], "seed": np.array([[2**64 - 1]], np.uint64),
            "stop_words": [["Q"]], "top_k": [[1]], "lora_task_id": np.array([7], np.uint64),
        }  # fmt: skip
        assert text(serve(core, draft, **inputs)) == "abcdef"
        hi = byte_ids("hi")
        common = {"end_id": [[END]], "pad_id": [[257]], "runtime_top_k": [[1]], "exclude_input_in_output": [[True]]}
        assert [request.values() for request in draft.asked] == [
            {**common, "input_ids": [[*hi, *byte_ids(said)]], "input_lengths": [[2 + len(said)]], "request_output_len": [[count]],
             "min_tokens": [[min(4 - len(said), count)]], "seed": [[(2**64 - 1 + len(said)) % 2**64]]}
            for said, count in (("", 3), ("abc", 2))
        ]  # fmt: skip
        mine = {**common, "lora_task_id": [[7]], "stop_words_list": [[byte_ids("Q"), [1]]]}
        assert [request.values() for request in core.asked] == [
            {**mine, "input_ids": [[*hi, *byte_ids(said)]], "input_lengths": [[2 + len(said)]], "request_output_len": [[len(guess) + 1]],
             "min_tokens": [[4 - len(said)]], "seed": [[(2**64 - 1 + len(said)) % 2**64]], "draft_input_ids": [byte_ids(guess)]}
            for said, guess in (("", "abx"), ("abc", "de"))
        ]  # fmt: skip

    def test_the_seed_has_the_name_that_the_release_gives_it(self, serve: Callable[..., InferenceRequest]) -> None:
        core, draft = RuleCore(saying("abcdef")), RuleCore(saying("abcdef"))
        serve(core, draft, declared=("random_seed",), num_draft_tokens=[[2]], random_seed=np.array([[5]], np.uint64))
        for model in (core, draft):
            assert [request.values()["random_seed"] for request in model.asked] == [[[5]], [[8]], [[11]]]
            assert not any("seed" in request.tensors for request in model.asked)

    def test_no_request_shares_an_id_with_another(self, serve: Callable[..., InferenceRequest]) -> None:
        core, draft = RuleCore(saying(TEXT)), RuleCore(saying(TEXT))
        serve(core, draft, num_draft_tokens=[[2]])
        ids = [request.request_id() for request in (*core.asked, *draft.asked)]
        assert len(set(ids)) == len(ids)

    def test_the_core_gets_no_draft_where_one_token_is_left(self, serve: Callable[..., InferenceRequest]) -> None:
        core, draft = RuleCore(saying("abc")), RuleCore(saying("abc"))
        assert text(serve(core, draft, max_tokens=[[1]], num_draft_tokens=[[2]])) == "a"
        assert draft.asked == []
        assert "draft_input_ids" not in core.asked[0].tensors

    @pytest.mark.parametrize("wanted", [{}, {"num_draft_tokens": [[0]]}, {"use_draft_logits": np.array([False])}])
    def test_a_request_that_wants_none_goes_the_plain_way(
        self, serve: Callable[..., InferenceRequest], wanted: dict[str, Any]
    ) -> None:
        core, draft = RuleCore(saying("abc")), RuleCore(saying("abc"))
        assert text(serve(core, draft, **wanted)) == text(serve(RuleCore(saying("abc")), **wanted)) == "abc"
        assert draft.asked == []
        assert len(core.asked) == 1

    def test_the_core_sees_the_logits_of_the_draft_tokens(self, serve: Callable[..., InferenceRequest]) -> None:
        core, draft = RuleCore(saying("abcdefgh")), RuleCore(saying("ab"), logits=300)
        request = serve(core, draft, num_draft_tokens=[[3]], use_draft_logits=np.array([True]))
        assert text(request) == "abcdefgh"
        first = core.asked[0].tensors
        assert first["draft_input_ids"].as_numpy().tolist() == [byte_ids("ab")]
        assert first["draft_logits"].as_numpy().shape == (1, 2, 300)
        assert [each.values()["seed"][0][0] for each in (draft.asked[0], core.asked[0])] == [2**63, 0]
        assert first["draft_logits"].as_numpy()[0, 1, 0] == 300
        assert draft.asked[0].values()["return_generation_logits"] == [[True]]

    def test_by_logits_a_token_that_is_refused_and_drawn_again_does_not_end_the_answer(
        self, serve: Callable[..., InferenceRequest]
    ) -> None:
        core, draft = RuleCore(saying("abcdefgh")), RuleCore(saying("abcdefgh"), logits=300)
        plain = RuleCore.generate
        core.generate = lambda values: plain(core, values)[: 1 if "draft_input_ids" in values else None]  # type: ignore[method-assign]  # one odd core
        request = serve(core, draft, num_draft_tokens=[[3]], use_draft_logits=np.array([True]))
        assert text(request) == "abcdefgh"
        # A drafted step and one without in turns, and at last one in which nothing comes.
        assert (len(core.asked), len(draft.asked)) == (9, 5)


class TestNumbers:
    def test_draft_tokens_are_counted_over_all_steps(self, serve: Callable[..., InferenceRequest]) -> None:
        core, draft = RuleCore(saying("abcdefgh")), RuleCore(saying("abxdefgh"))
        values = last(serve(core, draft, num_draft_tokens=[[3]], return_perf_metrics=PERF))
        # abx: 2 of 3; def: all; the last step has h, and the draft model's answer ends there.
        assert values["total_draft_tokens"] == [[3 + 3 + 1]]
        assert values["total_accepted_draft_tokens"] == [[2 + 3 + 1]]
        assert values["acceptance_rate"] == [[pytest.approx(6 / 7)]]

    def test_times_and_blocks_are_those_of_the_whole_answer(self, serve: Callable[..., InferenceRequest]) -> None:
        core, draft = RuleCore(saying("abcdefgh")), RuleCore(saying("abcdefgh"))
        request = serve(core, draft, num_draft_tokens=[[3]], return_perf_metrics=PERF, **STREAM)
        names = ("arrival_time_ns", "first_token_time_ns", "last_token_time_ns", "kv_cache_reused_blocks")
        assert [last(request)[name] for name in names] == [[[110]], [[120]], [[330]], [[102 + 202 + 302]]]
        assert not {*names, "total_draft_tokens"} & request.sender.responses[0].values().keys()

    def test_nobody_gets_numbers_unasked(self, serve: Callable[..., InferenceRequest]) -> None:
        request = serve(RuleCore(saying("abc")), RuleCore(saying("abc")), num_draft_tokens=[[3]])
        assert last(request) == {"text_output": [["abc"]]}

    @pytest.mark.parametrize("stream", [True, False])
    def test_tokens_and_log_probs_are_those_of_the_plain_answer(
        self, serve: Callable[..., InferenceRequest], stream: bool
    ) -> None:
        wanted = {
            "return_log_probs": np.array([True]),
            "return_num_output_tokens": np.array([True]),
            "stream": [[stream]],
        }
        core, draft = RuleCore(saying("abcdefgh"), reports_end=True), RuleCore(saying("abxdefgh"))
        request = serve(core, draft, num_draft_tokens=[[2]], **wanted)
        responses = [response.values() for response in request.sender.responses]
        assert [number for each in responses for number in each["output_log_probs"][0][0]] == [
            -token for token in byte_ids("abcdefgh")
        ]
        assert responses[-1]["cum_log_probs"] == [[-sum(byte_ids("abcdefgh"))]]
        assert sum(each["num_output_tokens"][0][0] for each in responses) == 8
        assert {each["num_input_tokens"][0][0] for each in responses} == {2}


class TestErrors:
    @pytest.mark.parametrize(
        ("inputs", "message"),
        [
            (
                {"num_draft_tokens": [[MOST + 1]]},
                f"num_draft_tokens is [{MOST + 1}], need one value of 0 to {MOST}, and one prompt",
            ),
            ({"num_draft_tokens": [[-1]]}, f"num_draft_tokens is [-1], need one value of 0 to {MOST}, and one prompt"),
            ({"num_draft_tokens": [[2], [2]], "text": ["a", "b"], "end_id": [[END], [END]]}, "and one prompt"),
            ({"beam_width": [[2]]}, "num_draft_tokens does not go together with beam_width"),
            ({"num_return_sequences": [[2]]}, "does not go together with num_return_sequences"),
            ({"return_context_logits": np.array([True])}, "does not go together with return_context_logits"),
            ({"return_generation_logits": np.array([True])}, "does not go together with return_generation_logits"),
            ({"guided_decoding_guide_type": [["json"]]}, "does not go together with guided_decoding_guide_type"),
            (
                {"prompt_embedding_table": np.ones((1, 1, 2), np.float16)},
                "does not go together with prompt_embedding_table",
            ),
            (
                {"num_draft_tokens": [[0]], "use_draft_logits": np.array([True])},
                "use_draft_logits: it needs num_draft_tokens",
            ),
        ],
    )
    def test_what_cannot_be_served_says_why_and_asks_nobody(
        self, serve: Callable[..., InferenceRequest], inputs: dict[str, Any], message: str
    ) -> None:
        core, draft = RuleCore(saying("abc")), RuleCore(saying("abc"))
        assert message in error(serve(core, draft, **{"num_draft_tokens": [[2]], **inputs}))
        assert core.asked == draft.asked == []

    @pytest.mark.parametrize("inputs", [{"beam_width": [[1]]}, {"return_context_logits": np.array([False])}])
    def test_values_that_ask_for_nothing_are_let_through(
        self, serve: Callable[..., InferenceRequest], inputs: dict[str, Any]
    ) -> None:
        assert text(serve(RuleCore(saying("abc")), RuleCore(saying("abc")), num_draft_tokens=[[2]], **inputs)) == "abc"

    @pytest.mark.parametrize("which", ["core", "draft"])
    def test_an_error_of_either_model_ends_the_stream(self, serve: Callable[..., InferenceRequest], which: str) -> None:
        models = {"core": RuleCore(saying("abcdef")), "draft": RuleCore(saying("abcdef"))}

        def fail_at_the_second(core: RuleCore) -> None:
            if len(core.asked) == 2:
                core.error = TritonError(f"the {which} is broken", TritonError.INTERNAL)

        models[which].before = fail_at_the_second
        *good, bad = serve(models["core"], models["draft"], num_draft_tokens=[[2]], **STREAM).sender.responses
        assert [response.values()["text_output"][0][0] for response in good] == ["abc"]
        assert (bad.error().message(), bad.error().code()) == (f"the {which} is broken", TritonError.INTERNAL)

    def test_a_draft_model_without_logits_is_named(self, serve: Callable[..., InferenceRequest]) -> None:
        core, draft = RuleCore(saying("abc")), RuleCore(saying("abc"))
        request = serve(core, draft, num_draft_tokens=[[2]], use_draft_logits=np.array([True]))
        assert "must be built with gather_generation_logits" in error(request)


class TestEndingEarly:
    @pytest.mark.parametrize("which", ["core", "draft"])
    def test_the_model_that_works_is_stopped_and_no_step_follows(
        self, serve: Callable[..., InferenceRequest], which: str
    ) -> None:
        models, requests = {"core": RuleCore(saying(TEXT)), "draft": RuleCore(saying(TEXT))}, list[InferenceRequest]()

        def leave_and_wait(core: RuleCore) -> None:
            if len(core.asked) == 2:
                requests[0].sender.cancel()
                assert core.stopped.wait(WAIT_SECONDS)

        models[which].before = leave_and_wait
        request = serve(models["core"], models["draft"], before=requests.append, num_draft_tokens=[[2]], **STREAM)
        assert request.sender.responses[-1].error().code() == TritonError.CANCELLED
        assert set(models[which].stops) == {models[which].asked[1].request_id()}
        asked = {name: len(model.asked) for name, model in models.items()}
        assert asked == {"core": 2 if which == "core" else 1, "draft": 2}

    def test_no_step_follows_one_in_which_the_client_left(self, serve: Callable[..., InferenceRequest]) -> None:
        core, draft, requests = RuleCore(saying(TEXT)), RuleCore(saying(TEXT)), list[InferenceRequest]()

        def leave(_: RuleCore) -> None:
            requests[0].sender.cancel()
            assert draft.stopped.wait(WAIT_SECONDS)

        draft.before = leave
        assert error(serve(core, draft, before=requests.append, num_draft_tokens=[[2]])) == "the request was cancelled"
        assert core.asked == []

    def test_nothing_comes_behind_a_stop_word_that_no_token_sequence_shows(
        self, serve: Callable[..., InferenceRequest]
    ) -> None:
        core, draft = RuleCore(saying(TEXT)), RuleCore(saying(TEXT))
        request = serve(core, draft, parameters={"stop_words": '["STOP"]'}, num_draft_tokens=[[2]], **STREAM)
        assert text(request) == "the cat. "
        assert len(core.asked) == 5
        assert core.stops == draft.stops == []

    def test_a_stop_word_that_begins_in_one_step_and_ends_in_the_next(
        self, serve: Callable[..., InferenceRequest]
    ) -> None:
        core, draft = RuleCore(saying("abSTOPcd")), RuleCore(saying("abSTOPcd"))
        assert text(serve(core, draft, num_draft_tokens=[[3]], stop_words=[["STOP"]])) == "ab"
        assert len(core.asked) == 2
