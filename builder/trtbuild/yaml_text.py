"""YAML as a person writes it: read with a loader that builds plain data only, and that refuses what two readers would take differently.

Plain data are mappings, lists, text, whole numbers, numbers, booleans and null. A key given twice, an alias that contains itself or
multiplies, and a whole number whose value depends on the version of YAML are errors. A date is text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from trtbuild.errors import TrtbuildError, UsageError

#: Bounds of a document, far above what a person writes: bytes of the file, mappings and lists inside each other, values with aliases filled in.
_MOST_BYTES = 4 * 2**20
_DEEPEST = 40
_MOST_VALUES = 50_000
#: Ways to write null.
NOTHING = ("", "~", "null", "Null", "NULL")
_TAG = "tag:yaml.org,2002:"
_PLAIN = ("null", "bool", "int", "float", "str", "seq", "map")
#: 010 is 8 in YAML 1.1 and 10 in 1.2; 1:30 is 90 in 1.1 and text in 1.2.
_AMBIGUOUS = re.compile(r"[-+]?(0[0-9_]+|[0-9_]+(:[0-9]+)+)$")


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML document.

    Attributes:
        data: what it holds.
        unquoted: place of each plain scalar that is no text -> the characters of the file, which the value may not give back (1.10).
    """

    data: Any
    unquoted: Mapping[tuple[str | int, ...], str] = field(default_factory=dict)


def read_yaml(path: Path) -> Document:
    """Read a file.

    Raises:
        TrtbuildError: it is missing, or cannot be read.
        UsageError: it is no file of text, or not YAML; see `parse_document`.
    """
    hint = "name a trtbuild.yaml or a model folder"
    if not path.exists():
        raise TrtbuildError(f"{path} does not exist", hint=hint)
    if not path.is_file():
        raise UsageError(f"{path} is {'a folder' if path.is_dir() else 'not a regular file'}", hint=hint)
    if (size := path.stat().st_size) > _MOST_BYTES:
        raise UsageError(f"{path} has {size:,} bytes; at most {_MOST_BYTES:,} are read", hint=hint)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is not UTF-8 text: {error.reason} at byte {error.start}", hint="save it as UTF-8"
        ) from error
    except OSError as error:
        raise TrtbuildError(
            f"cannot read {path}: {error.strerror}", hint="check the file and its permissions"
        ) from error
    return parse_document(text, origin=str(path))


def parse_document(text: str, *, origin: str, hint: str = "`trtbuild init MODEL` writes a valid one") -> Document:
    """Read a document.

    Args:
        text: the document.
        origin: where it comes from, for the message.
        hint: what to do about a document that is no YAML.

    Raises:
        UsageError: it is not YAML, gives a key twice, is nested too deeply or too large, or holds what is no plain data.
    """
    try:
        loader = _PlainLoader(text)  # reads all characters, and refuses some
        node = loader.get_single_node()
        if node is None:
            return Document(None)
        unquoted: dict[tuple[str | int, ...], str] = {}
        _measure(node, (), {}, unquoted)
        return Document(loader.construct_document(node), unquoted)
    except yaml.YAMLError as error:
        raise UsageError(f"{origin} is not valid YAML: {_words(error)}", hint=hint) from error
    except RecursionError as error:
        raise UsageError(f"{origin} is nested too deeply", hint=f"use at most {_DEEPEST} levels") from error


def _words(error: yaml.YAMLError) -> str:
    """Return the problem on one line, with its place."""
    if isinstance(error, yaml.reader.ReaderError):
        return f"character #x{error.character:04x} at position {error.position}: {error.reason}"
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    if problem is None or mark is None:
        return " ".join(str(error).split())
    has_tab = problem.startswith("found character '\\t'")
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" + ("; indent with spaces" if has_tab else "")


def _measure(
    node: yaml.Node,
    place: tuple[str | int, ...],
    sizes: dict[int, int | None],
    unquoted: dict[tuple[str | int, ...], str],
) -> int:
    """Return the values of a node with its aliases filled in, and note its scalars that are no text.

    Args:
        node: of the document.
        place: keys and numbers on the way to it.
        sizes: what is known of other nodes; None for those that are being measured.
        unquoted: see `Document`; scalars behind an alias are noted where they are written first.

    Raises:
        yaml.YAMLError: it is too deep, too large, or contains itself.
    """
    if len(place) > _DEEPEST:
        raise _problem(node, f"more than {_DEEPEST} levels of nesting")
    if isinstance(node, yaml.ScalarNode):
        if node.style is None and node.tag != f"{_TAG}str":
            unquoted.setdefault(place, node.value)
        return 1
    if id(node) in sizes:
        known = sizes[id(node)]
        if known is None:
            raise _problem(node, "an alias that contains itself")
        return known
    sizes[id(node)] = None
    size = 1
    if isinstance(node, yaml.SequenceNode):
        for number, child in enumerate(node.value):
            size += _measure(child, (*place, number), sizes, unquoted)
    else:
        for key, child in node.value:
            size += _measure(key, (*place, "?"), sizes, {}) + _measure(child, (*place, str(key.value)), sizes, unquoted)
    if size > _MOST_VALUES:
        raise _problem(node, f"more than {_MOST_VALUES:,} values, aliases filled in")
    sizes[id(node)] = size
    return size


def _problem(node: yaml.Node, text: str) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, text, node.start_mark)


class _PlainLoader(yaml.SafeLoader):
    """The safe loader without dates, binary data and sets; a key given twice is an error instead of a silent last-one-wins."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build a mapping.

        Raises:
            yaml.YAMLError: a key is given twice.
        """
        seen: set[Any] = set()
        scalars = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.tag != f"{_TAG}merge"]
        for key_node in scalars:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise _problem(key_node, f"key '{key}' is given twice")
            seen.add(key)
        return super().construct_mapping(node, deep=deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Build a whole number.

        Raises:
            yaml.YAMLError: it has thousands of digits, or versions of YAML differ about it.
        """
        if _AMBIGUOUS.match(node.value):
            raise _problem(
                node, f"{node.value} is another number in YAML 1.1 than in 1.2; write it in decimal, or quote it"
            )
        try:
            return super().construct_yaml_int(node)
        except ValueError as error:
            raise _problem(node, f"{node.value[:20]}... is no usable whole number") from error


_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != f"{_TAG}timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_PlainLoader.yaml_constructors = {
    tag: construct
    for tag, construct in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.removeprefix(_TAG) in _PLAIN
}
_PlainLoader.add_constructor(f"{_TAG}int", _PlainLoader.construct_yaml_int)
