"""What OpenAI's own client gets from the gateway."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError, NotFoundError
from tests.unit.client.fake_triton import Session, data, end, fp32, int32, tokens
from tests.unit.gateway.running import Running, Triton, running, write_template
from tests.unit.templates import tiny_tokenizers

from trtbuild_client.mock.options import MockOptions
from trtbuild_client.mock.schedule import WORDS
from trtbuild_client.mock.server import RunningMock
from trtbuild_client.mock.server import running as running_mock

USER = [{"role": "user", "content": "Яблоко 🙂"}]


def said(count: int) -> str:
    """Return the text of the mock's first tokens."""
    return "".join(WORDS[number % len(WORDS)] for number in range(count))


def test_models_are_listed_and_shown_and_an_unknown_one_is_not_found(gateway: Running) -> None:
    with gateway.openai() as client:
        assert [model.id for model in client.models.list()] == ["ensemble"]
        assert client.models.retrieve("ensemble").owned_by == "trtbuild"
        with pytest.raises(NotFoundError) as caught:
            client.models.retrieve("gpt")
        assert caught.value.code == "model_not_found"
        with pytest.raises(NotFoundError):
            client.completions.create(model="gpt", prompt="x")


def test_the_longest_sequence_is_said_where_the_server_says_it(gateway: Running) -> None:
    from trtbuild_client.load.target import Target

    with gateway.openai() as client:
        assert "max_model_len" not in client.models.retrieve("ensemble").model_extra
    with running_mock(MockOptions(max_seq_len=256)) as mock, running(mock.grpc) as limited:
        with limited.openai() as client:
            assert client.models.retrieve("ensemble").model_extra == {"max_model_len": 256}
        assert Target(limited.url, "ensemble").max_seq_len() == 256
    with running("127.0.0.1:1") as alone, alone.openai() as client:  # no server behind it
        assert [model.id for model in client.models.list()] == ["ensemble"]


def test_a_model_is_asked_for_by_each_of_its_served_names(mock: RunningMock) -> None:
    with running(mock.grpc, served_names=("qwen", "org/qwen")) as gateway, gateway.openai() as client:
        assert [model.id for model in client.models.list()] == ["qwen", "org/qwen"]
        assert client.models.retrieve("org/qwen").id == "org/qwen"
        assert client.completions.create(model="org/qwen", prompt="x", max_tokens=1).model == "org/qwen"
        with pytest.raises(NotFoundError):
            client.completions.create(model="ensemble", prompt="x")


def test_a_completion_has_text_reason_and_the_counts_of_the_server(gateway: Running) -> None:
    with gateway.openai() as client:
        answer = client.completions.create(model="ensemble", prompt="one two three", max_tokens=20)
    assert answer.choices[0].text == said(20)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (3, 20, 23)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_of_no_tokens_has_the_usage_that_is_known(triton: Triton, tokenizer_dir: Path, stream: bool) -> None:
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if stream else {}

    def usage(*messages: Any, tokenizer: Path | None = None) -> tuple[int, int] | None:
        triton.answer(*messages)
        with running(triton.address, tokenizer_dir=tokenizer) as gateway, gateway.openai() as client:
            answer: Any = client.completions.create(
                model="ensemble", prompt="x", max_tokens=20, stream=stream, **options
            )
            *_, last = answer if stream else [answer]
        return last.usage and (last.usage.prompt_tokens, last.usage.completion_tokens)

    assert usage(data("", num_output_tokens=int32(0), num_input_tokens=int32(5)), end()) == (5, 0)
    assert usage(end(), tokenizer=tokenizer_dir) == (1, 0)
    assert usage(end()) is None  # the answer is known to be empty, but nobody counted the prompt


def test_a_completion_that_names_no_length_gets_16_tokens(gateway: Running) -> None:
    with gateway.openai() as client:
        assert client.completions.create(model="ensemble", prompt="x").choices[0].text == said(16)


