"""Reads `--path-map HERE=THERE`, which several verbs take."""

from __future__ import annotations

from trtbuild.errors import UsageError


def read_path_map(text: str | None) -> tuple[str, str] | None:
    """Return the folder here and the same folder as the server sees it; None when nothing is mapped.

    Raises:
        UsageError: it is not of that form.
    """
    if text is None:
        return None
    here, separator, there = text.partition("=")
    if not (separator and here and there.startswith("/")):
        raise UsageError(f"--path-map {text} is not HERE=THERE with an absolute THERE", hint="e.g. /data/llm=/models")
    return here, there
