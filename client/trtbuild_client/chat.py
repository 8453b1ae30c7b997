"""From the messages of a chat to the text that a server takes: made by a chat template here, or left to the server's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

from trtbuild_client.errors import InvalidRequest
from trtbuild_client.wire import ModelInfo

#: With `role` and `content`.
Message = Mapping[str, Any]
#: Makes one text of messages, as a chat template does; for transformers:
#: `lambda messages: tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)`.
ChatTemplate = Callable[[Sequence[Message]], str]
#: What a server's own template takes: a JSON list of messages, the text of one user message, or it has none.
ServerTemplate = Literal["messages", "user", "none"]

#: Value of the parameter `chat_template` (serving.chat_template of trtbuild.yaml) -> what the server takes.
_TAKES: dict[str, ServerTemplate] = {"messages": "messages", "true": "user"}
_FUNCTION = "such as a tokenizer's apply_chat_template with tokenize=False and add_generation_prompt=True"


def template_models(info: ModelInfo) -> tuple[str, ...]:
    """Return the models that can have the chat template: the steps of an ensemble; for others the one that tensorrt_llm_bls calls."""
    return info.steps or ("preprocessing",)


def server_template(models: Iterable[ModelInfo]) -> ServerTemplate:
    """Return what the first of these models with a chat template takes."""
    values = (model.parameters.get("chat_template", "").strip().lower() for model in models)
    return next((_TAKES[value] for value in values if value in _TAKES), "none")


def prompt_of(messages: Sequence[Message], template: ChatTemplate | ServerTemplate) -> str:
    """Return the text to send.

    Args:
        messages: each with `role` and `content`, in order.
        template: makes one text of them, or what the server's own template takes.

    Raises:
        InvalidRequest: the messages are none, or are not what the template takes.
    """
    if isinstance(messages, str) or not messages:
        raise InvalidRequest(f"messages={messages!r:.80}", hint="Give a list of {'role': ..., 'content': ...}.")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or "content" not in message:
            raise InvalidRequest(f"message {index} is {message!r:.80}", hint="It needs 'role', a text, and 'content'.")
    if callable(template):
        return _templated(messages, template)
    if template not in get_args(ServerTemplate):
        known = ", ".join(map(repr, get_args(ServerTemplate)))
        raise InvalidRequest(f"template={template!r}", hint=f"It must be a function, or one of {known}.")
    return _AS_TAKEN[template](messages)


def _templated(messages: Sequence[Message], template: ChatTemplate) -> str:
    for index, message in enumerate(messages):
        if not isinstance(message["content"], str):
            raise InvalidRequest(
                f"message {index} is {message!r:.80}", hint="A template here takes texts as 'content'."
            )
    text = template(messages)
    if not isinstance(text, str):
        raise InvalidRequest(
            f"the chat template gave {type(text).__name__}", hint="It must give str (for transformers: tokenize=False)."
        )
    return text


def _as_json(messages: Sequence[Message]) -> str:
    try:
        return json.dumps([dict(message) for message in messages], ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"the messages cannot be sent as JSON: {error}", hint="Use texts, numbers, lists and dicts.") from error  # fmt: skip


def _one_user_message(messages: Sequence[Message]) -> str:
    if len(messages) == 1 and messages[0]["role"] == "user" and isinstance(messages[0]["content"], str):
        return messages[0]["content"]
    raise InvalidRequest(
        f"{_described(messages)}, and the server's chat template takes the text of one user message (serving.chat_template: true)",
        hint=f"Serve the model with serving.chat_template: messages, or pass template=, {_FUNCTION}.",
    )


def _refuse(messages: Sequence[Message]) -> str:
    raise InvalidRequest(
        f"{_described(messages)}, and nothing says that the server applies a chat template",
        hint=f"Pass template=, {_FUNCTION}; or serve the model with serving.chat_template: messages. template='messages' sends JSON all the same.",
    )


def _described(messages: Sequence[Message]) -> str:
    return f"{len(messages)} message(s) ({', '.join(message['role'] for message in messages)})"


_AS_TAKEN: dict[ServerTemplate, Callable[[Sequence[Message]], str]] = {
    "messages": _as_json,
    "user": _one_user_message,
    "none": _refuse,
}
