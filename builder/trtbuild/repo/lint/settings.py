"""model.yaml: the settings of a model of the LLM API, as data. Reads, judges nothing but whether it can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from trtbuild.foreign_yaml import plain_yaml
from trtbuild.repo.lint.reading import Unreadable, read_bytes

#: Largest file that is read.
MOST_BYTES = 2**20


def read_settings(file: Path) -> tuple[Any, str]:
    """Return what a model.yaml holds, and why it cannot be read; empty when it can."""
    try:
        return plain_yaml(read_bytes(file, most_bytes=MOST_BYTES).decode("utf-8"), unique_keys=True), ""
    except (OSError, Unreadable, ValueError, TypeError, yaml.YAMLError) as problem:
        return None, " ".join(str(problem).split())
