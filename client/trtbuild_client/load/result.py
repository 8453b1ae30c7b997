"""The result of a load test as one JSON document, with every request in it: written, and read again.

Schema "trtbuild.bench", version 1; docs/load_testing.md describes every key. Unknown keys are ignored when it is read, so that newer
results stay readable; a key that is needed and missing, or of the wrong type, is an error that names it.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

from trtbuild_client.errors import ClientError
from trtbuild_client.load.run import Run
from trtbuild_client.load.summary import Summary
from trtbuild_client.load.table import COLUMNS, NONE, RecordTable
from trtbuild_client.output_file import replaced

#: Numbers that are made text at a time.
_PART = 4096
SCHEMA, SCHEMA_VERSION = "trtbuild.bench", 1
#: Columns that hold times: nanoseconds after the start of the run in a result, -1 where there is none.
_TIMES = ("due_ns", "sent_ns", "end_ns", "first_content_ns")


class ResultError(ClientError):
    """A file that is no result, or lacks what is needed."""


@dataclass(frozen=True)
class Stored:
    """One run of a result that was read.

    Attributes:
        label: of the run.
        summary: as it was written.
        table: the records; times are nanoseconds after the start of the run.
        endpoint: what was asked, as it was written.
    """

    label: str
    summary: dict[str, Any]
    table: RecordTable
    endpoint: dict[str, Any]

    @property
    def is_valid(self) -> bool:
        """Whether the client was not the bottleneck."""
        return bool(self.summary["valid"])

    @property
    def invalid_reasons(self) -> str:
        """Why it is not valid, for people."""
        return "; ".join(self.summary.get("invalid_reasons", ())) or "it does not say why"

    @property
    def is_streamed(self) -> bool:
        """Whether tokens were asked for as they come."""
        return bool(self.summary["load"].get("streamed", True))


def document(
    runs: list[tuple[Summary, Run]], *, endpoint: dict[str, Any], created: str, extra: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the result as JSON values.

    Args:
        runs: in the order in which they were made.
        endpoint: what was asked, as JSON values.
        created: ISO 8601 time of the beginning.
        extra: further keys at the top.
    """
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "created": created,
        "endpoint": endpoint,
        **(extra or {}),
        "runs": [{**summary.to_json(), "records": records(run.table, run.started_ns)} for summary, run in runs],
    }


class Numbers:
    """A list of whole numbers that is made while it is written, as often as wanted.

    Args:
        make: gives them in parts.
    """

    def __init__(self, make: Callable[[], Iterable[array[int]]]) -> None:
        self._make = make

    def texts(self) -> Iterator[str]:
        """Yield its JSON text in parts."""
        opening = "["
        for part in filter(None, self._make()):
            yield opening + json.dumps(part.tolist())[1:-1]
            opening = ", "
        yield "[]" if opening == "[" else "]"


def records(table: RecordTable, started_ns: int) -> dict[str, Any]:
    """Return all requests as columns: `events` of them, from `first_event` on, are in `event_ns` and `event_tokens`."""
    rows = range(len(table))

    def parts(name: str) -> Iterator[array[int]]:
        column = table.columns[name]
        for start in rows[::_PART]:
            part = column[start : start + _PART]
            yield array("q", map(since, part)) if name in _TIMES else part

    def since(at_ns: int) -> int:
        return NONE if at_ns == NONE else at_ns - started_ns

    def first_events() -> Iterator[array[int]]:
        yield array("q", accumulate(table.columns["events"], initial=0))[
            :-1
        ]  # the events are in the order of the requests

    columns = {name: Numbers(partial(parts, name)) for name in COLUMNS}
    return {
        "started_ns": started_ns,
        "columns": {**columns, "first_event": Numbers(first_events)},
        "event_ns": Numbers(lambda: (table.event_ns(index, started_ns) for index in rows)),
        "event_tokens": Numbers(lambda: map(table.event_tokens, rows)),
        "errors": table.errors,
    }


def write(path: Path, value: dict[str, Any]) -> None:
    """Write a result, whole or not at all. Lists are written in parts: as one text they would be the most that a load test keeps."""
    write_text(path, chain(_pieces(value), "\n"))


