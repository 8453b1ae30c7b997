"""Seeded random numbers for a schedule: constant, exponential, log-normal, or from a list."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trtbuild_client.durations import FORMS, LONGEST
from trtbuild_client.durations import parse_ns as time_ns
from trtbuild_client.errors import InvalidRequest

#: Beyond it nothing is a number of tokens, and e to its power no time.
_MOST = 2**31 - 1
_HINT = "Write constant:20ms, exponential:20ms (mean), lognormal:20ms,0.5 (median, sigma) or list:10ms,20ms,30ms."
#: kind -> least and most numbers after its name.
_ARITY = {"constant": (1, 1), "exponential": (1, 1), "lognormal": (2, 2), "list": (1, math.inf)}


@dataclass(frozen=True, slots=True)
class Distribution:
    """A distribution of values that are never negative.

    Attributes:
        kind: "constant" (value), "exponential" (mean), "lognormal" (median, sigma of the logarithm) or "list" (values
            in turn, from the first one for each request).
        numbers: the parameters of that kind.
    """

    kind: str
    numbers: tuple[float, ...]

    def sampler(self, rng: random.Random) -> Callable[[], float]:
        """Return a function that gives one value after the other."""
        if self.kind == "exponential":
            mean = self.numbers[0]
            return lambda: rng.expovariate(1.0) * mean
        if self.kind == "lognormal":
            median, sigma = self.numbers
            return lambda: median * math.exp(rng.gauss(0.0, sigma))
        values = self.numbers
        turn = iter(range(1 << 62))
        return lambda: values[next(turn) % len(values)]

    def __str__(self) -> str:
        return f"{self.kind}:{','.join(f'{number:g}' for number in self.numbers)}"


def constant(value: float) -> Distribution:
    """Return the distribution of one value."""
    return Distribution("constant", (value,))


def parse_ns(text: str) -> Distribution:
    """Return a distribution of times in nanoseconds, from a text such as "lognormal:20ms,0.5" or "20ms".

    Raises:
        InvalidRequest: it is none.
    """
    kind, words = _split(text)
    numbers = [_time_ns(word, text) for word in (words[:1] if kind == "lognormal" else words)]
    if kind == "lognormal":
        numbers += [_number(word, text) for word in words[1:]]
    return _checked(kind, numbers, text)


def parse_counts(text: str) -> Distribution:
    """Return a distribution of whole numbers above 0, from a text such as "4" or "list:1,1,3".

    Raises:
        InvalidRequest: it is none.
    """
    kind, words = _split(text)
    numbers = [_number(word, text) for word in words]
    if kind not in ("constant", "list") or any(number < 1 or number != int(number) for number in numbers):
        raise InvalidRequest(f"'{text}' is no number of tokens", hint="Write 1, or list:1,1,3 for numbers in turn.")
    return _checked(kind, numbers, text)


def _split(text: str) -> tuple[str, list[str]]:
    kind, colon, rest = text.partition(":")
    return (kind, rest.split(",")) if colon else ("constant", [text])


def _time_ns(word: str, text: str) -> float:
    found = time_ns(word, needs_unit=True, may_be_zero=True)
    if found is None:
        raise InvalidRequest(
            f"'{word}' in '{text}' is no time",
            hint=f"Write a number with its unit, such as {FORMS}, at most {LONGEST}; or 0.",
        )
    return found


def _number(word: str, text: str) -> float:
    if not re.fullmatch(r"\s*[0-9]*\.?[0-9]+\s*", word) or float(word) > _MOST:
        raise InvalidRequest(f"'{word}' in '{text}' is no number from 0 to {_MOST}", hint=_HINT)
    return float(word)


def _checked(kind: str, numbers: Sequence[float], text: str) -> Distribution:
    if kind not in _ARITY:
        raise InvalidRequest(f"'{text}' is of unknown kind '{kind}'", hint=_HINT)
    least, most = _ARITY[kind]
    if not least <= len(numbers) <= most:
        raise InvalidRequest(f"'{text}' has {len(numbers)} numbers", hint=_HINT)
    return Distribution(kind, tuple(numbers))
