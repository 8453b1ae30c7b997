"""Files of samples as lists of records, whose token ids are asked for one by one: a record that is not taken is never tokenized.

Knows the kinds of files. Does not know how many records are wanted, nor in which order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trtbuild.errors import TrtbuildError
from trtbuild.quant.calibrate.encode import Encoder
from trtbuild.safetensors_file import TensorReader, read_header


@dataclass(frozen=True, slots=True)
class Record:
    """One sample of a file or of the built-in texts.

    Attributes:
        where: which it is, for messages: file and line, or its number, counted from 1.
        ids: returns its token ids, [] for an empty one.
    """

    where: str
    ids: Callable[[], list[int]]


#: The field of a JSONL record that is read unless another is named; "messages" and "input_ids" stand in for this one only.
DEFAULT_FIELD = "text"
_STAND_INS = ("messages", "input_ids")
#: Records as they should be, for hints.
_EXAMPLES = '{"text": "…"}, {"input_ids": [1, 2]} or {"messages": [{"role": "user", "content": "…"}]}'
#: Longest value that is shown whole, characters.
_SHOWN = 60


def read_records(file: Path, encoder: Encoder, *, field: str, max_length: int, purpose: str) -> Sequence[Record]:
    """Return the records of a file in their order.

    Args:
        file: text, JSONL or safetensors.
        encoder: of the model.
        field: the key of JSONL records that holds a text, a chat or token ids.
        max_length: tokens of the pieces that a text file without blank lines is cut into.
        purpose: what the samples are for, in messages.

    Raises:
        TrtbuildError: the file cannot be read. A malformed JSONL line raises when its record is asked for.
    """
    if file.suffix == ".safetensors":
        return numbered(str(file), (partial(list, row) for row in _rows_of_safetensors(file)))
    if file.suffix == ".jsonl":
        return [
            Record(f"{file}:{number}", partial(_line, line, f"{file}:{number}", encoder, field))
            # Not splitlines(): U+2028 and U+0085 may stand unescaped inside a JSON string.
            for number, line in enumerate(_read_text(file, purpose).removesuffix("\n").split("\n"), start=1)
        ]
    blocks = [block.strip() for block in _read_text(file, purpose).replace("\r\n", "\n").split("\n\n")]
    blocks = [block for block in blocks if block]
    if len(blocks) == 1:
        return numbered(str(file), _pieces(encoder.text(blocks[0]), max_length))
    return numbered(str(file), (partial(encoder.text, block) for block in blocks))


def numbered(origin: str, samples: Iterable[Callable[[], list[int]]]) -> list[Record]:
    """Return samples as records that are known by their number."""
    return [Record(f"{origin}: sample {number}", ids) for number, ids in enumerate(samples, start=1)]


def _pieces(ids: list[int], length: int) -> list[Callable[[], list[int]]]:
    """Cut one long document: neighbouring pieces, none dropped."""
    return [partial(list, ids[start : start + length]) for start in range(0, len(ids), length)]


def _line(line: str, where: str, encoder: Encoder, field: str) -> list[int]:
    if not line.strip():
        return []
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TrtbuildError(f"{where} is not valid JSON: {error}", hint='one object per line: {"text": "…"}') from error
    name, value = _value(record, where, field)
    if name != field:
        _check_stand_in(name, value, where)
    if isinstance(value, str):
        return encoder.text(value, where=where)
    if isinstance(value, list) and all(isinstance(token, int) and not isinstance(token, bool) for token in value):
        return value
    if isinstance(value, list) and any(isinstance(message, dict) for message in value):
        return encoder.chat(value, where=where)
    raise TrtbuildError(
        f"{where}: field '{name}' is {type(value).__name__}, and neither a text, nor token ids, nor messages",
        hint=_EXAMPLES,
    )


def _check_stand_in(name: str, value: Any, where: str) -> None:
    """Raise unless a field that nobody named holds what its name says: a text there is a mistake, not a sample."""
    if name == "messages":  # each of them is looked at when the chat is written out
        what, is_so = "messages", isinstance(value, list) and any(isinstance(each, dict) for each in value)
    else:
        what, is_so = "token ids", isinstance(value, list) and all(type(each) is int for each in value)
    if not is_so:
        shown = json.dumps(value, ensure_ascii=False)
        raise TrtbuildError(
            f"{where}: field '{name}' is {shown if len(shown) <= _SHOWN else shown[:_SHOWN] + '…'}, not a list of {what}",
            hint=_EXAMPLES,
        )


def _value(record: Any, where: str, field: str) -> tuple[str, Any]:
    """Return the field that is fed and what it holds: the one asked for, or what stands in for the default one."""
    if not isinstance(record, dict):
        raise TrtbuildError(
            f"{where} is {type(record).__name__}, not an object", hint='one object per line: {"text": "…"}'
        )
    names = (field, *_STAND_INS) if field == DEFAULT_FIELD else (field,)
    found = next((name for name in names if name in record), None)
    if found is None:
        keys = ", ".join(sorted(map(str, record))) or "nothing"
        raise TrtbuildError(
            f"{where} has neither {' nor '.join(names)}; it has {keys}"
            if len(names) > 1
            else f"{where} has no field '{field}'; it has {keys}",
            hint="name the field that holds the text or the messages with --calibration-field",
        )
    if found == "messages" and record[found] == []:
        raise TrtbuildError(
            f"{where}: messages is empty", hint="remove the line, or add messages with role and content"
        )
    return found, record[found]


def _read_text(file: Path, purpose: str) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TrtbuildError(f"cannot read {purpose} file {file}: {error}", hint="it must be UTF-8 text") from error


def _rows_of_safetensors(file: Path) -> list[list[int]]:
    info = read_header(file).get("input_ids")
    if info is None or len(info.shape) != 2 or info.dtype not in ("I64", "I32"):
        found = "is missing" if info is None else f"is {info.dtype} {list(info.shape)}"
        raise TrtbuildError(f"{file}: tensor input_ids {found}", hint="it must be int32 or int64 [samples, tokens]")
    with TensorReader() as reader:
        rows: list[list[int]] = reader.read(info).tolist()
    return rows
