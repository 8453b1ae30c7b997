"""From the bytes of successive responses to text: UTF-8, deltas or cumulative text, stop words. Pure functions of input."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Literal, Protocol

from trtbuild_client.errors import InvalidRequest, ServerError

#: What `text_output` of a streamed response holds: only the new text, or all text so far.
TextMode = Literal["delta", "cumulative"]

_REPLACEMENT = "\ufffd"
#: Responses that must all repeat everything before them until a stream of "deltas" is suspected to be cumulative.
_SUSPICIOUS_REPEATS = 4


def utf8(data: bytes, where: str) -> str:
    """Return what somebody wrote.

    Raises:
        InvalidRequest: it is no UTF-8.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"{where} is no UTF-8: byte {error.start} is 0x{data[error.start]:02x}",
            hint="Give text in UTF-8; `iconv -t utf-8` converts it.",
        ) from error


def encoded(text: str) -> bytes:
    """Return the bytes of a text out of JSON, where bytes that were no UTF-8 are surrogates.

    Halves of characters (a lone \\ud83d) become bytes that are no UTF-8.
    """
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


class Assembler(Protocol):
    """Turns `text_output` of each response into new text."""

    def push(self, piece: bytes) -> str:
        """Return the text that is new and certain after this response."""

    def flush(self) -> str:
        """Return what was held back, after the last response."""

    def doubt(self) -> str | None:
        """Return a warning when the responses look unlike this mode."""


class DeltaAssembler:
    """Each response holds only new text. A character cut between two responses is put together."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._previous = b""
        self._repeats = 0
        self._breaks = 0

    def push(self, piece: bytes) -> str:
        """Return the text that is new and certain after this response."""
        if piece:
            if self._previous and len(piece) > len(self._previous) and piece.startswith(self._previous):
                self._repeats += 1
            elif self._previous:
                self._breaks += 1
            self._previous = piece
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """Return U+FFFD for a character that never became complete, else nothing."""
        return self._decoder.decode(b"", final=True)

    def doubt(self) -> str | None:
        """Return a warning when every response repeated the one before it."""
        if self._breaks or self._repeats < _SUSPICIOUS_REPEATS:
            return None
        return "every response repeats the text before it: the server seems to send cumulative text (text_mode)"


class CumulativeAssembler:
    """Each response holds all text so far; a U+FFFD at its end is a character that is still incomplete."""

    def __init__(self) -> None:
        self._text = ""
        self._latest = ""

    def push(self, piece: bytes) -> str:
        """Return the text that is new and certain after this response.

        Raises:
            ServerError: the text does not continue what was already returned.
        """
        self._latest = piece.decode("utf-8", "replace")
        return self._advance(self._latest.rstrip(_REPLACEMENT))

    def flush(self) -> str:
        """Return what was held back at the end of the last response."""
        return self._advance(self._latest)

    def doubt(self) -> str | None:
        """Return None: text that is not cumulative raises in `push`."""
        return None

    def _advance(self, text: str) -> str:
        if self._text.startswith(text):
            return ""
        if not text.startswith(self._text):
            raise ServerError(
                f"streamed text {text[-40:]!r} does not continue {self._text[-40:]!r}",
                hint="The server does not send cumulative text: use text_mode='delta'.",
            )
        new = text[len(self._text) :]
        self._text = text
        return new


ASSEMBLERS: dict[TextMode, type[DeltaAssembler] | type[CumulativeAssembler]] = {
    "delta": DeltaAssembler,
    "cumulative": CumulativeAssembler,
}


class StopCutter:
    """Cuts text before the first stop word, however the text is divided into pieces.

    The first stop word is the one that is complete first; of several that end together, the longest. What may be the
    beginning of a stop word is held back until it is decided.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._words = tuple(words)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Return text that is certain, and whether a stop word was found (then nothing may be pushed any more)."""
        if not self._words:
            return text, False
        buffer = self._held + text
        found = [(at + len(word), at) for word in self._words if (at := buffer.find(word)) >= 0]
        if found:
            self._held = ""
            return buffer[: min(found)[1]], True
        kept = max(_overlap(buffer, word) for word in self._words)
        self._held = buffer[len(buffer) - kept :]
        return buffer[: len(buffer) - kept], False

    def flush(self) -> str:
        """Return what was held back, after the end of the text."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, word: str) -> int:
    """Return the length of the longest end of `text` that is a beginning of `word`, but not all of it."""
    return next((n for n in range(min(len(text), len(word) - 1), 0, -1) if text.endswith(word[:n])), 0)
