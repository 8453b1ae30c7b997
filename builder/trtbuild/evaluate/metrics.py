"""How far a quantized model is from its source, as pure functions of logits and hidden states. Knows no model and no file.

A metric that cannot be computed is NaN, never a value that looks good; `limits` counts NaN as failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Copies of a chunk's logits that `compare_logits` holds at once, its two arguments included.
_COPIES = 7


@dataclass(frozen=True, slots=True)
class TokenStatistics:
    """One entry per predicted token.

    Attributes:
        source_nll: -ln p(token), the source's; float64 [tokens].
        quantized_nll: the same, the quantized model's; float64 [tokens].
        kl: D(source || quantized) of the two next-token distributions, nats; float64 [tokens].
        agrees: whether both find the same token most likely; bool [tokens].
    """

    source_nll: NDArray[np.float64]
    quantized_nll: NDArray[np.float64]
    kl: NDArray[np.float64]
    agrees: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Quality:
    """Both models on the same tokens, each given all tokens before it.

    Attributes:
        tokens: number of predicted tokens.
        source_perplexity: exp(mean of -ln p(token)).
        quantized_perplexity: the same of the quantized model.
        perplexity_ratio: quantized over source.
        mean_kl: mean of D(source || quantized) = sum p ln(p / q) over the vocabulary, nats.
        p99_kl: its 99th percentile (the smallest value that 99 % of the tokens do not exceed).
        top1_agreement: share of tokens for which both find the same token most likely, 0 to 1.
    """

    tokens: int
    source_perplexity: float
    quantized_perplexity: float
    perplexity_ratio: float
    mean_kl: float
    p99_kl: float
    top1_agreement: float


def tokens_per_chunk(vocab_size: int, memory_bytes: int) -> int:
    """Return how many tokens' logits `compare_logits` may be given within a memory budget, at least one."""
    return max(memory_bytes // (_COPIES * 4 * vocab_size), 1)


def compare_logits(source: Tensor, quantized: Tensor, targets: Tensor) -> TokenStatistics:
    """Compare two models' logits for the same tokens.

    Args:
        source: [tokens, vocab], float32.
        quantized: [tokens, vocab], float32.
        targets: [tokens], the token that comes next.
    """
    log_p, log_q = torch.log_softmax(source, dim=-1), torch.log_softmax(quantized, dim=-1)
    p = log_p.exp()
    terms = torch.where(p > 0, p * (log_p - log_q), p)  # 0 ln 0 is 0; NaN stays, since NaN > 0 is false and p is NaN
    # Rounding may leave a sum slightly below zero, which no divergence is.
    kl = terms.sum(dim=-1, dtype=torch.float64).clamp_min(0.0)
    chosen = targets[:, None]
    is_known = torch.isfinite(log_p.amax(dim=-1)) & torch.isfinite(log_q.amax(dim=-1))
    agrees = (source.argmax(dim=-1) == quantized.argmax(dim=-1)) & is_known
    return TokenStatistics(
        source_nll=-log_p.gather(1, chosen)[:, 0].double().cpu().numpy(),
        quantized_nll=-log_q.gather(1, chosen)[:, 0].double().cpu().numpy(),
        kl=kl.cpu().numpy(),
        agrees=agrees.cpu().numpy(),
    )


def summarize(parts: Sequence[TokenStatistics]) -> Quality:
    """Return the metrics over all tokens; without a token, or with a NaN among them, they are NaN."""
    source, quantized, kl, agrees = (
        np.concatenate([getattr(part, name) for part in parts]) if parts else np.empty(0)
        for name in ("source_nll", "quantized_nll", "kl", "agrees")
    )
    if not kl.size:
        return Quality(0, *(float("nan"),) * 6)
    with np.errstate(over="ignore", invalid="ignore"):
        source_perplexity, quantized_perplexity = np.exp(source.mean()), np.exp(quantized.mean())
        ratio = np.exp(quantized.mean() - source.mean())
    p99 = float("nan") if np.isnan(kl).any() else np.percentile(kl, 99, method="higher")
    values = (source_perplexity, quantized_perplexity, ratio, kl.mean(), p99, agrees.mean())
    return Quality(kl.size, *map(float, values))


class RelativeError:
    """The relative root mean square of an error over tokens: sqrt(mean over tokens of |error|^2 / |reference|^2).

    Computed in float64. Every token counts alike, so the few with huge activations do not hide the others.
    """

    def __init__(self) -> None:
        self._sum, self._tokens = 0.0, 0

    def add(self, value: Tensor, expected: Tensor, *, base: Tensor | float = 0.0) -> None:
        """Add tokens; nothing in the place of nothing is no error.

        Args:
            value: [..., width], the quantized model's.
            expected: [..., width], the source's.
            base: the reference is how far `expected` is from it; [..., width] or a number.
        """
        expected = expected.double()
        squares = (value.double() - expected).square().sum(dim=-1)
        ratio = squares / (expected - base).square().sum(dim=-1)
        self._sum += float(torch.where(squares == 0, squares, ratio).sum())
        self._tokens += squares.numel()

    @property
    def value(self) -> float:
        """The error; NaN when there was no token."""
        return float(np.sqrt(self._sum / self._tokens)) if self._tokens else float("nan")


def first_divergence(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Return the first position at which two answers differ, None when they are equal.

    An answer that ends early differs at its end. After one near tie greedy answers go separate ways, so the share of equal tokens after
    that says nothing about quality: use `Quality`, which is teacher-forced.
    """
    for position, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return position
    return None if len(one) == len(other) else min(len(one), len(other))
