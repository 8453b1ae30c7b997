"""The choice of one token, compared with an oracle that works on plain lists in float64."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trtbuild.reference.choose import TokenCounts, adjust, choose, log_probability, uniform
from trtbuild.reference.sampling import RequestError, SamplingParams

SIZE = 12
LOGITS = st.lists(st.integers(-40, 40).map(lambda value: value / 8), min_size=SIZE, max_size=SIZE)
IDS = st.lists(st.integers(0, SIZE - 1), max_size=6)


def adjusted(logits: list[float], params: SamplingParams, prompt: list[int], answer: list[int]) -> torch.Tensor:
    counts = TokenCounts(prompt, SIZE) if params.has_penalties else None
    for token in answer if counts is not None else []:
        counts.add(token)
    return adjust(torch.tensor(logits), params, prompt=prompt, answer=answer, counts=counts)


@given(LOGITS, IDS.filter(bool), IDS, st.sampled_from([0.5, 1.0, 2.0]), st.sampled_from([0.8, 1.0, 1.5]))
def test_penalties_follow_tensorrt_llms_order(
    logits: list[float], prompt: list[int], answer: list[int], temperature: float, repetition: float
) -> None:
    params = SamplingParams(
        temperature=temperature,
        repetition_penalty=repetition,
        presence_penalty=0.25,
        frequency_penalty=-0.5,
        embedding_bias=np.arange(SIZE, dtype=np.float32) / 4,
    )
    counts = Counter([*prompt, *answer])
    expected = []
    for token, logit in enumerate(logits):
        value = (logit + token / 4) / temperature
        if counts[token]:
            value = value * repetition if value < 0 else value / repetition
            value -= 0.25 - 0.5 * counts[token]
        expected.append(value)
    assert adjusted(logits, params, prompt, answer).tolist() == pytest.approx(expected, abs=1e-5)


@given(LOGITS)
def test_adjusting_leaves_the_models_logits_alone(logits: list[float]) -> None:
    row = torch.tensor(logits)
    adjust(row, SamplingParams(temperature=2.0, bad_words=((1,),)), prompt=[1], answer=[], counts=None)
    assert row.tolist() == torch.tensor(logits).tolist()


def allowed(values: list[float], params: SamplingParams) -> dict[int, float]:
    """The oracle: tokens that may be drawn, with their probabilities."""
    order = sorted(range(len(values)), key=lambda token: -values[token])
    if params.top_k:
        order = order[: params.top_k]
    total = sum(math.exp(values[token]) for token in order)
    kept: dict[int, float] = {}
    for token in order:
        if params.top_p is not None and sum(kept.values()) >= params.top_p:
            break
        kept[token] = math.exp(values[token]) / total
    return {token: share / sum(kept.values()) for token, share in kept.items()}


@given(
    st.permutations([value / 3 for value in range(SIZE)]),
    st.sampled_from([None, 0, 2, 5, 100]),
    st.sampled_from([None, 0.05, 0.6, 0.95, 1.0]),
    st.integers(0, 2**64 - 1),
    st.integers(0, 1000),
)
def test_the_drawn_token_is_the_inverse_of_the_distribution_at_the_random_number(
    logits: list[float], top_k: int | None, top_p: float | None, seed: int, step: int
) -> None:
    params = SamplingParams(top_k=top_k, top_p=top_p, seed=seed)
    token = choose(torch.tensor(logits), params, step)
    if params.is_greedy:
        assert token == logits.index(max(logits))
        return
    kept = allowed(logits, params)
    below = sum(share for other, share in kept.items() if other < token)
    assert token in kept
    assert below - 1e-5 <= uniform(seed, step) <= below + kept[token] + 1e-5


def test_frequencies_of_drawn_tokens_are_their_probabilities() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0])
    drawn = Counter(choose(logits, SamplingParams(top_p=1.0, seed=7), step) for step in range(4000))
    for token, probability in enumerate(logits.softmax(0).tolist()):
        assert drawn[token] / 4000 == pytest.approx(probability, abs=0.03)  # 4 standard deviations


def test_a_large_vocabulary_gives_the_same_nucleus_as_sorting_all_of_it() -> None:
    generator = torch.Generator().manual_seed(0)
    for spread, top_p in ((8.0, 0.9), (2.0, 0.9), (0.1, 0.99)):  # a few, hundreds and thousands of tokens
        logits = torch.randn(5000, generator=generator) * spread
        probabilities, tokens = logits.softmax(0).double().sort(descending=True)
        size = int((probabilities.cumsum(0) < top_p).sum()) + 1
        nucleus = set(tokens[:size].tolist())
        drawn = {choose(logits, SamplingParams(top_p=top_p, seed=1), step) for step in range(300)}
        assert drawn <= nucleus
        assert size < 20 or len(drawn) > 10


def test_bad_words_are_never_completed_and_may_begin_in_the_prompt() -> None:
    params = SamplingParams(bad_words=((3,), (1, 2, 4), (9, 5)))
    assert adjusted([0.0] * SIZE, params, [9], []).isinf().nonzero().flatten().tolist() == [3, 5]
    assert adjusted([0.0] * SIZE, params, [9], [1]).isinf().nonzero().flatten().tolist() == [3]
    assert adjusted([0.0] * SIZE, params, [9, 1], [2]).isinf().nonzero().flatten().tolist() == [3, 4]
    assert adjusted([0.0] * SIZE, params, [9], [1, 2]).isinf().nonzero().flatten().tolist() == [3, 4]


def test_before_min_tokens_neither_the_end_nor_a_stop_word_is_chosen() -> None:
    params = SamplingParams(min_tokens=3, end_id=0, stop_words=((5,), (6, 7)))
    assert adjusted([0.0] * SIZE, params, [6], [1]).isinf().nonzero().flatten().tolist() == [0, 5]
    assert adjusted([0.0] * SIZE, params, [6], [1, 6]).isinf().nonzero().flatten().tolist() == [0, 5, 7]
    assert not adjusted([0.0] * SIZE, params, [6], [1, 6, 1]).isinf().any()


@pytest.mark.parametrize("value", [-math.inf, math.nan])
def test_a_row_without_a_possible_token_is_an_error(value: float) -> None:
    with pytest.raises(RequestError, match="no token can be chosen"):
        choose(torch.full((SIZE,), value), SamplingParams(top_k=3), 0)


def test_random_numbers_depend_on_seed_and_step_only() -> None:
    numbers = {(seed, step): uniform(seed, step) for seed in (0, 1, 2**64 - 1) for step in range(50)}
    assert len(set(numbers.values())) == len(numbers)
    assert all(0 <= number < 1 for number in numbers.values())
    assert uniform(1, 7) == numbers[1, 7]


def test_log_probabilities_are_those_of_the_model_and_not_zero_when_greedy() -> None:
    logits = torch.tensor([1.0, 3.0, 2.0])
    assert log_probability(logits, 1) == pytest.approx(math.log(math.exp(3) / (math.e + math.exp(3) + math.exp(2))))
    assert log_probability(logits, 1) < -0.1
