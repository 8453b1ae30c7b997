"""Cutting a streamed text at stop words: the word itself and everything behind it is left out."""

from __future__ import annotations

from collections.abc import Iterable


class StopText:
    """The text of one answer up to its first stop word.

    The first word that is complete counts, however the text was cut into pieces. Text that may be the beginning of a
    stop word is held back until it is clear whether it is one.

    Args:
        words: the stop words; empty ones are ignored.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self._words = [word for word in dict.fromkeys(words) if word]
        self._held = ""
        self.is_stopped = False

    def push(self, text: str) -> str:
        """Add text; return what is certain to belong to the answer."""
        if self.is_stopped:
            return ""
        text = self._held + text
        ends = [(start + len(word), start) for word in self._words if (start := text.find(word)) >= 0]
        if ends:
            self.is_stopped = True
            self._held = ""
            return text[: min(ends)[1]]
        held = max((_overlap(text, word) for word in self._words), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def finish(self) -> str:
        """Return the text held back, once nothing follows it."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, word: str) -> int:
    """Return the length of the longest end of the text that is a beginning of the word."""
    return next((size for size in range(min(len(word) - 1, len(text)), 0, -1) if text.endswith(word[:size])), 0)
