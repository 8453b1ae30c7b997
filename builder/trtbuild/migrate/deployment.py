"""A trtbuild.yaml for engines, as rows: every field that is not at its default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trtbuild.gpus import Gpu
from trtbuild.migrate.choices import kv_cache_row, mode_rows, scheme_row
from trtbuild.migrate.row import Row
from trtbuild.migrate.tables import FIELDS_DECIDE, FIELDS_DROPPED
from trtbuild.spec import Deployment
from trtbuild.spec.fields import fields, value_at
from trtbuild.trtllm.llm_speculative import ENGINE_ONLY

#: Fields that the migration itself decides.
_OURS = ("target", "tensorrt_llm")


def deployment_rows(deployment: Deployment, gpu: Gpu | None) -> Iterator[Row]:
    """Yield what becomes of each field that differs from its default."""
    mode = deployment.speculative.mode
    for field in fields():
        place = ".".join(field.path)
        if field.section is not None or place in _OURS:
            continue
        value = value_at(deployment, field.path)
        if value == field.default and not field.required:
            continue
        if place == "quantization.scheme":
            yield scheme_row(place, value, gpu)
        elif place == "quantization.kv_cache":
            yield kv_cache_row(place, value, gpu)
        elif place == "quantization.overrides":
            yield from _overrides(place, value, gpu)
        elif mode in ENGINE_ONLY and field.path[0] == "speculative":
            if place == "speculative.mode":
                yield from mode_rows(place, value)
            else:
                yield Row("dropped", place, value, note=f"it belongs to mode {mode}")
        elif (note := _longest(FIELDS_DROPPED, place)) is not None:
            yield Row("dropped", place, value, note=note)
        elif (note := _longest(FIELDS_DECIDE, place)) is not None:
            yield Row("decide", place, value, note=note)
        else:
            yield Row("taken", place, value, place, value)


def _overrides(place: str, value: Mapping[str, str], gpu: Gpu | None) -> Iterator[Row]:
    rows = {pattern: scheme_row(f"{place}[{pattern}]", scheme, gpu) for pattern, scheme in value.items()}
    new: dict[str, Any] = {pattern: row.new_value for pattern, row in rows.items()}
    yield Row("taken", place, value, place, new)
    yield from (Row("decide", row.old, row.value, note=row.note) for row in rows.values() if row.verdict == "decide")


def _longest(table: Mapping[str, str], place: str) -> str | None:
    parts = place.split(".")
    return next((table[key] for n in range(len(parts), 0, -1) if (key := ".".join(parts[:n])) in table), None)
