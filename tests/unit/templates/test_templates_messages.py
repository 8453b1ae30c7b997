"""Conversations: a JSON list of messages as `text_input` becomes the prompt that transformers makes of it, or a clear error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.templates import triton_stub
from tests.unit.templates.tiny_tokenizers import byte_ids, byte_level, save

TEMPLATE = "{{ bos_token }}{% for m in messages %}<{{ m.role }}:{{ m.name or '' }}>{{ m.content }}{% endfor %}>"
USER = {"role": "user", "content": "hé 家"}
BOS = 256


@pytest.fixture
def ask(preprocessing: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Return a function that sends a text to preprocessing and returns its response."""

    def ask(text: str, **parameters: str) -> Any:
        folder = save(byte_level(adds_bos=True), tmp_path / "tokenizer", chat_template=TEMPLATE)
        model = preprocessing(folder, chat_template="messages", max_seq_len="400", **parameters)
        [response] = model.execute([triton_stub.request({"QUERY": [[text]], "REQUEST_OUTPUT_LEN": [[8]]})])
        return response

    return ask


def prompt(response: Any) -> list[int]:
    assert not response.has_error(), response.error().message()
    return list(response.values()["INPUT_ID"][0])


def test_a_conversation_becomes_one_prompt_with_one_beginning(ask: Callable[..., Any]) -> None:
    turns = [USER, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "why?", "name": "Ada"}]
    expected = "<user:>hé 家<assistant:>yes<user:Ada>why?>"
    assert prompt(ask(json.dumps(turns))) == [BOS, *byte_ids(expected)]


def test_the_system_prompt_comes_first_unless_the_conversation_has_its_own(ask: Callable[..., Any]) -> None:
    own = {"role": "system", "content": "mine"}
    assert prompt(ask(json.dumps([USER]), system_prompt="S")) == [BOS, *byte_ids("<system:>S<user:>hé 家>")]
    assert prompt(ask(json.dumps([own, USER]), system_prompt="S")) == [BOS, *byte_ids("<system:>mine<user:>hé 家>")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Hello", "must be a JSON list of messages such as"),
        ("", "must be a JSON list of messages such as"),
        ("[" * 100_000, "must be a JSON list of messages such as"),
        ("[]", "one or more messages"),
        ('{"role": "user", "content": "x"}', "one or more messages"),
        ("[3]", "message 0 needs a role and a content"),
        ('[{"role": "user"}]', "message 0 needs a role and a content"),
        ('[{"role": 1, "content": "x"}]', "message 0 needs a role and a content"),
        ('[{"role": "user", "content": 5}]', "content of message 0 must be a text, null or a list"),
        (
            '[{"role": "user", "content": [{"type": "image_url"}]}]',
            "a part of type 'image_url'; only text is supported",
        ),
        ('[{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]', "nothing to answer"),
    ],
)
def test_what_is_no_conversation_is_an_error_that_shows_one(ask: Callable[..., Any], text: str, message: str) -> None:
    error = ask(text).error()
    assert message in error.message()
    assert error.code() == triton_stub.TritonError.INVALID_ARG


def test_null_and_text_parts_reach_the_template(ask: Callable[..., Any]) -> None:
    parts = [{"role": "tool", "content": None}, {"role": "user", "content": [{"type": "text", "text": "x"}]}]
    assert prompt(ask(json.dumps(parts))) == [BOS, *byte_ids("<tool:>None<user:>[{'type': 'text', 'text': 'x'}]>")]
