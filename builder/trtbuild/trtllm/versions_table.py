"""The table of releases for people and for machines, from `versions.RELEASES` and `versions.FEATURES` alone.

Printed by `trtbuild versions`; docs/versions.md holds the same table.
"""

from __future__ import annotations

import re
from typing import Any

from trtbuild.errors import UsageError
from trtbuild.trtllm.versions import (
    FEATURES,
    RELEASES,
    Container,
    Feature,
    Release,
    Span,
    find_release,
    release_of_tag,
)

HEADER = (
    "TensorRT-LLM", "containers", "Triton", "TensorRT", "CUDA", "driver", "Python", "ModelOpt", "transformers", "evidence",
)  # fmt: skip
FEATURE_HEADER = ("feature", "releases", "evidence", "source")
#: A container tag alone, or the image that carries it.
_TAG = re.compile(r"(?:.*:)?(\d{2}\.\d{2})(?:-[a-z0-9-]+)?")
_NOT_KNOWN = "-"


def rows() -> tuple[list[list[str]], list[str]]:
    """Return the cells of every release, oldest first, and the notes that numbers in the first column refer to."""
    notes, cells = [], []
    for release in RELEASES:
        mark = ""
        if release.note:
            notes.append(f"{release.name}: {release.note}")
            mark = f" ({len(notes)})"
        boxes = release.containers
        cells.append([
            release.name + mark, _range([box.tag for box in boxes]), _range([box.server for box in boxes]),
            release.tensorrt or _NOT_KNOWN, release.cuda or _NOT_KNOWN, _range([box.driver for box in boxes]), release.python,
            release.modelopt or _NOT_KNOWN, release.transformers or _NOT_KNOWN, release.evidence,
        ])  # fmt: skip
    return cells, notes


def feature_rows() -> list[list[str]]:
    """Return the cells of every feature."""
    return [[feature.value, _spanned(span), span.evidence, span.source] for feature, span in FEATURES.items()]


def data() -> dict[str, Any]:
    """Return the whole table as plain values."""
    features = {
        feature.name.lower(): {
            "meaning": feature.value, "since": span.since, "until": span.until, "evidence": span.evidence, "source": span.source,
        }
        for feature, span in FEATURES.items()
    }  # fmt: skip
    return {"releases": [describe(release) for release in RELEASES], "features": features}


def describe(release: Release, container: Container | None = None) -> dict[str, Any]:
    """Return one release as plain values.

    Args:
        release: the row.
        container: the one that was asked for; its image comes first, without it that of the newest.
    """
    chosen = container or release.container
    return {
        "tensorrt_llm": release.name,
        "image": chosen.image if chosen else None,
        "driver": chosen.driver if chosen else None,
        "server": chosen.server if chosen else None,
        "tensorrt": release.tensorrt or None,
        "cuda": release.cuda or None,
        "python": release.python,
        "modelopt": release.modelopt or None,
        "transformers": release.transformers or None,
        "containers": [
            {"tag": box.tag, "server": box.server, "driver": box.driver, "image": box.image}
            for box in release.containers
        ],
        "features": [feature.name.lower() for feature in Feature if release.has(feature)],
        "evidence": release.evidence,
        "note": release.note,
    }


def find_row(typed: str) -> tuple[Release, Container | None]:
    """Return the release that a version, a container tag or an image means, and the container if one was meant.

    Raises:
        UsageError: neither a known release nor a known tag.
    """
    match = _TAG.fullmatch(typed.strip())
    if match is None:
        return find_release(typed), None
    release = release_of_tag(match[1])
    if release is None:
        tags = [box.tag for each in RELEASES for box in each.containers]
        raise UsageError(
            f"no container {match[1]} with TensorRT-LLM is known", hint=f"known tags: {tags[0]} to {tags[-1]}"
        )
    return release, next(box for box in release.containers if box.tag == match[1])


def markdown() -> str:
    """Return the tables in Markdown."""
    cells, notes = rows()
    lines = _table(HEADER, cells)
    lines += ["", *(f"({number}) {note}" + "  " for number, note in enumerate(notes, start=1)), ""]
    return "\n".join([*lines, *_table(FEATURE_HEADER, feature_rows())]) + "\n"


def _table(header: tuple[str, ...], cells: list[list[str]]) -> list[str]:
    lines = [f"| {' | '.join(line)} |" for line in (header, *cells)]
    return [lines[0], "|---" * len(header) + "|", *lines[1:]]


def _range(values: list[str]) -> str:
    """Return the distinct values, the first and the last where they are many."""
    distinct = list(dict.fromkeys(values))
    if not distinct:
        return _NOT_KNOWN
    return ", ".join(distinct) if len(distinct) <= 2 else f"{distinct[0]} to {distinct[-1]}"


def _spanned(span: Span) -> str:
    since = f"from {span.since}" if span.since else "all"
    return f"{since}, before {span.until}" if span.until else since
