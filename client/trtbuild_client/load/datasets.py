"""Prompts: conversations with a name, and made-up ones of exact lengths with shared beginnings."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass

from trtbuild_client.errors import InvalidRequest
from trtbuild_client.load.tokens import Counter, text_of
from trtbuild_client.load.workload import Session, Turn


@dataclass(frozen=True, slots=True)
class Lengths:
    """Numbers of tokens, normally distributed and cut at 1; a deviation of 0 makes all the same."""

    mean: int
    deviation: float = 0.0

    def draw(self, random_: random.Random) -> int:
        """Return one of them."""
        return self.mean if self.deviation == 0 else max(1, round(random_.gauss(self.mean, self.deviation)))


@dataclass(frozen=True, slots=True)
class Dataset:
    """Prompts.

    Attributes:
        sessions: conversations.
        name: what they are, for reports.
        starts: when each begins, nanoseconds; only of a trace.
    """

    sessions: list[Session]
    name: str
    starts: array[int] | None = None


@dataclass(frozen=True, slots=True)
class Synthetic:
    """Made-up prompts.

    Attributes:
        input_tokens, output_tokens: of each request.
        prefix_tokens: shared beginning, part of `input_tokens`.
        prefix_groups: different shared beginnings.
        turns: requests of each conversation.
        think_ns: between the turns.
    """

    input_tokens: Lengths
    output_tokens: Lengths
    prefix_tokens: int = 0
    prefix_groups: int = 1
    turns: int = 1
    think_ns: int = 0

    def make(self, number: int, counter: Counter, seed: int) -> Dataset:
        """Return so many conversations; the same seed gives the same."""
        if self.prefix_tokens >= self.input_tokens.mean and self.prefix_tokens:
            raise InvalidRequest(
                f"a shared beginning of {self.prefix_tokens} tokens in prompts of {self.input_tokens.mean}",
                hint="Make the prompts longer than what they share.",
            )
        prefixes = [
            text_of(counter, self.prefix_tokens, random.Random(f"{seed} prefix {group}"))
            for group in range(self.prefix_groups if self.prefix_tokens else 0)
        ]
        sessions = []
        for index in range(number):
            random_ = random.Random(f"{seed} prompt {index}")
            turns = []
            for turn in range(self.turns):
                tokens = max(self.input_tokens.draw(random_), self.prefix_tokens + 1 if turn == 0 else 1)
                start = prefixes[index % len(prefixes)] if prefixes and turn == 0 else ""
                text = text_of(counter, tokens, random_, start=start)
                turns.append(Turn(text, self.output_tokens.draw(random_), tokens, self.think_ns if turn else 0))
            sessions.append(tuple(turns))
        shared = f", {self.prefix_tokens} shared by {self.prefix_groups} groups" if self.prefix_tokens else ""
        return Dataset(sessions, f"synthetic, {self.input_tokens.mean} {counter.unit}{shared}")
