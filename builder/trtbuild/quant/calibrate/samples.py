"""Samples to calibrate or to evaluate on: token ids from the built-in texts or from a file. Never a network call, never pickle.

A text file holds samples separated by blank lines, or one long document; a JSONL file holds one object per line with a text, a chat
or token ids; a safetensors file holds `input_ids` [samples, tokens], each row fed once. The ending of the name tells which, the rest
of the path nothing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.quant.calibrate.encode import Encoder, require_tokenizer
from trtbuild.quant.calibrate.records import DEFAULT_FIELD, Record, numbered, read_records
from trtbuild.quant.calibrate.texts import TEXTS
from trtbuild.source import SourceCheckpoint

logger = logging.getLogger(__name__)

#: What is taken unless the user says otherwise.
DEFAULT_SAMPLES = 64
DEFAULT_LENGTH_TOKENS = 512
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
        TrtbuildError: the file is missing, or the tokenizer.
        UsageError: it is of a kind that is not read.
    """
    if file is not None and not file.is_file():
        problem = "is not a file" if file.exists() else "does not exist"
        raise TrtbuildError(f"{purpose} file {file} {problem}", hint="give a text, JSONL or safetensors file")
    if file is not None and file.suffix not in _SUFFIXES:
        raise UsageError(
            f"{purpose} file {file} is of an unknown kind", hint=f"allowed endings: {', '.join(_SUFFIXES)}"
        )
    if file is None or file.suffix not in (".safetensors", ".jsonl"):
        require_tokenizer(source, purpose)


def load_samples(
    source: SourceCheckpoint,
    file: Path | None,
    *,
    vocab_size: int,
    max_samples: int,
    max_length: int,
    field: str = DEFAULT_FIELD,
    seed: int | None = None,
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
        field: key of JSONL records that holds the text, the messages or the ids.
        seed: None takes the records in their order; a number shuffles them first, the same way on every machine.
        texts: the built-in texts.
        purpose: what they are for, in messages: "calibration" or "evaluation".

    Raises:
        TrtbuildError: the file is malformed, an id is out of range, or nothing is left to feed.
    """
    check_samples(source, file, purpose=purpose)
    encoder = Encoder(source, purpose)
    origin = str(file) if file else "built-in texts"
    records: list[Record] = (
        numbered(origin, (partial(encoder.text, text) for text in texts))
        if file is None
        else list(read_records(file, encoder, field=field, max_length=max_length, purpose=purpose))
    )
    if seed is not None:
        records = _shuffled(records, seed)
    kept: list[tuple[int, ...]] = []
    empty = cut = 0
    for record in records:
        if len(kept) == max_samples:
            break
        row = record.ids()
        empty += not row
        if row:
            cut += len(row) > max_length
            kept.append(tuple(row[:max_length]))
            _require_known(kept[-1], record.where, vocab_size)
    if empty or cut:
        logger.info("%s: %s: %d empty samples skipped, %d cut to %d tokens", purpose, origin, empty, cut, max_length)
    if not kept:
        raise TrtbuildError(
            f"{origin}: no {purpose} sample is left; at least one is needed", hint="add texts to the file"
        )
    return Samples(tuple(kept), origin)


def _require_known(row: tuple[int, ...], where: str, vocab_size: int) -> None:
    low, high = min(row), max(row)
    if low < 0 or high >= vocab_size:
        raise TrtbuildError(
            f"{where}: token id {low if low < 0 else high} is outside the vocabulary of {vocab_size}",
            hint="use the model's own tokenizer",
        )


def _shuffled(records: list[Record], seed: int) -> list[Record]:
    """Sort by one draw of `random.Random(seed).random()` per record.

    Python promises that these draws stay the same in every version (documentation of `random`, notes on reproducibility); of
    `shuffle` it does not.
    """
    generator = random.Random(seed)
    draws = [generator.random() for _ in records]
    return [records[place] for place in sorted(range(len(records)), key=draws.__getitem__)]
