"""Word lists: from the words of a request to the [B, 2, N] tensors of TensorRT-LLM.

Row 0 holds the ids of all words one after the other, padded with 0; row 1 the end offset of each word, padded with -1.
Source: https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.0/triton_backend/all_models/inflight_batcher_llm (to_word_list_format)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

Encode = Callable[[str], list[int]]

#: Texts a word can follow without melting into it. A tokenizer that marks the start of a text (metaspace) encodes a
#: word differently there than in the middle of an answer, which is where it has to match.
_ANCHORS = ("\n", "0", "!", "x")


def word_ids(words: Iterable[str], encode: Encode) -> list[list[int]]:
    """Return the token sequences that spell the words, without repeats; an empty word spells nothing.

    Args:
        words: the words.
        encode: text to ids without special tokens.
    """
    sequences = [ids for word in words if word for ids in (encode(word), _ids_inside_text(word, encode)) if ids]
    return unique(sequences)


def unique(sequences: Iterable[Sequence[int]]) -> list[list[int]]:
    """Return the sequences in their order, each once."""
    return [list(ids) for ids in dict.fromkeys(tuple(ids) for ids in sequences)]


def word_list_tensor(rows: Sequence[Sequence[Sequence[int]]]) -> np.ndarray[Any, Any]:
    """Return the word lists of a batch as int32 [B, 2, N], N being the longest row and 0 when no row has a word."""
    length = max((max(sum(map(len, row)), len(row)) for row in rows), default=0)
    tensor = np.zeros((len(rows), 2, length), dtype=np.int32)
    tensor[:, 1, :] = -1
    for index, row in enumerate(rows):
        flat = [token_id for ids in row for token_id in ids]
        tensor[index, 0, : len(flat)] = flat
        tensor[index, 1, : len(row)] = np.cumsum([len(ids) for ids in row])
    return tensor


def embedding_bias(
    rows: Sequence[tuple[Sequence[str], Sequence[float]]], encode: Encode, vocab_size: int
) -> np.ndarray[Any, Any]:
    """Return float32 [B, vocab_size]: the weight of a word, added to every token that spells it."""
    bias = np.zeros((len(rows), vocab_size), dtype=np.float32)
    for index, (words, weights) in enumerate(rows):
        for word, weight in zip(words, weights, strict=True):
            bias[index, sorted(set(encode(word)))] += weight
    return bias


def _ids_inside_text(word: str, encode: Encode) -> list[int]:
    """Return the ids of a word as it stands behind other text."""
    for anchor in _ANCHORS:
        before, together = encode(anchor), encode(anchor + word)
        if together[: len(before)] == before:
            return together[len(before) :]
    return []
