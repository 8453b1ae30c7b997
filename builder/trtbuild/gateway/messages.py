"""Messages of a chat: text from a few roles, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from trtbuild.gateway.errors import unsupported


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Types as JSON has them: no "1" for 1, no 1 for true."""


class Part(Strict, frozen=True, kw_only=True):
    """A part of a content."""

    type: Literal["text"]
    text: str


class Message(Strict, frozen=True, kw_only=True):
    """One message."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Part]
    name: str | None = None
    refusal: None = None


def without_nulls(messages: Any) -> Any:
    """Return messages without the fields that are null.

    Raises:
        ApiError: they hold tools or anything but text, which is refused by name.
    """
    if not isinstance(messages, list):
        return messages
    cleaned = [
        {name: value for name, value in each.items() if value is not None} if isinstance(each, dict) else each
        for each in messages
    ]
    for index, each in enumerate(cleaned):
        if isinstance(each, dict):
            _no_tools(each, index)
    return cleaned


def _no_tools(message: Mapping[str, Any], index: int) -> None:
    for name in ("tool_calls", "tool_call_id", "function_call"):
        if message.get(name):
            raise unsupported("tools are not available: the server gives text only", param=f"messages.{index}.{name}")
    if message.get("role") in ("tool", "function"):
        raise unsupported("tools are not available: the server gives text only", param=f"messages.{index}.role")
    parts = message.get("content")
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict) and isinstance(part.get("type"), str) and part["type"] != "text":
            raise unsupported(
                f"content of type '{part['type'][:32]}': only text is read", param=f"messages.{index}.content"
            )


def plain(message: Message) -> dict[str, str]:
    """Return a message as chat templates take it: its role, its text, its name if it has one."""
    content = message.content
    text = content if isinstance(content, str) else "".join(part.text for part in content)
    # "developer" is what newer models of OpenAI call the system; templates know the old name.
    role = "system" if message.role == "developer" else message.role
    return {"role": role, "content": text, **({"name": message.name} if message.name else {})}
