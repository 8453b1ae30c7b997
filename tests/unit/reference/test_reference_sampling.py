"""Which settings are allowed, and what they mean."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from trtbuild.reference.sampling import RequestError, SamplingParams

VOCAB_SIZE = 16


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("top_k", -1, ">= 0"),
        ("top_p", 0.0, "0 < top_p <= 1"),
        ("top_p", 2.0, "0 < top_p <= 1"),
        ("top_p", math.nan, "0 < top_p <= 1"),
        ("temperature", -0.1, ">= 0"),
        ("temperature", math.nan, ">= 0"),
        ("temperature", math.inf, ">= 0"),
        ("seed", -1, "2\\^64"),
        ("seed", 2**64, "2\\^64"),
        ("repetition_penalty", 0.0, "> 0"),
        ("repetition_penalty", math.nan, "> 0"),
        ("presence_penalty", math.inf, "finite"),
        ("frequency_penalty", math.nan, "finite"),
        ("min_tokens", -1, ">= 0"),
        ("end_id", 16, "0 to 15"),
        ("end_id", -2, "0 to 15"),
        ("stop_words", ((3,), ()), "leave it out"),
        ("stop_words", ((3, 16),), "0 to 15"),
        ("bad_words", ((-1,),), "0 to 15"),
    ],
)
def test_a_value_out_of_range_is_refused_with_field_and_range(field: str, value: Any, allowed: str) -> None:
    with pytest.raises(RequestError, match=f"{field}.*{allowed}"):
        SamplingParams(**{field: value}).validate(VOCAB_SIZE)


@pytest.mark.parametrize(
    ("bias", "problem"),
    [
        (np.zeros(15, np.float32), r"\[15\].*\[16\]"),
        (np.full(16, np.nan, np.float32), "NaN"),
        (np.full(16, np.inf, np.float32), "infinity"),
    ],
)
def test_a_bias_that_cannot_be_added_is_refused(bias: np.ndarray, problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        SamplingParams(embedding_bias=bias).validate(VOCAB_SIZE)


def test_values_at_the_edge_of_their_range_are_taken() -> None:
    SamplingParams(
        temperature=0.0,
        top_k=0,
        top_p=1.0,
        seed=2**64 - 1,
        repetition_penalty=1e-6,
        min_tokens=0,
        end_id=15,
        stop_words=((0, 15),),
        embedding_bias=np.full(16, -np.inf, np.float32),
    ).validate(VOCAB_SIZE)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.7, seed=5),
        SamplingParams(top_k=0, temperature=2.0),
        SamplingParams(top_k=1, top_p=0.9),
        SamplingParams(top_k=50, temperature=0.0),
    ],
)
def test_without_top_k_and_top_p_a_request_is_greedy_whatever_its_temperature(params: SamplingParams) -> None:
    assert params.is_greedy


@pytest.mark.parametrize(
    "params", [SamplingParams(top_k=2), SamplingParams(top_p=1.0), SamplingParams(top_k=0, top_p=0.5)]
)
def test_top_k_or_top_p_makes_a_request_sample(params: SamplingParams) -> None:
    assert not params.is_greedy and params.changes_choice


def test_only_settings_that_matter_leave_the_fast_path() -> None:
    assert not SamplingParams(temperature=0.5, seed=3, end_id=2, stop_words=((1, 2),)).changes_choice
    for params in (
        SamplingParams(presence_penalty=0.1),
        SamplingParams(min_tokens=1),
        SamplingParams(bad_words=((1,),)),
        SamplingParams(embedding_bias=np.zeros(16, np.float32)),
    ):
        assert params.changes_choice
