"""YAML of anybody, for those who only look at it: what it says, without the rules of trtbuild.yaml (`yaml_text`), and in bounded time."""

from __future__ import annotations

from typing import Any

import yaml

#: Values that a document may stand for with its aliases followed; nine lines of ten aliases each would stand for a billion.
_MOST_VALUES = 1_000_000


#: The parser in C, where there is one, takes a tenth of the time; both are safe.
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _UniqueKeys(_SafeLoader):  # type: ignore[misc] # one of two classes
    """The safe loader, except that a key given twice is an error: others take the last one without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := next((key for key in keys if keys.count(key) > 1), None):
            raise yaml.constructor.ConstructorError(None, None, f"key '{twice}' is given twice", node.start_mark)
        return dict(super().construct_mapping(node, deep=deep))


def plain_yaml(text: str, *, unique_keys: bool = False) -> Any:
    """Return what a YAML document holds, None of an empty one.

    Args:
        text: the document.
        unique_keys: refuse a key given twice.

    Raises:
        yaml.YAMLError: it is not YAML, nested too deeply, or has aliases that stand for themselves or for more values than can be walked.
    """
    reader = (_UniqueKeys if unique_keys else _SafeLoader)(text)
    try:
        node = reader.get_single_node()
        if node is None:
            return None
        _count(node, {})
        return reader.construct_document(node)
    except RecursionError as error:
        raise yaml.YAMLError("it is nested too deeply") from error
    finally:
        reader.dispose()


def _count(node: yaml.Node, counts: dict[int, int]) -> int:
    """Return the values that a node stands for, each node counted once."""
    if id(node) in counts:
        if not counts[id(node)]:
            raise yaml.YAMLError(f"an alias stands for what it is part of{node.start_mark}")
        return counts[id(node)]
    counts[id(node)] = 0  # being counted
    parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
    total = 1 + (sum(_count(part, counts) for part in parts) if isinstance(node, yaml.CollectionNode) else 0)
    if total > _MOST_VALUES:
        raise yaml.YAMLError(f"its aliases stand for more than {_MOST_VALUES:,} values")
    counts[id(node)] = total
    return total
