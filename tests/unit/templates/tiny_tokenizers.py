"""Three tiny real tokenizers: byte-level, metaspace with byte fallback, and byte-level that puts BOS in front."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

#: Words of the metaspace vocabulary that are one token.
METASPACE_WORDS = ("▁", "▁Deep", "▁learning", "▁is", "▁fun", "▁STOP", "STOP", ",", ".")


def byte_level(*, adds_bos: bool = False) -> Tokenizer:
    """Return 256 byte tokens (ids in the order of the alphabet), then <s>, </s>, <tool>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>", "<tool>"])
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    return tokenizer


def metaspace() -> Tokenizer:
    """Return <unk>, <s>, </s>, 256 byte tokens and the words; a text begins with a space that is taken off again."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *METASPACE_WORDS]
    vocab = {name: index for index, name in enumerate(names)}
    vocab |= {letter: len(vocab) + index for index, letter in enumerate(_letters())}
    merges = [pair for word in METASPACE_WORDS for pair in _merges(word, vocab)]
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab, merges=list(dict.fromkeys(merges)), unk_token="<unk>", byte_fallback=True, fuse_unk=True
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path, **config: Any) -> Path:
    """Write a tokenizer as a Hugging Face folder; `config` goes into tokenizer_config.json, None leaves a key out."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    entries = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", **config}
    given = {key: value for key, value in entries.items() if value is not None}
    (folder / "tokenizer_config.json").write_text(json.dumps(given), encoding="utf-8")
    return folder


def byte_ids(text: str | bytes) -> list[int]:
    """Return the ids of a text under `byte_level`, worked out without it."""
    data = text.encode() if isinstance(text, str) else text
    return [_BYTE_IDS[byte] for byte in data]


def _byte_symbols() -> dict[str, int]:
    """Return GPT-2's symbol -> byte table: printable bytes stand for themselves, the others follow from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + index): byte for index, byte in enumerate(others)}


#: Symbol of a byte in a byte-level vocabulary -> the byte.
BYTE_SYMBOLS = _byte_symbols()
_BYTE_IDS = {BYTE_SYMBOLS[symbol]: index for index, symbol in enumerate(sorted(BYTE_SYMBOLS))}


def _letters() -> list[str]:
    """Return the beginnings of the words, which merges need, without the words themselves."""
    parts = {word[:size] for word in METASPACE_WORDS for size in range(1, len(word))}
    return sorted((parts | {letter for word in METASPACE_WORDS for letter in word}) - set(METASPACE_WORDS))


def _merges(word: str, vocab: dict[str, int]) -> list[tuple[str, str]]:
    return [(word[:size], word[size]) for size in range(1, len(word)) if word[: size + 1] in vocab]
