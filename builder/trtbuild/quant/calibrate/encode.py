"""Texts and chats to token ids, with the model's own tokenizer and chat template; loaded when the first one is encoded.

Never a network call, never remote code: the tokenizer comes from the model folder, and its template runs in Jinja's sandbox.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from trtbuild.errors import Lacking, TrtbuildError
from trtbuild.quant.calibrate.libraries import transformers
from trtbuild.source import TOKENIZER_ANY, SourceCheckpoint


def require_tokenizer(source: SourceCheckpoint, purpose: str) -> None:
    """Raise unless the folder holds a tokenizer.

    Args:
        source: the model folder.
        purpose: what the texts are for, in the message.

    Raises:
        Lacking: it holds none.
    """
    if not any((source.path / name).is_file() for name in TOKENIZER_ANY):
        raise Lacking(
            f"{source.path} has no tokenizer, and {purpose} texts must be tokenized",
            hint="add the tokenizer files, or give token ids: a safetensors file with `input_ids`",
        )


class Encoder:
    """Turns samples of one model into token ids.

    Args:
        source: the model folder.
        purpose: what the samples are for, in messages.
    """

    def __init__(self, source: SourceCheckpoint, purpose: str) -> None:
        self._source = source
        self._purpose = purpose

    def text(self, text: str, *, where: str = "a text") -> list[int]:
        """Return the ids of a text, with the special tokens that the tokenizer adds; none for a blank text.

        Args:
            text: any.
            where: file and line, for errors.

        Raises:
            TrtbuildError: there is no tokenizer, it cannot be loaded, or the text is no Unicode text.
        """
        return self._ids(text, where=where) if text.strip() else []

    def chat(self, messages: list[Any], *, where: str) -> list[int]:
        """Return the ids of a conversation as the model's chat template writes it, without a prompt for one more answer.

        Args:
            messages: objects with "role" and "content", both texts; other keys are the template's business.
            where: file and line, for errors.

        Raises:
            TrtbuildError: a message is malformed, there is no template, or it refuses the conversation.
        """
        for number, message in enumerate(messages):
            if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in _MESSAGE_KEYS):
                raise TrtbuildError(
                    f'{where}: message {number} of the chat has no "role" and "content" that are texts',
                    hint='{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}',
                )
        tokenizer = self._tokenizer
        if not tokenizer.chat_template:
            raise TrtbuildError(
                f"{where} is a chat, and the tokenizer of {self._source.path} has no chat template",
                hint='add chat_template to tokenizer_config.json, or give rendered texts: {"text": "…"}',
            )
        from jinja2.exceptions import TemplateError

        try:
            text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=False)
        except (TemplateError, *_RAISED_BY_TEMPLATES) as error:
            raise TrtbuildError(
                f"{where}: the model's chat template refuses the chat: {error}",
                hint="many templates want user and assistant in turns, and a system message only in front",
            ) from error
        # The template writes the special tokens itself: adding them again would double the first one.
        return self._ids(text, where=where, add_special_tokens=False)

    def _ids(self, text: str, *, where: str, **options: bool) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:  # JSON can spell half of a surrogate pair
            raise TrtbuildError(f"{where} is no Unicode text: {error.reason}", hint="repair the text") from error
        ids: list[int] = self._tokenizer(text, **options)["input_ids"]
        return ids

    @cached_property
    def _tokenizer(self) -> Any:  # Any: tokenizer classes of transformers share no typed base
        require_tokenizer(self._source, self._purpose)
        try:
            return transformers().AutoTokenizer.from_pretrained(
                self._source.path, local_files_only=True, trust_remote_code=False
            )
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise TrtbuildError(
                f"{self._source.path}: the tokenizer cannot be loaded: {error}", hint="check the tokenizer files"
            ) from error


_MESSAGE_KEYS = ("role", "content")
#: What an expression in a template can end with, besides Jinja's own errors.
_RAISED_BY_TEMPLATES = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError)
