"""Texts of an exact number of tokens, by the model's own tokenizer; or of words, which are not tokens, where there is none."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Protocol

from trtbuild_client.errors import InvalidRequest

#: Words that any tokenizer of English knows.
_WORDS: tuple[str, ...] = (
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state",
    "family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system",
    "program", "question", "work", "night", "point", "home", "water", "room", "mother", "area", "money", "story",
    "fact", "month", "lot", "right", "study", "book", "eye", "job", "word", "business", "issue", "side", "kind",
    "head", "house", "service", "friend", "father", "power", "hour", "game", "line", "end", "member", "law", "car",
    "city", "name", "team", "minute", "idea", "body", "back", "parent", "face", "level", "office", "door", "health",
    "person", "art", "war", "history", "party", "result", "change", "morning", "reason", "research", "girl", "guy",
    "moment", "air", "teacher", "force", "education", "foot", "boy", "age", "policy", "music", "market", "sense",
    "plan", "college", "interest", "death", "experience", "effect", "use", "class", "control", "care", "field",
    "development", "role", "effort", "rate", "heart", "drug", "show", "leader", "light", "voice", "wife", "police",
    "mind", "price", "report", "decision", "son", "view", "town", "road", "arm", "difference", "value", "building",
    "action", "season", "society", "tax", "director", "position", "player", "record", "paper", "space", "ground",
    "form", "event",
)  # fmt: skip
#: Attempts to meet a length before giving up; a tokenizer with which it cannot be met is a strange one.
_ATTEMPTS = 400


class Counter(Protocol):
    """Counts tokens."""

    #: What is counted, for reports.
    unit: str

    def count(self, text: str) -> int:
        """Return the number of tokens of a text, without the special ones that a server adds."""


class Words:
    """Counts words where no tokenizer is given: English text has 1.2 to 1.5 tokens per word with the usual tokenizers."""

    unit = "words (no tokenizer given: 1.2 to 1.5 tokens each in English text)"

    def count(self, text: str) -> int:
        """Return the number of words."""
        return len(text.split())


def tokenizer_file(folder: Path) -> Path:
    """Return the file of a tokenizer: a model folder's, or the one that was named itself."""
    return folder / "tokenizer.json" if folder.is_dir() else folder


class Tokenizer:
    """The tokenizer of a model folder (`tokenizer.json`).

    Raises:
        InvalidRequest: there is none, it cannot be read, or the package `tokenizers` is not installed.
    """

    unit = "tokens (special tokens not counted)"

    def __init__(self, folder: Path) -> None:
        path = tokenizer_file(folder)
        if not path.is_file():
            raise InvalidRequest(
                f"no tokenizer.json in {folder}",
                hint="Give the model's folder; `AutoTokenizer.from_pretrained(...).save_pretrained(...)` writes that file for most models.",
            )
        try:
            from tokenizers import Tokenizer as Fast
        except ImportError as error:
            raise InvalidRequest("--tokenizer needs the package tokenizers", hint="pip install tokenizers") from error
        try:
            self._tokenizer: Any = Fast.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise InvalidRequest(
                f"{path} cannot be read: {error}", hint="Is it whole, and for this version?"
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def count(self, text: str) -> int:
        """Return the number of tokens."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)


def open_counter(folder: Path | None) -> Counter:
    """Return the tokenizer of a folder, or one that counts words."""
    return Words() if folder is None else Tokenizer(folder)


def text_of(counter: Counter, tokens: int, random_: random.Random, *, start: str = "") -> str:
    """Return a text of exactly so many tokens.

    Args:
        counter: who counts.
        tokens: length of the whole text, `start` included.
        random_: source of the words.
        start: how the text begins; at most `tokens` long.

    Raises:
        InvalidRequest: the length cannot be met.
    """
    if tokens < 1 or counter.count(start) > tokens:
        raise InvalidRequest(
            f"a text of {tokens} tokens", hint="Ask for at least 1, and at least the shared beginning."
        )
    words = [random_.choice(_WORDS) for _ in range(tokens)]
    text = _cut(counter, start, words, tokens)
    for _ in range(_ATTEMPTS):
        count = counter.count(text)
        if count == tokens:
            return text
        step = _extension(counter, text, count, tokens, random_)
        if step is not None:
            text = step
        elif len(words) > 1:  # a dead end: go back some words and take another way
            words = words[: len(words) * 3 // 4]
            text = _cut(counter, start, words, tokens)
    raise InvalidRequest(
        f"no text of exactly {tokens} tokens was found with this tokenizer",
        hint="Try another length, or prompts from a file.",
    )


def _cut(counter: Counter, start: str, words: list[str], tokens: int) -> str:
    """Return the longest beginning of the words that is not longer than asked; the list is cut accordingly."""
    low, high = 0, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        if counter.count(_joined(start, words[:middle])) <= tokens:
            low = middle
        else:
            high = middle - 1
    del words[low:]
    return _joined(start, words)


def _joined(start: str, words: list[str]) -> str:
    return " ".join([start, *words] if start else words)


def _extension(counter: Counter, text: str, count: int, tokens: int, random_: random.Random) -> str | None:
    """Return the text with a little more that brings it nearer to its length, None when nothing tried does."""
    letters = [random_.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(6)]
    some = [random_.choice(_WORDS) for _ in range(6)]
    for piece in (*(f" {word}" for word in some), *letters, *(f" {each}" for each in letters), ".", "!", " ?", "\n"):
        if count < counter.count(text + piece) <= tokens and (text or piece.strip()):
            return text + (piece if text else piece.lstrip())
    return None
