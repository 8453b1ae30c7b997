"""Models with a tokenizer of 256 bytes, so that a text has as many tokens as UTF-8 bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trtbuild.source import SourceCheckpoint

#: ChatML with every byte a token; refuses the role "nobody".
CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'nobody' %}{{ raise_exception('who is nobody?') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture
def byte_model(make_model: Callable[..., Path]) -> Callable[..., SourceCheckpoint]:
    """Return a function that makes a model with a byte-level tokenizer; its keyword arguments go into tokenizer_config.json."""

    def make(**settings: Any) -> SourceCheckpoint:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers

        folder = make_model(vocab_size=256)
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.save(str(folder / "tokenizer.json"))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **settings}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        return SourceCheckpoint.open(folder)

    return make


@pytest.fixture
def source(byte_model: Callable[..., SourceCheckpoint]) -> SourceCheckpoint:
    """A model with a byte-level tokenizer and no chat template."""
    return byte_model()
