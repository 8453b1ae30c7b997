"""What a request may ask of the choice of tokens, and which values are allowed.

Semantics are those of TensorRT-LLM's executor (cpp/tensorrt_llm/executor/samplingConfig.cpp and
cpp/include/tensorrt_llm/layers/defaultDecodingParams.h): without top_k and top_p a request is greedy, whatever its
temperature; top_k 1 and temperature 0 are greedy; top_k 0 with top_p is pure nucleus sampling; without a seed the
seed is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trtbuild.errors import TrtbuildError

Words = tuple[tuple[int, ...], ...]


class RequestError(TrtbuildError):
    """One request cannot be served; others are not affected. Its text is what the client reads, in one line."""

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Per-request settings; the defaults change nothing.

    Attributes:
        temperature: logits are divided by it; 0 is greedy.
        top_k: keep that many most likely tokens; 0 keeps all, None is not given.
        top_p: keep the most likely tokens until their probabilities add up to it; None is not given.
        seed: the n-th random number of a request depends on this and n only.
        repetition_penalty: divides positive and multiplies negative logits of tokens seen in prompt or answer.
        presence_penalty: subtracted from the logit of every token seen in prompt or answer.
        frequency_penalty: subtracted once per occurrence.
        min_tokens: the answer does not end by end id or stop word before it has that many tokens.
        end_id: token that ends the answer, itself not part of it; None never ends.
        stop_words: token sequences that end the answer, themselves not part of it.
        bad_words: token sequences that are never completed.
        embedding_bias: added to the logits, [vocab_size], f32.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    end_id: int | None = None
    stop_words: Words = ()
    bad_words: Words = ()
    embedding_bias: np.ndarray[Any, np.dtype[np.float32]] | None = None

    @property
    def is_greedy(self) -> bool:
        """True when the most likely token is taken."""
        no_choice = not self.top_k and self.top_p is None
        return no_choice or self.top_k == 1 or self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        """True when earlier tokens change the logits."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def changes_choice(self) -> bool:
        """True unless the choice is the plain argmax of the model's logits at every step."""
        return not self.is_greedy or self.has_penalties or bool(self.bad_words or self.min_tokens) or self.has_bias

    @property
    def has_bias(self) -> bool:
        """True when a bias is added to the logits."""
        return self.embedding_bias is not None

    def validate(self, vocab_size: int) -> None:
        """Check every field.

        Raises:
            RequestError: names the field, its value and what is allowed.
        """
        for name, is_allowed, allowed in _RULES:
            value = getattr(self, name)
            if value is not None and not is_allowed(value):
                raise RequestError(f"{name} = {value} is not allowed", hint=f"allowed: {allowed}")
        if self.end_id is not None and not 0 <= self.end_id < vocab_size:
            raise _outside("end_id", self.end_id, vocab_size)
        for name in ("stop_words", "bad_words"):
            for word in getattr(self, name):
                if not word:
                    raise RequestError(f"{name} has an empty word", hint="leave it out")
                for token in word:
                    if not 0 <= token < vocab_size:
                        raise _outside(f"{name}: token", token, vocab_size)
        if self.embedding_bias is not None:
            self._validate_bias(self.embedding_bias, vocab_size)

    def _validate_bias(self, bias: np.ndarray[Any, np.dtype[np.float32]], vocab_size: int) -> None:
        if bias.shape != (vocab_size,):
            raise RequestError(
                f"embedding_bias has shape {list(bias.shape)}", hint=f"allowed: one value per token, [{vocab_size}]"
            )
        if np.isnan(bias).any() or np.isposinf(bias).any():
            raise RequestError("embedding_bias holds NaN or +infinity", hint="allowed: finite numbers and -infinity")


def _outside(what: str, token: int, vocab_size: int) -> RequestError:
    return RequestError(f"{what} = {token} is outside the vocabulary", hint=f"allowed: 0 to {vocab_size - 1}")


_RULES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("temperature", lambda value: math.isfinite(value) and value >= 0, "a finite number >= 0"),
    ("top_k", lambda value: value >= 0, "an integer >= 0"),
    ("top_p", lambda value: 0 < value <= 1, "0 < top_p <= 1"),
    ("seed", lambda value: 0 <= value < 2**64, "an integer from 0 to 2^64 - 1"),
    ("repetition_penalty", lambda value: math.isfinite(value) and value > 0, "a finite number > 0"),
    ("presence_penalty", math.isfinite, "a finite number"),
    ("frequency_penalty", math.isfinite, "a finite number"),
    ("min_tokens", lambda value: value >= 0, "an integer >= 0"),
)
