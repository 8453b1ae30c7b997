"""Text that may be shown: what servers, models and files say can hold anything, and a terminal obeys control characters."""

from __future__ import annotations

_KEPT = frozenset("\n\t")


def printable(text: str) -> str:
    """Return text with every character that cannot be printed spelled as an escape, such as \\x1b; line ends and tabs stay."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in _KEPT else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
