"""Prompts: conversations with a name, and made-up ones of exact lengths with shared beginnings."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass

from trtbuild_client.errors import InvalidRequest
from trtbuild_client.load.tokens import Counter, text_of
from trtbuild_client.load.workload import Session, Turn

#: More than a load test has use for: of requests, and of tokens (more than 1 GB of text, made in minutes).
_MOST_REQUESTS, _MOST_TOKENS = 1_000_000, 200_000_000


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
        """Return so many conversations; the same seed gives the same.

        Raises:
            InvalidRequest: a shared beginning that is no part of a prompt, or more than memory and patience are for.
        """
        if self.prefix_tokens >= self.input_tokens.mean and self.prefix_tokens:
            raise InvalidRequest(
                f"a shared beginning of {self.prefix_tokens} tokens in prompts of {self.input_tokens.mean}",
                hint="Make the prompts longer than what they share.",
            )
        self._check_amount(number)
        groups = min(self.prefix_groups, number) if self.prefix_tokens else 0
        prefixes = [
            text_of(counter, self.prefix_tokens, random.Random(f"{seed} prefix {group}")) for group in range(groups)
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
        shared = f", {self.prefix_tokens} shared by {groups} groups" if groups else ""
        return Dataset(sessions, f"synthetic, {self.input_tokens.mean} {counter.unit}{shared}")

    def _check_amount(self, number: int) -> None:
        tokens = self.input_tokens.mean + self.input_tokens.deviation
        for what, each, most in (("requests", 1, _MOST_REQUESTS), ("tokens", tokens, _MOST_TOKENS)):
            total = number * self.turns * each
            if total > most:
                fitting = int(most / (self.turns * each))
                lower = "--turns" if each == 1 else "--turns or --input-tokens"
                raise InvalidRequest(
                    f"made-up prompts of {total:,.0f} {what}, more than {most:,}",
                    hint=f"Give --prompts {fitting}: requests take them in turn." if fitting else f"Lower {lower}.",
                )