def test_a_chat_streams_what_it_gives_whole(gateway: Running) -> None:
    with gateway.openai() as client:
        whole = client.chat.completions.create(model="ensemble", messages=USER, max_tokens=24)
        chunks = list(client.chat.completions.create(model="ensemble", messages=USER, max_tokens=24, stream=True))
    assert whole.choices[0].message.role == "assistant"
    assert whole.choices[0].message.content == said(24)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == said(24)
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == "length"
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


def test_usage_comes_last_in_a_stream_that_asks_for_it(gateway: Running) -> None:
    with gateway.openai() as client:
        chunks = list(
            client.completions.create(
                model="ensemble", prompt="a b", max_tokens=5, stream=True, stream_options={"include_usage": True}
            )
        )
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 5
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_answers_to_several_prompts_are_numbered_and_each_prompt_is_counted_once(gateway: Running) -> None:
    with gateway.openai() as client:
        answer = client.completions.create(model="ensemble", prompt=["a", "a b"], n=3, max_tokens=2)
        chunks = list(client.completions.create(model="ensemble", prompt=["a", "a b"], n=3, max_tokens=2, stream=True))
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 12)
    texts = ["".join(c.choices[0].text for c in chunks if c.choices[0].index == index) for index in range(6)]
    assert texts == [said(2)] * 6


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_ends_before_a_stop_text(gateway: Running, stream: bool) -> None:
    with gateway.openai() as client:
        answer: Any = client.completions.create(
            model="ensemble", prompt="x", max_tokens=20, stop=["ue bec", "zebra"], stream=stream
        )
        choices = [chunk.choices[0] for chunk in answer] if stream else [answer.choices[0]]
    assert "".join(choice.text for choice in choices) == " the sky is bl"
    assert choices[-1].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_usage_counts_the_tokens_up_to_a_stop_text_and_the_rest_is_not_waited_for(triton: Triton, stream: bool) -> None:
    counted = [data(text, num_output_tokens=int32(1), num_input_tokens=int32(5)) for text in (" a", " b E", "ND c", " d")]  # fmt: skip

    def script(_request: Any, session: Session) -> Iterator[Any]:
        yield from counted
        session.hold()

    triton.scripts["ensemble"] = script
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if stream else {}
    with running(triton.address) as gateway, gateway.openai() as client:
        answer: Any = client.completions.create(
            model="ensemble", prompt="x", max_tokens=20, stop="END", stream=stream, **options
        )
        parts = list(answer) if stream else [answer]
    assert "".join(choice.text for part in parts for choice in part.choices) == " a b "
    assert (parts[-1].usage.prompt_tokens, parts[-1].usage.completion_tokens) == (5, 3)


@pytest.mark.parametrize("stream", [False, True])
def test_usage_of_a_whole_answer_that_is_cut_is_counted_by_the_tokenizer(tokenizer_dir: Path, stream: bool) -> None:
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if stream else {}
    with (
        running_mock(MockOptions(is_decoupled=False)) as mock,
        running(mock.grpc, tokenizer_dir=tokenizer_dir) as gateway,
        gateway.openai() as client,
    ):
        answer: Any = client.completions.create(
            model="ensemble", prompt="x", max_tokens=20, stop="ue bec", stream=stream, **options
        )
        usage = (list(answer)[-1] if stream else answer).usage
        whole = client.completions.create(model="ensemble", prompt="x", max_tokens=20, stop="zebra").usage
    assert usage.completion_tokens == len(" the sky is bl")
    assert whole is not None and whole.completion_tokens == 20


def scalar(triton: Triton, name: str, kind: str, index: int = -1) -> Any:
    """Return the value of an input that the server got, None when it got none."""
    tensor = triton.inputs(index).get(name)
    return None if tensor is None else struct.unpack(f"<{kind}", tensor[2])[0]


