"""Numbers that no core must get: refused by both ways in, with the input, its value and what is allowed (field report CL19)."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.unit.templates import triton_stub

from trtbuild.repo.signatures import CHECKED

INT32_MAX = 2**31 - 1
#: (inputs of a request, what the error says)
BAD: list[tuple[dict[str, Any], str]] = [
    ({"temperature": math.nan}, "temperature is nan, need a finite number, at least 0"),
    ({"temperature": -0.5}, "temperature is -0.5, need a finite number, at least 0"),
    ({"temperature": math.inf}, "temperature is inf, need a finite number, at least 0"),
    ({"top_p": 2.0}, "top_p is 2.0, need a finite number, more than 0, at most 1"),
    ({"top_p": 0.0}, "top_p is 0.0, need a finite number, more than 0, at most 1"),
    ({"top_p": math.nan}, "top_p is nan, need a finite number, more than 0, at most 1"),
    ({"top_k": -1}, "top_k is -1, need a finite number, at least 0"),
    ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0, need a finite number, more than 0"),
    ({"repetition_penalty": -1.0}, "repetition_penalty is -1.0, need a finite number, more than 0"),
    ({"presence_penalty": math.nan}, "presence_penalty is nan, need a finite number"),
    ({"frequency_penalty": -math.inf}, "frequency_penalty is -inf, need a finite number"),
    ({"length_penalty": -1.0}, "length_penalty is -1.0, need a finite number, at least 0"),
    ({"beam_width": 0}, "beam_width is 0, need a finite number, at least 1, at most 1024"),
    ({"beam_width": INT32_MAX}, f"beam_width is {INT32_MAX}, need a finite number, at least 1, at most 1024"),
    ({"num_return_sequences": 0}, "num_return_sequences is 0, need a finite number, at least 1, at most 1024"),
    (
        {"num_return_sequences": 3, "beam_width": 2},
        "num_return_sequences is 3, more than beam_width, which is 2",
    ),
    ({"min_tokens": -1}, "min_tokens is -1, need a finite number, at least 0"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens is 9, more than max_tokens, which is 8"),
    ({"max_tokens": 0}, "max_tokens is 0, need a finite number, at least 1"),
    ({"max_tokens": -3}, "max_tokens is -3, need a finite number, at least 1"),
    ({"max_tokens": INT32_MAX}, f"max_tokens is {INT32_MAX}, need at most {INT32_MAX - 1} behind 1 tokens"),
    ({"end_id": -2}, "end_id is -2, need a token id from 0 to "),
    ({"pad_id": 10**6}, "pad_id is 1000000, need a token id from 0 to "),
]
#: The extremes that are allowed.
GOOD: list[dict[str, Any]] = [
    {"temperature": 0.0, "top_p": 1.0, "top_k": 0},
    {"repetition_penalty": 1e-3, "presence_penalty": -2.0, "frequency_penalty": -2.0, "length_penalty": 0.0},
    {"beam_width": 1, "num_return_sequences": 1, "min_tokens": 8, "max_tokens": 8, "end_id": -1, "pad_id": -1},
]
_TO_PREPROCESSING = {"max_tokens": "REQUEST_OUTPUT_LEN", "end_id": "END_ID", "pad_id": "PAD_ID"}


def tensors(values: dict[str, Any]) -> dict[str, Any]:
    """Return numbers as one row of their types on the wire."""
    return {name: np.array([[value]], np.float32 if isinstance(value, float) else np.int32) for name, value in values.items()}  # fmt: skip


def error_of_preprocessing(model: Any, values: dict[str, Any]) -> Any:
    """Return the error of one request beside a good one, which is answered; None if it is answered, too."""
    given = {_TO_PREPROCESSING.get(name, name): array for name, array in tensors(values).items()}
    plain = {"QUERY": [["a"]], "REQUEST_OUTPUT_LEN": np.array([[8]], np.int32)}
    asked, other = model.execute([triton_stub.request({**plain, **given}), triton_stub.request(plain)])
    assert not other.has_error()
    return asked.error().message() if asked.has_error() else None


@pytest.mark.parametrize(("values", "message"), BAD)
def test_preprocessing_refuses_it_for_the_ensemble(
    preprocessing: Callable[..., Any], tokenizers: dict[str, Path], values: dict[str, Any], message: str
) -> None:
    assert str(error_of_preprocessing(preprocessing(tokenizers["byte"]), values)).startswith(message)


@pytest.mark.parametrize("values", GOOD)
def test_preprocessing_lets_the_extremes_through(
    preprocessing: Callable[..., Any], tokenizers: dict[str, Path], values: dict[str, Any]
) -> None:
    assert error_of_preprocessing(preprocessing(tokenizers["byte"]), values) is None


def test_every_row_of_a_batch_is_looked_at(preprocessing: Callable[..., Any], tokenizers: dict[str, Path]) -> None:
    request = triton_stub.request({"QUERY": [["a"], ["b"]], "REQUEST_OUTPUT_LEN": [[8], [8]], "min_tokens": [[8], [9]]})
    [response] = preprocessing(tokenizers["byte"]).execute([request])
    assert response.error().message() == "min_tokens is 9, more than max_tokens, which is 8"


def test_the_ensemble_hands_preprocessing_every_number_that_has_a_range(
    shipped: Callable[[str], SimpleNamespace],
) -> None:
    limits = shipped("preprocessing").limits.LIMITS
    assert {*CHECKED, "max_tokens"} == set(limits)
