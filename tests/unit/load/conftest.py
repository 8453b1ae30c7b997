"""Fixtures of the load test's tests."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture
def random_bytes() -> Callable[[int], Iterator[bytes]]:
    """Return a function that gives so many strings of random bytes, the same in every run."""

    def make(number: int) -> Iterator[bytes]:
        rng = random.Random(7)
        for _ in range(number):
            head = rng.choice(
                [b"", bytes([0, 0, rng.randrange(30), rng.randrange(10), rng.randrange(256), 0, 0, 0, 1])]
            )
            yield head + rng.randbytes(rng.randrange(120))

    return make
