"""What `chat` sends, by what the server says about its chat template."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.client.fake_triton import FakeTriton, Model

from trtbuild_client import Client, InvalidRequest

USER = {"role": "user", "content": "hé"}
TURNS = [{"role": "system", "content": "S"}, USER, {"role": "assistant", "content": None, "tool_calls": []}, USER]


def serve(triton: FakeTriton, model: str, chat_template: str | None) -> None:
    """Let the server have a model around a preprocessing with this parameter."""
    triton.models[model] = Model(steps=("preprocessing",) if model == "ensemble" else ())
    triton.scripts[model] = triton.scripts["ensemble"]
    triton.models["preprocessing"] = Model(
        {}, parameters={} if chat_template is None else {"chat_template": chat_template}
    )


def sent(triton: FakeTriton) -> str:
    """Return the prompt of the last request."""
    return triton.inputs()["text_input"][2][4:].decode()


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_a_server_that_takes_messages_gets_them_as_json(
    triton: FakeTriton, connect: Callable[..., Client], model: str
) -> None:
    serve(triton, model, "messages")
    client = connect(model)
    client.chat(TURNS)
    assert json.loads(sent(triton)) == TURNS
    assert "hé" in sent(triton)
    assert "".join(chunk.text for chunk in client.stream(client.chat_prompt([USER]))) == " Paris."
    assert json.loads(sent(triton)) == [USER]


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_a_server_that_takes_one_user_message_gets_its_text(
    triton: FakeTriton, connect: Callable[..., Client], model: str
) -> None:
    serve(triton, model, "true")
    connect(model).chat([USER])
    assert sent(triton) == "hé"
    with pytest.raises(InvalidRequest, match=r"4 message\(s\) \(system, user, assistant, user\)"):
        connect(model).chat(TURNS)


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
@pytest.mark.parametrize("chat_template", [None, "false"])
def test_a_server_without_a_template_is_not_sent_a_chat(
    triton: FakeTriton, connect: Callable[..., Client], model: str, chat_template: str | None
) -> None:
    serve(triton, model, chat_template)
    with pytest.raises(InvalidRequest, match="nothing says that the server applies a chat template"):
        connect(model).chat([USER])
    assert triton.received == []
    connect(model).chat([USER], template="messages")
    assert json.loads(sent(triton)) == [USER]


def test_a_server_without_preprocessing_has_no_template(triton: FakeTriton, connect: Callable[..., Client]) -> None:
    with pytest.raises(InvalidRequest, match="nothing says"):
        connect().chat([USER])


@pytest.mark.parametrize("wrong", [[{"role": "user", "content": {1}}], [{"role": "user", "content": float("nan")}]])
def test_what_is_no_json_is_not_sent(
    triton: FakeTriton, connect: Callable[..., Client], wrong: list[dict[str, Any]]
) -> None:
    with pytest.raises(InvalidRequest, match="cannot be sent as JSON"):
        connect().chat(wrong, template="messages")
