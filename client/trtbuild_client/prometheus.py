"""Prometheus' text format, read: https://prometheus.io/docs/instrumenting/exposition_formats/. Knows no metric."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(\{.*\})?\s+(\S+)(?:\s+-?\d+)?\s*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one time series.

    Attributes:
        name: as written, so with `_bucket`, `_sum` and `_count` for histograms.
    """

    name: str
    labels: Mapping[str, str]
    value: float


def parse(text: str) -> list[Sample]:
    """Return all samples; comments, families of unknown kind and lines that cannot be read are left out."""
    return [sample for line in text.splitlines() if (sample := _sample(line.strip())) is not None]


def select(samples: list[Sample], name: str, **labels: str) -> list[Sample]:
    """Return the samples of a name that carry these labels."""
    return [
        sample
        for sample in samples
        if sample.name == name and all(sample.labels.get(key) == value for key, value in labels.items())
    ]


def total(samples: list[Sample], name: str, **labels: str) -> float | None:
    """Return the sum of the selected samples, None (not 0) when there is none."""
    found = select(samples, name, **labels)
    return sum(sample.value for sample in found) if found else None


def _sample(line: str) -> Sample | None:
    match = None if line.startswith("#") else _LINE.fullmatch(line)
    if match is None:
        return None
    try:
        value = float(match[3])  # also +Inf, -Inf, NaN and 1e+06
        labels = dict(_labels(match[2][1:-1])) if match[2] else {}
    except ValueError:
        return None
    return Sample(match[1], labels, value)


def _labels(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while text[at:].strip():
        match = _LABEL.match(text, at)
        if match is None:
            raise ValueError("no label")
        yield match[1], re.sub(r"\\.", lambda escape: _ESCAPES.get(escape[0], escape[0]), match[2])
        at = match.end()