def test_sampling_is_on_by_default_with_a_new_seed_each_time(triton: Triton) -> None:
    with running(triton.address) as gateway, gateway.openai() as client:
        for _ in range(2):
            client.completions.create(model="ensemble", prompt="x")
        assert scalar(triton, "temperature", "f") == 1.0
        assert scalar(triton, "top_p", "f") == 1.0
        assert scalar(triton, "top_k", "i") == 0
        assert scalar(triton, "seed", "Q", 0) != scalar(triton, "seed", "Q", 1)
        client.completions.create(model="ensemble", prompt="x", temperature=0.5)
        assert scalar(triton, "temperature", "f") == 0.5
        assert scalar(triton, "top_p", "f") == 1.0, "without it a temperature has no effect"
        client.completions.create(model="ensemble", prompt="x", temperature=0)
        assert scalar(triton, "top_k", "i") == 1
        assert scalar(triton, "temperature", "f") is None


def test_what_was_asked_for_is_what_the_server_gets(triton: Triton) -> None:
    with running(triton.address) as gateway, gateway.openai() as client:
        client.completions.create(
            model="ensemble", prompt="Яблоко 🙂", max_tokens=7, seed=40, n=1, presence_penalty=0.5, frequency_penalty=-0.5,
            top_p=0.25, stop="END", extra_body={"top_k": 12, "min_tokens": 3, "repetition_penalty": 1.5},
        )  # fmt: skip
        assert triton.inputs()["text_input"][2][4:] == "Яблоко 🙂".encode()
        assert triton.inputs()["stop_words"][2][4:] == b"END"
        assert scalar(triton, "max_tokens", "i") == 7
        assert scalar(triton, "seed", "Q") == 40
        assert scalar(triton, "presence_penalty", "f") == 0.5
        assert scalar(triton, "frequency_penalty", "f") == -0.5
        assert scalar(triton, "top_p", "f") == 0.25
        assert scalar(triton, "top_k", "i") == 12
        assert scalar(triton, "min_tokens", "i") == 3
        assert scalar(triton, "repetition_penalty", "f") == 1.5


def test_several_answers_get_seeds_of_their_own(triton: Triton) -> None:
    with running(triton.address) as gateway, gateway.openai() as client:
        client.completions.create(model="ensemble", prompt="x", seed=7, n=3)
    assert sorted(scalar(triton, "seed", "Q", index) for index in range(3)) == [7, 8, 9]
    assert len({request.id for request in triton.received}) == 3


