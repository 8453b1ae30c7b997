"""YAML as a person writes it: read with a loader that builds plain data only, and that refuses a key given twice."""

from __future__ import annotations

from typing import Any

import yaml

from trtbuild.errors import UsageError


def parse_yaml(text: str, *, origin: str) -> Any:
    """Return what a YAML document holds.

    Args:
        text: the document.
        origin: where it comes from, for the message.

    Raises:
        UsageError: it is not YAML, or gives a key twice.
    """
    try:
        return yaml.load(text, Loader=_UniqueKeyLoader)  # noqa: S506  # derives from SafeLoader
    except yaml.YAMLError as error:
        raise UsageError(
            f"{origin} is not valid YAML: {error}", hint="`trtbuild init MODEL` writes a valid one"
        ) from error


class _UniqueKeyLoader(yaml.SafeLoader):
    """The safe loader, except that a key given twice is an error instead of a silent last-one-wins."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, (str, int)) and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key '{key}' is given twice", key_node.start_mark)
            if isinstance(key, (str, int)):
                seen.add(key)
        return super().construct_mapping(node, deep=deep)
