"""From the messages of a chat to the prompt of a model that takes text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from trtbuild_client.errors import InvalidRequest

Message = Mapping[str, str]
#: Makes one text of messages, as a chat template does; for transformers:
#: `lambda messages: tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)`.
ChatTemplate = Callable[[Sequence[Message]], str]


def prompt_of(messages: Sequence[Message], template: ChatTemplate | None) -> str:
    """Return the text to send.

    Args:
        messages: each with `role` and `content`, in order.
        template: None leaves the template to the server, which knows it for one user message only (`serving.chat_template`).

    Raises:
        InvalidRequest: the messages are none, or need a template that is not there.
    """
    if isinstance(messages, str) or not messages:
        raise InvalidRequest(f"messages={messages!r:.80}", hint="Give a list of {'role': ..., 'content': ...}.")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not all(
            isinstance(message.get(key), str) for key in ("role", "content")
        ):
            raise InvalidRequest(f"message {index} is {message!r:.80}", hint="It needs the texts 'role' and 'content'.")
    if template is not None:
        text = template(messages)
        if not isinstance(text, str):
            raise InvalidRequest(
                f"the chat template gave {type(text).__name__}",
                hint="It must give str (for transformers: tokenize=False).",
            )
        return text
    if len(messages) == 1 and messages[0]["role"] == "user":
        return messages[0]["content"]
    roles = ", ".join(message["role"] for message in messages)
    raise InvalidRequest(
        f"{len(messages)} messages ({roles}) need a chat template here: the server's own takes one user message",
        hint="Pass template=, such as a tokenizer's apply_chat_template with tokenize=False and add_generation_prompt=True.",
    )
