"""Where things stand in the text of a config.pbtxt: for line numbers, and for edits that leave the rest as it is.

Reads protobuf text of any quality: what it does not understand it passes over. What a value means is for `repo/proto.py` to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

_TOKEN = re.compile(
    r"""(?P<space>[\s,;]+)|(?P<comment>\#[^\n]*)|(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|(?P<open>[{<])|(?P<close>[}>])
    |(?P<list>\[)|(?P<end>\])|(?P<colon>:)|(?P<word>\$\{[^}\n]*\}?|[^\s,;{}<>\[\]:"'\#]+)|(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Node:
    """One field.

    Attributes:
        name: of the field.
        start: where it begins in the text: at its name.
        end: where it ends, behind its value. Of several messages in one list, each is a node with the limits of the whole list.
        value: limits of its value: of the text in quotes, the word, or what stands between the braces.
        children: fields of a message.
        alone: whether nothing else shares its limits.
    """

    name: str
    start: int
    end: int
    value: tuple[int, int]
    children: tuple[Node, ...] = ()
    alone: bool = True

    def all(self, *path: str) -> Iterator[Node]:
        """Yield the fields at a path below this one."""
        yield from _all(self.children, path)

    def first(self, *path: str) -> Node | None:
        """Return the first field at a path below this one."""
        return next(self.all(*path), None)

    def text(self, text: str) -> str:
        """Return its value as written, without quotes."""
        return text[slice(*self.value)]


@lru_cache(maxsize=64)
def parse(text: str) -> Node:
    """Return the whole text as a field without a name."""
    tokens = [
        (match.lastgroup or "", match.start(), match.end())
        for match in _TOKEN.finditer(text)
        if match.lastgroup not in ("space", "comment")
    ]
    nodes: list[Node] = []
    position = 0
    while position < len(tokens):  # a brace too many ends the fields; go on behind it
        found, position = _fields(tokens, position, text)
        nodes += found
        position += 1
    return Node("", 0, len(text), (0, len(text)), tuple(nodes))


def line_of(text: str, offset: int) -> int:
    """Return the number of the line that an offset is in, from 1."""
    return text.count("\n", 0, offset) + 1


def whole_lines(text: str, start: int, end: int) -> tuple[int, int]:
    """Return limits that take a field's line along when nothing else is on it."""
    line = text.rfind("\n", 0, start) + 1
    following = re.compile(r"[ \t,;]*\r?\n?").match(text, end)
    after = following.end() if following else end
    if text[line:start].strip() == "" and (after == len(text) or text[after - 1 : after] == "\n"):
        return line, after
    return start, end


_Tokens = list[tuple[str, int, int]]


def _all(nodes: tuple[Node, ...], path: tuple[str, ...]) -> Iterator[Node]:
    for node in nodes:
        if node.name == path[0]:
            if len(path) == 1:
                yield node
            else:
                yield from _all(node.children, path[1:])


def _fields(tokens: _Tokens, position: int, text: str) -> tuple[list[Node], int]:
    """Return the fields from a position on, and the position of the brace that ends them."""
    nodes: list[Node] = []
    while position < len(tokens) and tokens[position][0] != "close":
        kind, start, end = tokens[position]
        position += 1
        if kind != "word":
            continue
        name = text[start:end]
        if position < len(tokens) and tokens[position][0] == "colon":
            position += 1
        if position >= len(tokens):
            break
        found, position = _value(tokens, position, text, name, start)
        nodes += found
    return nodes, position


def _value(tokens: _Tokens, position: int, text: str, name: str, start: int) -> tuple[list[Node], int]:
    kind, begin, end = tokens[position]
    if kind == "open":
        children, close = _fields(tokens, position + 1, text)
        stop = tokens[close] if close < len(tokens) else ("close", len(text), len(text))
        return [Node(name, start, stop[2], (end, stop[1]), tuple(children))], close + 1
    if kind == "list":
        return _list(tokens, position + 1, text, name, start)
    if kind == "string":
        position += 1
        while position < len(tokens) and tokens[position][0] == "string":  # neighbours are one text
            end = tokens[position][2]
            position += 1
        return [Node(name, start, end, (begin + 1, end - 1))], position
    if kind == "word":
        return [Node(name, start, end, (begin, end))], position + 1
    return [], position


def _list(tokens: _Tokens, position: int, text: str, name: str, start: int) -> tuple[list[Node], int]:
    entries: list[Node] = []
    while position < len(tokens) and tokens[position][0] not in ("end", "close"):
        found, following = _value(tokens, position, text, name, tokens[position][1])
        entries += found
        position = max(following, position + 1)
    end = tokens[position][2] if position < len(tokens) else len(text)
    if not entries:
        return [Node(name, start, end, (end, end))], position + 1
    alone = len(entries) == 1
    return [Node(name, start, end, each.value, each.children, alone) for each in entries], position + 1


def without_comments(text: str) -> str:
    """Return the text with every comment blanked out, so that offsets stay what they are."""
    return _TOKEN.sub(lambda match: " " * len(match[0]) if match.lastgroup == "comment" else match[0], text)
