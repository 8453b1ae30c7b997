"""Ranges of the numbers in a request, checked before any of them reaches the core.

A core in C++ computes with what it is given: some of these it does not check at all, NaN and infinity pass through most of its
checks, and what goes wrong on the GPU ends the server for everybody. Here a bad number ends its own request only.

Lower and upper bounds: cpp/tensorrt_llm/executor/samplingConfig.cpp of TensorRT-LLM (`SamplingConfig::check...`, releases 0.12 to
1.2), and the greatest beam width of cpp/tensorrt_llm/kernels/beamSearchKernels.h (1024). "Finite" is ours. A seed is unsigned on the
wire, so Triton itself refuses a negative one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from serving import RequestError

INT32_MAX = 2**31 - 1
MAX_BEAM_WIDTH = 1024

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Limit:
    """What a number may be; it must be finite in any case.

    Attributes:
        low: the smallest value; none for no bound.
        high: the greatest value, likewise.
        is_open: whether `low` itself is too small.
    """

    low: float | None = None
    high: float | None = None
    is_open: bool = False

    def allows(self, value: float) -> bool:
        """Say whether a value is in the range."""
        if not math.isfinite(value) or (self.high is not None and value > self.high):
            return False
        return self.low is None or (value > self.low if self.is_open else value >= self.low)

    def __str__(self) -> str:
        low = None if self.low is None else f"{'more than' if self.is_open else 'at least'} {self.low}"
        high = None if self.high is None else f"at most {self.high}"
        return ", ".join(["a finite number", *(bound for bound in (low, high) if bound)])


#: Public input -> its range. Both names stand here where a release changed one.
LIMITS = {
    "max_tokens": Limit(1),
    "min_tokens": Limit(0),
    "min_length": Limit(0),
    "top_k": Limit(0),
    "top_p": Limit(0, 1, is_open=True),
    "temperature": Limit(0),
    "repetition_penalty": Limit(0, is_open=True),
    "presence_penalty": Limit(),
    "frequency_penalty": Limit(),
    "length_penalty": Limit(0),
    "beam_width": Limit(1, MAX_BEAM_WIDTH),
    "num_return_sequences": Limit(1, MAX_BEAM_WIDTH),  # each is a request to the core; no source has an upper bound
}


def check_numbers(given: Mapping[str, Array | None]) -> None:
    """Refuse numbers outside their ranges, and those that contradict each other.

    Args:
        given: public input -> one number per row; none where the request does not carry it.

    Raises:
        RequestError: names the input, its value and what is allowed.
    """
    values = {name: array.reshape(-1).tolist() for name, array in given.items() if array is not None}
    for name, numbers in values.items():
        for number in numbers:
            if not LIMITS[name].allows(number):
                raise RequestError(f"{name} is {number}, need {LIMITS[name]}")
    for name in ("min_tokens", "min_length"):
        for least, most in zip(values.get(name, []), values["max_tokens"], strict=False):
            if least > most:
                raise RequestError(f"{name} is {least}, more than max_tokens, which is {most}")
    for sequences, beams in zip(values.get("num_return_sequences", []), values.get("beam_width", []), strict=False):
        if 1 < beams < sequences:
            raise RequestError(f"num_return_sequences is {sequences}, more than beam_width, which is {beams}")


def check_token_id(name: str, ids: Array | None, vocab_size: int) -> None:
    """Refuse an id that the model does not have; -1 stands for none.

    Raises:
        RequestError: names the input, its value and what is allowed.
    """
    for token_id in [] if ids is None else ids.reshape(-1).tolist():
        if not -1 <= token_id < vocab_size:
            raise RequestError(f"{name} is {token_id}, need a token id from 0 to {vocab_size - 1}, or -1 for none")
