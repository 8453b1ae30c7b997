"""Cutting a text at stop words, however the text comes in pieces."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 100])
@pytest.mark.parametrize(
    ("words", "text", "left"),
    [
        (["STOP"], "a STSTOP b", "a ST"),
        (["abcd", "bc"], "xabcd", "xa"),
        (["aab"], "aaab", "a"),
        (["\n\n"], "one\ntwo\n\nthree", "one\ntwo"),
        (["</s>", "</"], "x</s>", "x"),
        (["never"], "nev neve never", "nev neve "),
        ([], "anything", "anything"),
        (["é"], "caf\u0065\u0301 é", "caf\u0065\u0301 "),
    ],
)
def test_the_first_complete_word_counts_however_the_text_is_cut(
    shipped: Callable[[str], SimpleNamespace], words: list[str], text: str, left: str, cut: int
) -> None:
    stop = shipped("tensorrt_llm_bls").stop_text.StopText(words)
    out = "".join(stop.push(text[start : start + cut]) for start in range(0, len(text), cut)) + stop.finish()
    assert out == left
