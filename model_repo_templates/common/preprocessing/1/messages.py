"""Reads a conversation out of a text: a JSON list of messages, each with a role and a content, as chat APIs have it."""

from __future__ import annotations

import json
from typing import Any

from serving import RequestError

EXAMPLE = '[{"role": "user", "content": "Hello"}]'


def read_messages(text: str) -> list[dict[str, Any]]:
    """Return the messages of a conversation. Keys beside role and content stay, since templates read some of them.

    Raises:
        RequestError: the text is no such list, or asks for nothing to be said.
    """
    try:
        messages = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"text_input must be a JSON list of messages such as {EXAMPLE}: {error}") from error
    if not isinstance(messages, list) or not messages:
        raise RequestError(f"text_input must be a JSON list of one or more messages such as {EXAMPLE}")
    for index, message in enumerate(messages):
        _check(index, message)
    if messages[-1]["role"] == "assistant":
        raise RequestError("the last message is the assistant's, so there is nothing to answer")
    return messages


def _check(index: int, message: Any) -> None:
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(role, str) or not role or "content" not in message:
        raise RequestError(f"message {index} needs a role and a content, e.g. {EXAMPLE[1:-1]}")
    content = message["content"]
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise RequestError(f"content of message {index} must be a text, null or a list of text parts")
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            raise RequestError(f"content of message {index} has a part of type {kind!r}; only text is supported")
