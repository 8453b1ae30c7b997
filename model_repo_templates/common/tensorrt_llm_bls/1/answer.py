"""The text of the answers to one request, put together from the responses of the core.

A request has one answer per row of its batch, returned sequence and beam; each is a stream of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from serving import RequestError
from stop_text import StopText

#: (stream, token ids [1, beams, n], lengths [1, beams]) -> the text they add, one per beam.
Detokenize = Callable[[str, np.ndarray[Any, Any], np.ndarray[Any, Any]], list[str]]


class Answers:
    """The answers to one request.

    Args:
        detokenize: ids of a stream to the text they add to it.
        stop_words: words that end an answer.
        is_streaming: pieces come as they are generated; else each answer comes at once.
        is_cumulative: return all text so far with every piece, instead of what is new.
        echoed: per row, how many tokens of the prompt stand before the answer.
        sequences: answers per row.

    Attributes:
        count: number of answers.
    """

    def __init__(
        self,
        detokenize: Detokenize,
        stop_words: Sequence[str],
        *,
        is_streaming: bool,
        is_cumulative: bool,
        echoed: Sequence[int],
        sequences: int,
    ) -> None:
        self.count = len(echoed) * sequences
        self._detokenize = detokenize
        self._stop_words = stop_words
        self._is_streaming = is_streaming
        self._is_cumulative = is_cumulative and is_streaming
        self._echoed = echoed
        self._stops: dict[tuple[int, int], list[StopText]] = {}
        self._texts: dict[tuple[int, int], list[str]] = {}

    @property
    def are_stopped(self) -> bool:
        """Whether a stop word has ended every answer."""
        return len(self._stops) == self.count and all(
            stop.is_stopped for stops in self._stops.values() for stop in stops
        )

    def push(
        self, ids: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any], *, row: int, sequence: int
    ) -> list[str] | None:
        """Add the tokens of one response, ids [1, beams, n] and lengths [1, beams].

        Returns:
            The text of every beam; none if a stop word has ended this answer before.

        Raises:
            RequestError: the beams of a stream were asked for.
        """
        key, beams = (row, sequence), ids.shape[1]
        if beams > 1 and self._is_streaming:
            raise RequestError(f"beam_width is {beams}; streaming needs 1")
        stops = self._stops.setdefault(key, [StopText(self._stop_words) for _ in range(beams)])
        if all(stop.is_stopped for stop in stops):
            return None
        prompt = np.minimum(lengths, self._echoed[row])
        name = f"{row}.{sequence}"
        echo = self._detokenize(name, ids[:, :, : prompt.max()], prompt) if prompt.any() else [""] * beams
        added = self._detokenize(name, ids[:, :, prompt.max() :], lengths - prompt)
        texts = [before + stop.push(text) for before, stop, text in zip(echo, stops, added, strict=True)]
        return self._so_far(key, texts) if self._is_streaming else self._with_rest(texts, stops)

    def rest(self) -> list[tuple[tuple[int, int], list[str]]]:
        """Return the text that was held back, by (row, sequence), once everything was generated."""
        rests = [(key, [stop.finish() for stop in stops]) for key, stops in self._stops.items()]
        return [(key, self._so_far(key, texts)) for key, texts in rests if any(texts)]

    def _so_far(self, key: tuple[int, int], texts: list[str]) -> list[str]:
        if not self._is_cumulative:
            return texts
        before = self._texts.get(key, [""] * len(texts))
        self._texts[key] = [old + new for old, new in zip(before, texts, strict=True)]
        return self._texts[key]

    @staticmethod
    def _with_rest(texts: list[str], stops: list[StopText]) -> list[str]:
        return [text + stop.finish() for text, stop in zip(texts, stops, strict=True)]