def test_a_whole_conversation_goes_through_the_template_of_the_tokenizer_folder(
    triton: Triton, tokenizer_dir: Path
) -> None:
    with running(triton.address, tokenizer_dir=tokenizer_dir) as gateway, gateway.openai() as client:
        messages: list[Any] = [
            {"role": "developer", "content": "be short"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": "c", "tool_calls": None},
            {"role": "user", "content": "家"},
        ]
        client.chat.completions.create(model="ensemble", messages=messages, max_completion_tokens=9)
    assert (
        triton.inputs()["text_input"][2][4:].decode()
        == "<system>be short\n<user>ab\n<assistant>c\n<user>家\n<assistant>"
    )
    assert scalar(triton, "max_tokens", "i") == 9


def test_a_template_that_refuses_or_never_ends_is_a_bad_request(triton: Triton, tmp_path: Path) -> None:
    folder = tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path)
    for template in (
        "{{ raise_exception('roles must alternate') }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    ):
        write_template(folder, template)
        with running(triton.address, tokenizer_dir=folder) as gateway, gateway.openai() as client:
            with pytest.raises(BadRequestError) as caught:
                client.chat.completions.create(model="ensemble", messages=USER)
            assert caught.value.param == "messages"
            assert "chat template failed" in caught.value.message


def test_without_any_template_chats_are_refused_and_completions_work(triton: Triton) -> None:
    with running(triton.address) as gateway, gateway.openai() as client:
        with pytest.raises(BadRequestError, match="chat template"):
            client.chat.completions.create(model="ensemble", messages=USER)
        assert client.completions.create(model="ensemble", prompt="x").choices[0].text == " Paris."


def test_a_server_that_applies_its_template_gets_one_user_message_as_it_is(triton: Triton, tokenizer_dir: Path) -> None:
    triton.behind("preprocessing", chat_template="true")
    with running(triton.address, tokenizer_dir=tokenizer_dir) as gateway, gateway.openai() as client:
        client.chat.completions.create(model="ensemble", messages=USER)
        assert triton.inputs()["text_input"][2][4:] == "Яблоко 🙂".encode(), "the template must not be applied twice"
        with pytest.raises(BadRequestError, match="one user message"):
            client.chat.completions.create(model="ensemble", messages=[*USER, *USER])


def test_logprobs_stand_beside_the_tokens_of_the_answer(triton: Triton, tokenizer_dir: Path) -> None:
    triton.answer(
        data("a", num_output_tokens=int32(1), output_log_probs=fp32(-0.5)),
        data("é", num_output_tokens=int32(2), output_log_probs=fp32(-0.25, -0.125)),
        data("", num_output_tokens=int32(1), output_log_probs=fp32(-0.0625)),  # the end token
        end(),
    )
    with running(triton.address, tokenizer_dir=tokenizer_dir) as gateway, gateway.openai() as client:
        chat = client.chat.completions.create(model="ensemble", messages=USER, logprobs=True, max_tokens=9)
        assert scalar(triton, "return_log_probs", "?") is True
        text = client.completions.create(model="ensemble", prompt="x", logprobs=0, max_tokens=9)
        chunks = list(client.completions.create(model="ensemble", prompt="x", logprobs=0, max_tokens=9, stream=True))
        client.completions.create(model="ensemble", prompt="x")
        assert scalar(triton, "return_log_probs", "?") is None
    assert chat.choices[0].logprobs is not None and chat.choices[0].logprobs.content is not None
    assert [(each.token, each.logprob) for each in chat.choices[0].logprobs.content] == [
        ("a", -0.5),
        ("é", -0.25),
        ("", -0.125),
    ]
    legacy = text.choices[0].logprobs
    assert legacy is not None
    assert legacy.tokens == ["a", "é", ""] and legacy.text_offset == [0, 1, 2]
    assert chunks[-1].choices[0].logprobs == legacy
    assert all(chunk.choices[0].logprobs is None for chunk in chunks[:-1])


@pytest.mark.parametrize(
    ("values", "status", "code"),
    [((-0.5,), 502, "logprobs_mismatch"), ((-0.5,) * 9, 502, "logprobs_mismatch"), ((0.0, 0.0, 0.0), 400, "unsupported_parameter")],
    ids=["too few", "too many", "all zero"],
)  # fmt: skip
def test_logprobs_that_mean_nothing_are_an_error_and_no_answer(
    triton: Triton, tokenizer_dir: Path, values: tuple[float, ...], status: int, code: str
) -> None:
    triton.answer(data("abc", num_output_tokens=int32(len(values)), output_log_probs=fp32(*values)), end())
    with running(triton.address, tokenizer_dir=tokenizer_dir) as gateway:
        body = {"model": "ensemble", "prompt": "x", "logprobs": 0, "max_tokens": len(values)}
        answer = gateway.post("/v1/completions", body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_logprobs_need_a_server_that_gives_them_and_a_tokenizer(triton: Triton, tokenizer_dir: Path) -> None:
    for outputs, folder, reason in (
        ((), tokenizer_dir, "from the server"),
        (triton.outputs["ensemble"], None, "tokenizer"),
    ):
        triton.outputs["ensemble"] = outputs
        with (
            running(triton.address, tokenizer_dir=folder) as gateway,
            gateway.openai() as client,
            pytest.raises(BadRequestError, match=reason),
        ):
            client.completions.create(model="ensemble", prompt="x", logprobs=0)
    assert not triton.received


@pytest.mark.parametrize(
    ("wanted", "kind", "guide"),
    [
        ({"type": "json_object"}, b"json", None),
        ({"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object", "title": "家"}, "strict": True}},
         b"json_schema", '{"type": "object", "title": "家"}'.encode()),
    ],
    ids=["object", "schema"],
)  # fmt: skip
def test_a_format_goes_to_guided_decoding_where_there_is_some(
    triton: Triton, tokenizer_dir: Path, wanted: Any, kind: bytes, guide: bytes | None
) -> None:
    triton.behind("tensorrt_llm", guided_decoding_backend="xgrammar")
    with running(triton.address, tokenizer_dir=tokenizer_dir) as gateway, gateway.openai() as client:
        client.chat.completions.create(model="ensemble", messages=USER, response_format=wanted)
    assert triton.inputs()["guided_decoding_guide_type"][2][4:] == kind
    given = triton.inputs().get("guided_decoding_guide")
    assert (None if given is None else given[2][4:]) == guide


