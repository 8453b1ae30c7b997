"""What both engines do in a step: choose a token from a row of logits, and say what the step worked on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trtbuild.reference.choose import adjust, choose, log_probability
from trtbuild.reference.sequence import Sequence


@dataclass(frozen=True, slots=True)
class StepCounts:
    """What the latest step worked on.

    Attributes:
        iteration: steps so far.
        scheduled: requests in the step.
        context: those of them that still read their prompt.
        context_tokens: prompt tokens read.
        timestamp_s: when it began, seconds since 1970.
    """

    iteration: int = 0
    scheduled: int = 0
    context: int = 0
    context_tokens: int = 0
    timestamp_s: float = 0.0


def next_token(logits: torch.Tensor, sequence: Sequence) -> int:
    """Return the token that a request takes, and note its log-probability if that is asked for.

    Args:
        logits: of the next token, [vocab_size], f32; left alone.
        sequence: the request with its answer so far.

    Raises:
        RequestError: no token is left, or the logits are not numbers.
    """
    params, answer = sequence.params, sequence.tokens
    adjusted = adjust(logits, params, prompt=sequence.prompt, answer=answer, counts=sequence.counts)
    token = choose(adjusted, params, len(answer))
    if sequence.wants_log_probs:
        sequence.note_log_prob(log_probability(logits, token))
    return token
