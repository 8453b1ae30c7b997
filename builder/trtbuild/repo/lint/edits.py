"""The safe changes that rules offer, as edits of a config.pbtxt that leave the rest of it byte for byte."""

from __future__ import annotations

from trtbuild.repo.lint.findings import Edit
from trtbuild.repo.lint.pbtext import Node, whole_lines
from trtbuild.repo.lint.repository import Model


def remove(model: Model, node: Node | None, does: str) -> Edit | None:
    """Return an edit that removes a field, with its line when nothing else is on it."""
    if node is None or not node.alone:
        return None
    start, end = whole_lines(model.text or "", node.start, node.end)
    return Edit(start, end, "", does)


def set_value(node: Node | None, text: str, does: str) -> Edit | None:
    """Return an edit that replaces a value; text in quotes keeps its quotes."""
    return Edit(*node.value, text, does) if node is not None else None


def append(model: Model, line: str, does: str) -> Edit:
    """Return an edit that adds a line at the end, with the line ends that the file has."""
    text = model.text or ""
    newline = "\r\n" if "\r\n" in text else "\n"
    before = "" if not text or text.endswith("\n") else newline
    return Edit(len(text), len(text), f"{before}{line}{newline}", does)
