"""The activations of all rows between two layers, in memory or in a file. Knows neither models nor layers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor


class Activations:
    """Rows [1, tokens, width] of different lengths.

    A file is read and written row by row, not mapped: mapped pages would count as the process's memory.
    """

    def __init__(self, lengths: Sequence[int], width: int, *, dtype: torch.dtype, file: Path | None = None) -> None:
        """Make room for the rows; those of an existing file are kept.

        Args:
            lengths: tokens of each row.
            width: values of a token.
            dtype: of the values.
            file: where they are kept; None for in memory.
        """
        self._shapes = [(1, length, width) for length in lengths]
        self._dtype = dtype
        self._starts = [sum(lengths[:row]) * width * dtype.itemsize for row in range(len(lengths))]
        self._rows: list[Tensor | None] = [None] * len(lengths)
        self._file = None if file is None else os.open(file, os.O_RDWR | os.O_CREAT, 0o644)

    @classmethod
    def fitting(
        cls, lengths: Sequence[int], width: int, *, dtype: torch.dtype, file: Path, memory_bytes: int
    ) -> Activations:
        """Return room in memory when all rows fit into `memory_bytes`, else in the file."""
        fits = sum(lengths) * width * dtype.itemsize <= memory_bytes
        return cls(lengths, width, dtype=dtype, file=None if fits else file)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._shapes)

    def put(self, row: int, values: Tensor) -> None:
        """Keep a row. values: [1, tokens, width], on any device."""
        assert tuple(values.shape) == self._shapes[row], (values.shape, self._shapes[row])
        owned = values.detach().to("cpu", self._dtype, copy=self._file is None).contiguous()
        if self._file is None:
            self._rows[row] = owned
            return
        raw, position = memoryview(owned.view(torch.uint8).numpy()).cast("B"), self._starts[row]
        while raw:
            written = os.pwrite(self._file, raw, position)
            raw, position = raw[written:], position + written

    def get(self, row: int) -> Tensor:
        """Return a row, [1, tokens, width] on the CPU; not to be changed in place."""
        if self._file is None:
            values = self._rows[row]
            assert values is not None, f"row {row} was never put"
            return values
        found = torch.empty(self._shapes[row], dtype=self._dtype)
        raw, position = memoryview(found.view(torch.uint8).numpy()).cast("B"), self._starts[row]
        while raw:
            count = os.preadv(self._file, [raw], position)
            assert count, f"row {row} was never put"
            raw, position = raw[count:], position + count
        return found

    def sync(self) -> None:
        """Have a file outlast a crash of the machine."""
        if self._file is not None:
            os.fsync(self._file)

    def close(self) -> None:
        """Give memory and file back; the file itself stays."""
        self._rows = [None] * len(self._rows)
        if self._file is not None:
            os.close(self._file)
            self._file = None
