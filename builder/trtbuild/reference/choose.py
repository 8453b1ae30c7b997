"""Choose one token from one row of logits, independent of whatever else is computed in the same batch.

The order of adjustments is that of TensorRT-LLM (cpp/tensorrt_llm/kernels/penaltyKernels.cu): bias, temperature,
repetition, presence, frequency; prompt tokens count as seen. All arithmetic is float32, sums of probabilities float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from trtbuild.reference.sampling import RequestError, SamplingParams, Words
from trtbuild.reference.words import completions

NUCLEUS_GUESSES = (64, 1024)
"""How many of the most likely tokens are tried as the nucleus before the whole vocabulary is sorted."""


class TokenCounts:
    """How often each token occurs in the prompt and the answer so far."""

    def __init__(self, prompt: Sequence[int], vocab_size: int) -> None:
        self.counts = torch.bincount(torch.tensor(prompt), minlength=vocab_size).to(torch.float32)

    def add(self, token: int) -> None:
        """Count one more token of the answer."""
        self.counts[token] += 1


def adjust(
    logits: torch.Tensor,
    params: SamplingParams,
    *,
    prompt: Sequence[int],
    answer: Sequence[int],
    counts: TokenCounts | None,
) -> torch.Tensor:
    """Return the logits after bias, temperature, penalties and forbidden tokens.

    Args:
        logits: of the next token, [vocab_size], f32; left alone.
        params: the request's settings.
        prompt: tokens of the prompt.
        answer: tokens generated so far.
        counts: occurrences; needed when there are penalties.
    """
    adjusted = logits.clone()
    if params.embedding_bias is not None:
        adjusted += torch.from_numpy(params.embedding_bias)
    if params.temperature not in (0.0, 1.0):
        adjusted /= params.temperature
    if counts is not None:
        seen = counts.counts > 0
        penalty = params.repetition_penalty
        penalized = torch.where(adjusted < 0, adjusted * penalty, adjusted / penalty)
        penalized -= params.presence_penalty + params.frequency_penalty * counts.counts
        adjusted = torch.where(seen, penalized, adjusted)
    forbidden = completions(params.bad_words, _last(params.bad_words, prompt, answer))
    if len(answer) < params.min_tokens:
        forbidden += completions(params.stop_words, answer)
        forbidden += [] if params.end_id is None else [params.end_id]
    if forbidden:
        adjusted[forbidden] = float("-inf")
    return adjusted


def _last(words: Words, prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
    """Return as many of the latest tokens, prompt included, as the longest word needs in front of its last token."""
    size = max(map(len, words), default=1) - 1
    missing = max(0, size - len(answer))
    return [*prompt[len(prompt) - min(missing, len(prompt)) :], *answer[len(answer) - min(size, len(answer)) :]]


def choose(adjusted: torch.Tensor, params: SamplingParams, step: int) -> int:
    """Return the chosen token.

    Args:
        adjusted: logits from `adjust`, [vocab_size].
        params: the request's settings.
        step: number of tokens generated before this one; with the seed it fixes the random number.

    Raises:
        RequestError: no token is left, or the logits are not numbers.
    """
    best = int(adjusted.argmax())
    if not torch.isfinite(adjusted[best]):
        raise RequestError(
            f"no token can be chosen: the largest logit is {float(adjusted[best])}",
            hint="allow more tokens, or check the model's weights",
        )
    if params.is_greedy:
        return best
    tokens, probabilities = _candidates(adjusted, params)
    # In the order of token ids, so that a rounding difference between two batches cannot swap two likely tokens.
    order = tokens.argsort()
    sums = probabilities[order].double().cumsum(0)
    position = torch.searchsorted(sums, uniform(params.seed, step) * sums[-1], right=True)
    return int(tokens[order[min(int(position), len(order) - 1)]])


def uniform(seed: int, step: int) -> float:
    """Return the random number in [0, 1) of a request's step: counter-based (Philox), so no state is kept."""
    return float(np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, 0, step])).random())


def log_probability(logits: torch.Tensor, token: int) -> float:
    """Return the natural logarithm of the token's probability under the model's own logits, [vocab_size]."""
    return float(logits[token] - logits.logsumexp(0))


def _candidates(adjusted: torch.Tensor, params: SamplingParams) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens that may be drawn and their probabilities (which need not add up to 1)."""
    vocab_size = len(adjusted)
    if params.top_k:
        values, tokens = adjusted.topk(min(params.top_k, vocab_size))
        return _nucleus(tokens, values.softmax(0), params.top_p)
    probabilities = adjusted.softmax(0)
    if params.top_p is None or params.top_p == 1.0:
        return torch.arange(vocab_size), probabilities
    for size in NUCLEUS_GUESSES:
        if size < vocab_size:
            values, tokens = probabilities.topk(size)
            if float(values.double().sum()) >= params.top_p:
                return _nucleus(tokens, values, params.top_p)
    values, tokens = probabilities.sort(descending=True)
    return _nucleus(tokens, values, params.top_p)


def _nucleus(
    tokens: torch.Tensor, probabilities: torch.Tensor, top_p: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keep the shortest beginning whose probabilities, sorted from the largest, add up to at least top_p."""
    if top_p is None or top_p == 1.0:
        return tokens, probabilities
    size = int((probabilities.double().cumsum(0) < top_p).sum()) + 1
    return tokens[:size], probabilities[:size]
