"""From a text to the ids of a prompt, and which ids end an answer.

Special tokens written out in a text are recognized, as they are everywhere in Hugging Face transformers: a client that
applies a chat template itself depends on it. BOS comes once, whoever adds it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def end_ids(tokenizer: Any, folder: Path) -> list[int]:
    """Return the ids that end an answer, the one to use as `end_id` first.

    generation_config.json wins over config.json, which wins over the tokenizer, since a chat model's real end of turn
    is often named in the first only. The tokenizer's own comes first if it is among them.

    Raises:
        ValueError: nothing names one; generation would always run to its limit.
    """
    own = tokenizer.eos_token_id
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        named = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.is_file() else None
        if named is not None:
            ids = [int(token_id) for token_id in (named if isinstance(named, list) else [named])]
            return list(dict.fromkeys([own, *ids] if own in ids else ids))
    if own is None:
        raise ValueError(
            f"no end-of-sequence id in {folder}: neither generation_config.json nor the tokenizer names one"
        )
    return [int(own)]


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