def _pieces(value: Any) -> Iterator[str]:
    """Yield the JSON text of a value whose lists may be long."""
    if isinstance(value, dict):
        opening = "{"
        for name, each in value.items():
            yield f"{opening}{json.dumps(name)}: "
            yield from _pieces(each)
            opening = ", "
        yield "{}" if opening == "{" else "}"
    elif isinstance(value, Numbers):
        yield from value.texts()
    elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
        for number, each in enumerate(value):
            yield ", " if number else "["
            yield from _pieces(each)
        yield "]"
    else:
        yield json.dumps(value, allow_nan=False, ensure_ascii=False)


def write_text(path: Path, pieces: str | Iterable[str]) -> None:
    """Write a text file, whole or not at all, and its folder where there is none: see `output_file.replaced`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as file:
        file.writelines(each.encode() for each in ([pieces] if isinstance(pieces, str) else pieces))


def read(path: Path) -> list[Stored]:
    """Return the runs of a result.

    Raises:
        ResultError: the file is no result, of a version we do not know, lacks a key, or has records that cannot be.
    """
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ResultError(
            f"{path} cannot be read: {reason}", hint="Give a file that `trtbuild bench --output` wrote."
        ) from error
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise ResultError(f"{path} is no result of trtbuild bench", hint=f'Its "schema" must be "{SCHEMA}".')
    version = _need(path, value, "schema_version", int)
    if version > SCHEMA_VERSION:
        raise ResultError(
            f"{path} has schema version {version}",
            hint=f"This trtbuild reads up to {SCHEMA_VERSION}: use the one that wrote it.",
        )
    endpoint = _need(path, value, "endpoint", dict)
    return [_stored(path, each, endpoint) for each in _need(path, value, "runs", list)]


def _stored(path: Path, value: Any, endpoint: dict[str, Any]) -> Stored:
    for name, kind in (("label", str), ("valid", bool), ("load", dict), ("requests", dict), ("records", dict)):
        _need(path, value, name, kind)
    reasons = value.get("invalid_reasons", [])
    if not (isinstance(reasons, list) and all(isinstance(each, str) for each in reasons)):
        raise ResultError(f"{path}: 'invalid_reasons' is no list of texts", hint="The file is damaged.")
    stored = value["records"]
    listed = _need(path, stored, "columns", dict)
    columns = {name: _numbers(path, listed, name, code) for name, code in COLUMNS.items()}
    event_ns, event_tokens = _numbers(path, stored, "event_ns", "q"), _numbers(path, stored, "event_tokens", "i")
    lengths = {len(column) for column in columns.values()}
    if len(lengths) > 1 or not sum(columns["events"]) == len(event_ns) == len(event_tokens):
        raise ResultError(f"{path}: the columns of its records differ in length", hint="The file is damaged.")
    from trtbuild_client.load.soundness import complaint

    table, errors = RecordTable(), _need(path, stored, "errors", list)
    wrong = complaint(
        columns, event_ns, event_tokens, errors=len(errors), counts=value["requests"], label=value["label"]
    )
    if wrong is not None:
        raise ResultError(f"{path}: {wrong}", hint="The file is damaged.")
    for index in range(len(columns["number"])):
        row = {name: column[index] for name, column in columns.items()}
        first, error = row["first_event"], row["error"]
        part = slice(first, first + row["events"])
        table.append(row, event_ns[part], event_tokens[part], None if error == NONE else str(errors[error]))
    summary = {name: each for name, each in value.items() if name != "records"}
    return Stored(value["label"], summary, table, endpoint)


def _numbers(path: Path, value: Any, name: str, code: str) -> array[int]:
    try:
        return array(code, _need(path, value, name, list))
    except (TypeError, OverflowError) as error:
        raise ResultError(
            f"{path}: column '{name}' is no list of integers: {error}", hint="The file is damaged."
        ) from error


def _need(path: Path, value: Any, name: str, kind: type) -> Any:
    if not isinstance(value, dict) or name not in value:
        version = value.get("schema_version", "") if isinstance(value, dict) else ""
        raise ResultError(
            f"{path} lacks the key '{name}'" + (f" (schema version {version})" if version else ""),
            hint=f"Results of schema version {SCHEMA_VERSION} have it; run the test again.",
        )
    found = value[name]
    if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
        raise ResultError(
            f"{path}: '{name}' is {type(found).__name__}, not {kind.__name__}", hint="The file is damaged."
        )
    return found