@pytest.mark.parametrize("backend", ["", "${guided_decoding_backend}", None])
def test_a_format_is_refused_where_nothing_would_hold_the_answer_to_it(
    triton: Triton, tokenizer_dir: Path, backend: str | None
) -> None:
    if backend is not None:
        triton.behind("tensorrt_llm", guided_decoding_backend=backend)
    with running(triton.address, tokenizer_dir=tokenizer_dir) as gateway, gateway.openai() as client:
        with pytest.raises(BadRequestError) as caught:
            client.chat.completions.create(model="ensemble", messages=USER, response_format={"type": "json_object"})
        assert (caught.value.param, caught.value.code) == ("response_format", "unsupported_parameter")
        client.chat.completions.create(model="ensemble", messages=USER, response_format={"type": "text"})


@pytest.mark.parametrize("model", ["tensorrt_llm_bls", "tensorrt_llm"])
@pytest.mark.parametrize("stream", [False, True])
def test_other_variants_answer_alike(model: str, stream: bool, tokenizer_dir: Path) -> None:
    variant = "llmapi" if model == "tensorrt_llm" else "engine"
    with (
        running_mock(MockOptions(variant=variant, has_cumulative_bls=True)) as mock,
        running(mock.grpc, model=model, tokenizer_dir=tokenizer_dir) as gateway,
        gateway.openai() as client,
    ):
        answer: Any = client.completions.create(model=model, prompt="a b", max_tokens=24, stream=stream)
        text = "".join(c.choices[0].text for c in answer) if stream else answer.choices[0].text
    assert text == said(24)


def test_a_model_that_is_not_decoupled_streams_its_answer_as_one_piece() -> None:
    with (
        running_mock(MockOptions(is_decoupled=False)) as mock,
        running(mock.grpc) as gateway,
        gateway.openai() as client,
    ):
        chunks = list(client.completions.create(model="ensemble", prompt="x", max_tokens=5, stream=True))
    assert [chunk.choices[0].text for chunk in chunks] == [said(5), ""]


def test_tokens_that_the_server_does_not_count_are_counted_by_the_tokenizer_or_not_at_all(tokenizer_dir: Path) -> None:
    with running_mock(MockOptions(release="0.17")) as mock:
        with running(mock.grpc, tokenizer_dir=tokenizer_dir) as gateway, gateway.openai() as client:
            usage = client.completions.create(model="ensemble", prompt="abc", max_tokens=2).usage
            assert usage is not None
            assert (usage.prompt_tokens, usage.completion_tokens) == (3, len(said(2)))
        with running(mock.grpc) as gateway, gateway.openai() as client:
            assert client.completions.create(model="ensemble", prompt="abc", max_tokens=2).usage is None
            with pytest.raises(BadRequestError, match="does not count"):
                list(
                    client.completions.create(
                        model="ensemble", prompt="x", stream=True, stream_options={"include_usage": True}
                    )
                )


def test_an_end_that_the_server_does_not_explain_is_still_named(triton: Triton) -> None:
    with running(triton.address) as gateway, gateway.openai() as client:
        triton.answer(*tokens("a", "b"))
        assert (
            client.completions.create(model="ensemble", prompt="x", max_tokens=2).choices[0].finish_reason == "length"
        )
        assert client.completions.create(model="ensemble", prompt="x", max_tokens=3).choices[0].finish_reason == "stop"
        triton.answer(data("a"), data("b"), end())
        assert (
            client.completions.create(model="ensemble", prompt="x", max_tokens=2).choices[0].finish_reason == "length"
        )
