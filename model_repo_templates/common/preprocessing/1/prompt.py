"""From a text to the ids of a prompt.

Special tokens written out in a text are recognized, as they are everywhere in Hugging Face transformers: a client that
applies a chat template itself depends on it. BOS comes once, whoever adds it.
"""

from __future__ import annotations

from typing import Any


class PromptEncoder:
    """Encodes prompts with one tokenizer.

    Args:
        tokenizer: a transformers tokenizer.
        add_special_tokens: put BOS and the like in front, as the tokenizer is configured to.
    """

    def __init__(self, tokenizer: Any, *, add_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._add_special_tokens = add_special_tokens
        self._bos = tokenizer.bos_token_id
        self._adds_bos = (
            add_special_tokens and self._bos is not None and self._ids("a", special=True)[:1] == [self._bos]
        )

    def plain(self, text: str) -> list[int]:
        """Return the ids of a prompt that is used as it is."""
        ids = self._ids(text, special=self._add_special_tokens)
        return ids[1:] if self._adds_bos and ids[:2] == [self._bos, self._bos] else ids

    def templated(self, text: str) -> list[int]:
        """Return the ids of what a chat template made; the template's own special tokens are all there are, but BOS."""
        ids = self._ids(text, special=False)
        return [self._bos, *ids] if self._adds_bos and ids[:1] != [self._bos] else ids

    def word(self, text: str) -> list[int]:
        """Return the ids of a word, without special tokens added to it."""
        return self._ids(text, special=False)

    def _ids(self, text: str, *, special: bool) -> list[int]:
        return [int(token_id) for token_id in self._tokenizer(text, add_special_tokens=special)["input_ids"]]
