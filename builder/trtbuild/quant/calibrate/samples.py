"""Samples to calibrate or to evaluate on: token ids from the built-in texts or from a file. Never a network call, never pickle.

A text file holds samples separated by blank lines; a JSONL file holds one object per line with "text" or "input_ids"; a safetensors
file holds `input_ids` [samples, tokens], each row fed once, in order.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild.errors import TrtbuildError
from trtbuild.quant.calibrate.texts import TEXTS
from trtbuild.safetensors_file import TensorReader, read_header
from trtbuild.source import TOKENIZER_ANY, SourceCheckpoint

logger = logging.getLogger(__name__)

#: Encodes one text to token ids.
Encode = Callable[[str], list[int]]
_SUFFIXES = (".txt", ".md", ".jsonl", ".safetensors")


@dataclass(frozen=True, slots=True)
class Samples:
    """Token ids to feed, one row at a time, and where they came from."""

    rows: tuple[tuple[int, ...], ...]
    origin: str

    @property
    def tokens(self) -> int:
        """Number of tokens in all rows."""
        return sum(map(len, self.rows))

    @property
    def digest(self) -> str:
        """SHA-256 of the ids."""
        return hashlib.sha256(json.dumps(self.rows).encode()).hexdigest()


def check_samples(source: SourceCheckpoint, file: Path | None, *, purpose: str = "calibration") -> None:
    """Refuse what can be seen without reading: a missing file, an unknown kind, texts without a tokenizer.

    A JSONL file may hold token ids alone, so whether it needs the tokenizer shows when it is read.

    Raises:
        TrtbuildError: calibration would fail.
    """
    if file is not None and not file.is_file():
        raise TrtbuildError(f"{purpose} file {file} does not exist", hint="give a text, JSONL or safetensors file")
    if file is not None and file.suffix not in _SUFFIXES:
        raise TrtbuildError(
            f"{purpose} file {file} is of an unknown kind", hint=f"allowed endings: {', '.join(_SUFFIXES)}"
        )
    if file is None or file.suffix not in (".safetensors", ".jsonl"):
        _require_tokenizer(source, purpose)


def _require_tokenizer(source: SourceCheckpoint, purpose: str) -> None:
    if not any((source.path / name).is_file() for name in TOKENIZER_ANY):
        raise TrtbuildError(
            f"{source.path} has no tokenizer, and {purpose} texts must be tokenized",
            hint="add the tokenizer files, or give token ids: a safetensors file with `input_ids`",
        )


def load_samples(
    source: SourceCheckpoint,
    file: Path | None,
    *,
    vocab_size: int,
    max_samples: int,
    max_length: int,
    texts: Sequence[str] = TEXTS,
    purpose: str = "calibration",
) -> Samples:
    """Return the samples to calibrate on, or to evaluate on.

    Args:
        source: the model, for its tokenizer.
        file: text, JSONL or safetensors; None takes the built-in texts.
        vocab_size: ids must lie below it.
        max_samples: at most this many.
        max_length: longer ones are cut to this many tokens; so are safetensors rows.
        texts: the built-in texts.
        purpose: what they are for, in messages: "calibration" or "evaluation".

    Raises:
        TrtbuildError: the file is malformed, an id is out of range, or nothing is left to feed.
    """
    check_samples(source, file, purpose=purpose)
    if file is not None and file.suffix == ".safetensors":
        rows: Iterable[list[int]] = _rows_of_safetensors(file)
    elif file is not None and file.suffix == ".jsonl":
        rows = _rows_of_jsonl(file, source, purpose)
    else:
        encode = _encoder(source, purpose)
        rows = [encode(text) for text in (texts if file is None else _paragraphs(file, purpose))]
    kept: list[tuple[int, ...]] = []
    empty = cut = 0
    for row in rows:
        if not row:
            empty += 1
            continue
        if len(kept) == max_samples:
            break
        cut += len(row) > max_length
        kept.append(tuple(row[:max_length]))
    origin = str(file) if file else "built-in texts"
    if empty or cut:
        logger.info("%s: %s: %d empty samples skipped, %d cut to %d tokens", purpose, origin, empty, cut, max_length)
    if not kept:
        raise TrtbuildError(
            f"{origin}: no {purpose} sample is left; at least one is needed", hint="add texts to the file"
        )
    low, high = min(map(min, kept)), max(map(max, kept))
    if low < 0 or high >= vocab_size:
        raise TrtbuildError(
            f"{origin}: token id {low if low < 0 else high} is outside the vocabulary of {vocab_size}",
            hint="use the model's own tokenizer",
        )
    return Samples(tuple(kept), origin)


def _encoder(source: SourceCheckpoint, purpose: str) -> Encode:
    _require_tokenizer(source, purpose)
    from trtbuild.quant.calibrate.libraries import transformers

    try:
        tokenizer = transformers().AutoTokenizer.from_pretrained(
            source.path, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise TrtbuildError(
            f"{source.path}: the tokenizer cannot be loaded: {error}", hint="check the tokenizer files"
        ) from error

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer(text)["input_ids"]
        return ids

    return encode


def _read_text(file: Path, purpose: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TrtbuildError(f"cannot read {purpose} file {file}: {error}", hint="it must be UTF-8 text") from error


def _paragraphs(file: Path, purpose: str) -> list[str]:
    return [block.strip() for block in _read_text(file, purpose).replace("\r\n", "\n").split("\n\n")]


def _rows_of_jsonl(file: Path, source: SourceCheckpoint, purpose: str) -> Iterable[list[int]]:
    encode: Encode | None = None
    for number, line in enumerate(_read_text(file, purpose).splitlines(), start=1):
        if not line.strip():
            yield []
            continue
        try:
            record: Any = json.loads(line)
        except ValueError as error:
            raise TrtbuildError(
                f"{file}:{number} is not valid JSON: {error}", hint='one object per line: {"text": "…"}'
            ) from error
        text, ids = (record.get("text"), record.get("input_ids")) if isinstance(record, dict) else (None, None)
        if isinstance(text, str):
            encode = encode or _encoder(source, purpose)
            yield encode(text) if text.strip() else []
        elif isinstance(ids, list) and all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
            yield ids
        else:
            raise TrtbuildError(
                f'{file}:{number} has neither "text" (a string) nor "input_ids" (integers)',
                hint="see docs/conversion.md",
            )


def _rows_of_safetensors(file: Path) -> Iterable[list[int]]:
    info = read_header(file).get("input_ids")
    if info is None or len(info.shape) != 2 or info.dtype not in ("I64", "I32"):
        found = "is missing" if info is None else f"is {info.dtype} {list(info.shape)}"
        raise TrtbuildError(f"{file}: tensor input_ids {found}", hint="it must be int32 or int64 [samples, tokens]")
    with TensorReader() as reader:
        rows: list[list[int]] = reader.read(info).tolist()
    return rows
