"""model.yaml: the settings of a model of the LLM API, as data. Reads, judges nothing but whether it can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from trtbuild.repo.lint.reading import Unreadable, read_bytes

#: Largest file that is read, and most values that it may stand for: an alias of a list of aliases of lists ... is short, and never ends.
MOST_BYTES, MOST_VALUES = 2**20, 100_000

#: The C parser, where there is one: it takes a tenth of the time.
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SafeLoader):  # type: ignore[misc] # one of two classes
    """The safe loader, except that a key given twice is an error: the server takes the last one without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := next((key for key in keys if keys.count(key) > 1), None):
            raise yaml.constructor.ConstructorError(None, None, f"key '{twice}' is given twice", node.start_mark)
        return dict(super().construct_mapping(node, deep=deep))


def read_settings(file: Path) -> tuple[Any, str]:
    """Return what a model.yaml holds, and why it cannot be read; empty when it can."""
    try:
        data = yaml.load(read_bytes(file, most_bytes=MOST_BYTES).decode("utf-8"), Loader=_Loader)  # noqa: S506 # derives from a safe loader
        if _values(data, {}) > MOST_VALUES:
            return None, f"it stands for more than {MOST_VALUES} values"
    except RecursionError:
        return None, "it is nested too deeply, or in itself"
    except (OSError, Unreadable, ValueError, TypeError, yaml.YAMLError) as problem:
        return None, " ".join(str(problem).split())
    return data, ""


def _values(data: Any, known: dict[int, int]) -> int:
    """Return how many values there are when every alias is written out; RecursionError for one that holds itself."""
    if not isinstance(data, dict | list):
        return 1
    if id(data) not in known:
        inner = data.values() if isinstance(data, dict) else data
        known[id(data)] = 1 + sum(_values(each, known) for each in inner)
    return known[id(data)]
