"""Records of files with prompts: where each stands, and what each field may hold. Nothing is put right silently."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild_client.errors import InvalidRequest

#: Most tokens to ask for: `max_tokens` of TensorRT-LLM's models is an INT32 (all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt).
MOST_TOKENS = 2**31 - 1
#: Longest prompt of a trace: the longest context of any published model (Llama 4 Scout, config.json: max_position_embeddings 10485760).
_MOST_INPUT = 10_485_760
#: Latest time of a trace, milliseconds: as nanoseconds it still fits in 64 bits; times since 1970 are far below.
_MOST_MS = 9e12


@dataclass(frozen=True, slots=True)
class Field:
    """What a field may hold.

    Attributes:
        names: the names it goes by; the first that is there counts. null is the same as leaving it out.
        what: what is allowed, for people.
        accepts: says whether a value is.
    """

    names: tuple[str, ...]
    what: str
    accepts: Callable[[Any], bool]


def _whole(names: tuple[str, ...], most: int) -> Field:
    return Field(names, f"a whole number from 1 to {most}", lambda value: type(value) is int and 1 <= value <= most)


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= _MOST_MS


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is int for each in value)


PROMPT = Field(
    ("prompt", "text_input", "text", "input"),
    "a text that is not blank",
    lambda value: isinstance(value, str) and bool(value.strip()),
)
WANTED = _whole(("max_tokens", "output_length"), MOST_TOKENS)
MESSAGES = Field(
    ("conversations", "messages"),
    "a list of objects",
    lambda value: isinstance(value, list) and all(isinstance(each, dict) for each in value),
)
SPEAKER = Field(("from", "role"), "a name, such as human or user", lambda value: isinstance(value, str))
SAID = Field(
    ("value", "content"),
    "a text, or a list of parts with a type",
    lambda value: (
        isinstance(value, str)
        or (
            isinstance(value, list)
            and all(isinstance(each, dict) and isinstance(each.get("type"), str) for each in value)
        )
    ),
)
PART = Field(("text",), "a text", lambda value: isinstance(value, str))
TIMESTAMP = Field(("timestamp",), f"a number of milliseconds from 0 to {_MOST_MS:g}", _is_time)
INPUT_LENGTH = _whole(("input_length",), _MOST_INPUT)
OUTPUT_LENGTH = _whole(("output_length",), MOST_TOKENS)
HASH_IDS = Field(("hash_ids",), "a list of whole numbers", _are_ids)


@dataclass(frozen=True, slots=True)
class Record:
    """One object of a file.

    Attributes:
        place: file and line, for errors.
        values: what it holds.
    """

    place: str
    values: dict[str, Any]

    def get(self, field: Field) -> Any:
        """Return what a field holds, None where it is not there.

        Raises:
            InvalidRequest: it holds something that is not allowed.
        """
        for name in field.names:
            value = self.values.get(name)
            if value is not None:
                if not field.accepts(value):
                    raise InvalidRequest(f"{self.place}: '{name}' is {quoted(value)}", hint=f"It must be {field.what}.")
                self._refuse_surrogates(name, value)
                return value
        return None

    def need(self, field: Field, example: str) -> Any:
        """Return what a field holds.

        Args:
            example: a record that has it.

        Raises:
            InvalidRequest: it is not there, or holds something that is not allowed.
        """
        value = self.get(field)
        if value is None:
            raise InvalidRequest(f"{self.place}, has no {field.names[0]}", hint=f"Write {example}.")
        return value

    def _refuse_surrogates(self, name: str, value: Any) -> None:
        try:
            if isinstance(value, str):
                value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"{self.place}: '{name}' has half of a surrogate pair (\\u{ord(value[error.start]):04x}) at character {error.start}",
                hint="Such a text has no bytes that could be sent: write both halves, or the character itself.",
            ) from error


def quoted(value: Any) -> str:
    """Return a value as JSON writes it, cut where it is long."""
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 60 else f"{text[:57]}..."


def text_of_file(path: Path) -> str:
    """Return the text of a file in UTF-8, with or without a byte order mark.

    Raises:
        InvalidRequest: it is not UTF-8; says the line.
    """
    raw = path.read_bytes()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise InvalidRequest(
            f"{path}, line {line}, is not UTF-8: byte 0x{error.object[error.start]:02x}",
            hint="Write the file in UTF-8 (iconv -f LATIN1 -t UTF-8 turns one encoding into another).",
        ) from error


def records_of_lines(path: Path, lines: list[tuple[int, str]]) -> Iterator[Record]:
    """Yield the objects of JSONL: one on each line.

    Raises:
        InvalidRequest: a line that is none.
    """
    for number, line in lines:
        try:
            value, end = _decoder.raw_decode(line.strip())
            if end != len(line.strip()):
                raise ValueError(f"more after its end: {quoted(line.strip()[end:])}")
        except (ValueError, RecursionError) as error:
            raise _no_json(path, number, error) from error
        yield _record(path, number, value)


def records_of_list(path: Path, text: str) -> Iterator[Record]:
    """Yield the objects of one JSON list, each with the line on which it begins.

    Raises:
        InvalidRequest: the file is no such list.
    """
    position, line, counted = text.index("[") + 1, 1, 0
    is_first = True
    while True:
        position = _skip_space(text, position)
        line, counted = line + text.count("\n", counted, position), position
        if text[position : position + 1] == "]":
            break
        try:
            if not is_first:
                if text[position : position + 1] != ",":
                    raise ValueError("neither ',' nor ']' after an entry")
                position = _skip_space(text, position + 1)
                line, counted = line + text.count("\n", counted, position), position
            value, position = _decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            raise _no_json(path, error.lineno, error) from error
        except (ValueError, RecursionError) as error:
            raise _no_json(path, line, error) from error
        yield _record(path, line, value)
        is_first = False
    if text[position + 1 :].strip():
        raise _no_json(path, line, ValueError(f"more after its end: {quoted(text[position + 1 :].strip())}"))


def _skip_space(text: str, position: int) -> int:
    while text[position : position + 1] in (" ", "\t", "\r", "\n"):
        position += 1
    return position


def _record(path: Path, line: int, value: Any) -> Record:
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"{path}, line {line}: {quoted(value)} is no object", hint='An entry is such as {"prompt": "..."}.'
        )
    return Record(f"{path}, line {line}", value)


def _no_json(path: Path, line: int, error: Exception) -> InvalidRequest:
    return InvalidRequest(
        f"{path}, line {line}, is no JSON: {error}",
        hint="Repair it or remove the line. A file that begins with { or [ is read as JSON, any other as a prompt per line.",
    )


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no number")
    return value


#: Reads JSON alone: Python's own takes NaN and Infinity, too.
_decoder = json.JSONDecoder(parse_constant=_number, parse_float=_number)
