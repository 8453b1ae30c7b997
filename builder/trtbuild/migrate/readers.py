"""Values of config.pbtxt as what they mean: the backend reads texts, and takes its default for one that it cannot read.

Source: Triton specification 1.8. A text that only the C++ parser would take ("4abc" is 4 there) is refused here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

#: Raises ValueError with what is allowed.
Reader = Callable[[str], Any]
_TRUTH = {
    "true": True, "True": True, "TRUE": True, "1": True, "false": False, "False": False, "FALSE": False, "0": False
}  # fmt: skip


def boolean(text: str) -> bool:
    """Return a flag."""
    if text not in _TRUTH:
        raise ValueError("need true or false")
    return _TRUTH[text]


def count(text: str) -> int:
    """Return a whole number of 1 or more."""
    if not re.fullmatch(r"[0-9]+", text) or int(text) < 1:
        raise ValueError("need a whole number of 1 or more")
    return int(text)


def amount(text: str) -> int:
    """Return a whole number of 0 or more."""
    if not re.fullmatch(r"[0-9]+", text):
        raise ValueError("need a whole number")
    return int(text)


def share(text: str) -> float:
    """Return a number between 0 and 1, without both."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise ValueError("need a number above 0 and below 1")
    return value


def counts(text: str) -> list[int]:
    """Return whole numbers separated by commas."""
    return [count(part.strip()) for part in text.split(",")]


def words(text: str) -> list[str]:
    """Return a JSON list of texts."""
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError("need a JSON list of texts")
    return value


def one_of(*names: str) -> Reader:
    """Return a reader of one of some names, in any case."""

    def read(text: str) -> str:
        if text.lower() not in names:
            raise ValueError(f"need one of {', '.join(names)}")
        return text.lower()

    return read
