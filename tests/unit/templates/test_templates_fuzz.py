"""Any tokens, cut anyhow, through the models themselves: the streamed text is the text of the whole answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.templates import triton_stub
from tests.unit.templates.fake_core import Core
from transformers import AutoTokenizer

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd"), max_size=30)
CUTS = st.lists(st.integers(1, 6), min_size=1, max_size=5)
WORDS = st.lists(st.sampled_from(["a", "ab", "\n", "é", "STOP", " is", "🙂"]), max_size=3)
#: A model is loaded once and serves all examples, as in a server; a name of its own keeps each stream apart.
ONE_MODEL = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
NUMBERS = iter(range(10**9))


@pytest.fixture(params=["byte", "metaspace", "bos"])
def folder(request: pytest.FixtureRequest, tokenizers: dict[str, Path]) -> Path:
    return tokenizers[request.param]


def pieces_of(ids: list[int], cuts: list[int]) -> list[list[int]]:
    pieces, position, turn = [], 0, 0
    while position < len(ids):
        pieces.append(ids[position : position + cuts[turn % len(cuts)]])
        position, turn = position + cuts[turn % len(cuts)], turn + 1
    return pieces


def text_of(model: Any, ids: list[int], name: str) -> str:
    request = triton_stub.request(
        {"TOKENS_BATCH": np.array([[ids]], np.int32).reshape(1, 1, len(ids)), "SEQUENCE_LENGTH": [[len(ids)]]}, name
    )
    [response] = model.execute([request])
    return str(response.values()["OUTPUT"][0][0])


def test_postprocessing_streams_the_text_of_the_whole(postprocessing: Callable[..., Any], folder: Path) -> None:
    model, tokenizer = postprocessing(folder), AutoTokenizer.from_pretrained(folder)

    @ONE_MODEL
    @given(text=TEXTS, cuts=CUTS)
    def check(text: str, cuts: list[int]) -> None:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        name = f"stream {next(NUMBERS)}"
        deltas = [text_of(model, piece, name) for piece in pieces_of(ids, cuts)]
        whole = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert "".join(deltas) == whole
        assert not any("\ufffd" in delta for delta in deltas)

    check()


def test_bls_streams_the_text_up_to_the_first_stop_word(
    shipped: Callable[..., SimpleNamespace],
    preprocessing: Callable[..., Any],
    postprocessing: Callable[..., Any],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, after, tokenizer = preprocessing(folder), postprocessing(folder), AutoTokenizer.from_pretrained(folder)
    model = shipped("tensorrt_llm_bls").model.TritonPythonModel()
    model.initialize(triton_stub.arguments({"cancellation_check_period_ms": "1000"}, outputs=["text_output"]))

    @ONE_MODEL
    @given(text=TEXTS, cuts=CUTS, words=WORDS)
    def check(text: str, cuts: list[int], words: list[str]) -> None:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        models = {
            "preprocessing": lambda request, decoupled: before.execute([request])[0],
            "postprocessing": lambda request, decoupled: after.execute([request])[0],
            "tensorrt_llm": Core(pieces_of(ids, cuts)),
        }
        for name, answer in models.items():
            monkeypatch.setitem(triton_stub.MODELS, name, answer)
        given_words = {"stop_words": [words]} if words else {}
        request = triton_stub.request({"text_input": [["x"]], "max_tokens": [[8]], "stream": [[True]], **given_words})
        model.execute([request])
        responses = request.sender.responses
        assert not any(response.has_error() for response in responses)
        whole = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        ends = [(at + len(word), at) for word in words if (at := whole.find(word)) >= 0]
        expected = whole[: min(end for _, end in [min(ends)])] if ends else whole
        assert "".join(response.values()["text_output"][0][0] for response in responses) == expected

    try:
        check()
    finally:
        model.finalize()
