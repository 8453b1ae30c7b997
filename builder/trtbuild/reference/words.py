"""Token sequences in a growing answer: which end it, which tokens would complete one."""

from __future__ import annotations

from collections.abc import Sequence

from trtbuild.reference.sampling import Words


def completions(words: Words, tokens: Sequence[int]) -> list[int]:
    """Return the tokens that would complete one of the words if they came next after `tokens`."""
    return [word[-1] for word in words if _ends_with(tokens, word[:-1])]


class StopWords:
    """Finds stop words in a stream of tokens and holds back whatever may become one.

    Tokens are released as soon as they cannot be part of a stop word any more, in order. Of several words that end at
    the same token the longest counts.
    """

    def __init__(self, words: Words) -> None:
        self._words = sorted(words, key=len, reverse=True)
        self._held: list[int] = []

    @property
    def num_held(self) -> int:
        """How many of the latest tokens are held back."""
        return len(self._held)

    def push(self, token: int) -> tuple[list[int], bool]:
        """Take the next token; return the tokens released by it and whether a stop word is now complete.

        After a complete stop word nothing more is released: it is not part of the answer.
        """
        if not self._words:
            return [token], False
        self._held.append(token)
        for word in self._words:
            if _ends_with(self._held, word):
                released, self._held = self._held[: -len(word)], []
                return released, True
        keep = self._longest_beginning()
        split = len(self._held) - keep
        released, self._held = self._held[:split], self._held[split:]
        return released, False

    def flush(self) -> list[int]:
        """Return what was held back; for the end of an answer that no stop word ended."""
        released, self._held = self._held, []
        return released

    def _longest_beginning(self) -> int:
        """Return how many of the last held tokens are the beginning of a word."""
        longest = min(len(self._held), len(self._words[0]) - 1)
        for size in range(longest, 0, -1):
            tail = tuple(self._held[-size:])
            if any(len(word) > size and word[:size] == tail for word in self._words):
                return size
        return 0


def _ends_with(tokens: Sequence[int], ending: Sequence[int]) -> bool:
    size = len(ending)
    return size == 0 or (len(tokens) >= size and tuple(tokens[-size:]) == tuple(ending))
