"""What the client is told about an answer that was made in several steps: numbers of the steps, put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from core_request import output

#: Output of the core -> what becomes of its values in the steps, the oldest first.
_TOGETHER: dict[str, Callable[[list[int]], int]] = {
    "arrival_time_ns": lambda values: values[0],
    "first_scheduled_time_ns": lambda values: values[0],
    "first_token_time_ns": lambda values: values[0],
    "last_token_time_ns": lambda values: values[-1],
    "kv_cache_alloc_new_blocks": sum,
    "kv_cache_reused_blocks": sum,
    "kv_cache_alloc_total_blocks": sum,
}
#: Counts of draft tokens, in place of the core's own, which are those of one step.
_COUNTS = ("acceptance_rate", "total_accepted_draft_tokens", "total_draft_tokens")


class Totals:
    """The numbers of one answer.

    An output appears if the core gave it, which it does when it is asked for; statistics come with the last response.

    Args:
        prompt_tokens: length of the prompt.
    """

    #: Outputs of the draft model that count: the work on a request begins there.
    OF_DRAFT: ClassVar[tuple[str, ...]] = ("arrival_time_ns", "first_scheduled_time_ns")

    def __init__(self, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._drafted = self._accepted = 0
        self._values: dict[str, list[int]] = {}
        self._types: dict[str, np.dtype[Any]] = {}
        self._log_probs: list[float] = []
        self._sum_of_log_probs = 0.0

    def add_draft(self, responses: Sequence[Any]) -> None:
        """Take the draft model's part of a step."""
        for response in responses:
            self._note(response, self.OF_DRAFT)

    def add_target(self, responses: Sequence[Any], *, drafted: int, accepted: int, kept: int) -> None:
        """Take the core's part of a step: tokens that were drafted, those that it accepted, and those that the answer got."""
        self._drafted += drafted
        self._accepted += accepted
        for response in responses:
            self._note(response, (*_TOGETHER, *_COUNTS, "num_input_tokens", "num_output_tokens", "cum_log_probs"))
            log_probs = output(response, "output_log_probs")
            if log_probs is not None:
                self._types["output_log_probs"] = log_probs.dtype
                self._log_probs += log_probs.reshape(-1)[:kept].tolist()

    def _note(self, response: Any, names: Sequence[str]) -> None:
        for name in names:
            values = output(response, name)
            if values is not None:
                self._types[name] = values.dtype
                self._values.setdefault(name, []).append(values.reshape(-1)[0].item())

    def flush(self, tokens: int, *, is_last: bool) -> dict[str, np.ndarray[Any, Any]]:
        """Return the outputs [1, 1] of a response that brings so many tokens; `output_log_probs` is [1, 1, tokens]."""
        log_probs, self._log_probs = self._log_probs, []
        self._sum_of_log_probs += sum(log_probs)
        numbers: dict[str, float] = {
            "num_input_tokens": self._prompt_tokens,
            "num_output_tokens": tokens,
            "cum_log_probs": self._sum_of_log_probs,
        }
        if is_last:
            numbers |= {name: _TOGETHER[name](values) for name, values in self._values.items() if name in _TOGETHER}
            rate = self._accepted / self._drafted if self._drafted else 0.0
            numbers |= dict(zip(_COUNTS, (rate, self._accepted, self._drafted), strict=True))
        outputs = {
            name: np.array([[value]], self._types[name]) for name, value in numbers.items() if name in self._types
        }
        if "output_log_probs" in self._types:
            outputs["output_log_probs"] = np.array(log_probs, self._types["output_log_probs"]).reshape(1, 1, -1)
        return outputs
