"""Matrices that are gone through in row blocks: in memory in another dtype, or in a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

#: Elements of a row block: with the temporaries of one step about eight times that is in memory, in float32.
BLOCK_ELEMENTS = 1 << 22


class Rows(Protocol):
    """A matrix [rows, columns] whose rows can be had in float32; a float32 tensor is one.

    Attributes:
        shape: rows, columns.
    """

    @property
    def shape(self) -> torch.Size: ...
    def __len__(self) -> int: ...
    def __getitem__(self, rows: slice, /) -> Tensor:
        """Return some rows, float32."""
        ...


def row_blocks(matrix: Rows) -> Iterator[slice]:
    """Yield the row blocks of a matrix, each of about BLOCK_ELEMENTS elements."""
    rows = max(1, BLOCK_ELEMENTS // matrix.shape[1])
    for start in range(0, len(matrix), rows):
        yield slice(start, min(start + rows, len(matrix)))


class FloatRows:
    """A matrix in memory, in any dtype: rows become float32 as they are asked for."""

    def __init__(self, matrix: Tensor) -> None:
        self._matrix = matrix

    @property
    def shape(self) -> torch.Size:
        """Rows and columns."""
        return self._matrix.shape

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._matrix)

    def __getitem__(self, rows: slice) -> Tensor:
        """Return some rows, float32."""
        return self._matrix[rows].float()


class StoredRows:
    """A matrix in a file that is read and written, not mapped: mapped pages would count as the process's memory."""

    def __init__(self, file: Path, columns: int, *, device: str | torch.device = "cpu") -> None:
        """Start without rows. What the file held before is lost."""
        self._path, self._columns, self._device = file, columns, device
        self._file = os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._rows = 0
        self._dtype = torch.float32

    @property
    def shape(self) -> torch.Size:
        """Rows and columns."""
        return torch.Size((self._rows, self._columns))

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._rows

    def append(self, rows: Tensor) -> None:
        """Put rows behind those that are there. rows: [count, columns], of the same dtype each time."""
        owned = rows.detach().to("cpu").contiguous()
        assert self._rows == 0 or owned.dtype == self._dtype, (owned.dtype, self._dtype)
        self._dtype = owned.dtype
        raw, position = memoryview(owned.view(torch.uint8).numpy()).cast("B"), self._rows * self._row_bytes
        while raw:
            written = os.pwrite(self._file, raw, position)
            raw, position = raw[written:], position + written
        self._rows += len(owned)

    def __getitem__(self, rows: slice) -> Tensor:
        """Return some rows, float32."""
        start, stop, step = rows.indices(self._rows)
        if step != 1:
            return torch.cat([self[row : row + 1] for row in range(start, stop, step)])
        found = torch.empty((stop - start, self._columns), dtype=self._dtype)
        raw, position = memoryview(found.view(torch.uint8).numpy()).cast("B"), start * self._row_bytes
        while raw:
            count = os.preadv(self._file, [raw], position)
            assert count, f"{self._path} was cut"
            raw, position = raw[count:], position + count
        return found.to(self._device).float()

    def remove(self) -> None:
        """Give the file back, and delete it."""
        os.close(self._file)
        self._path.unlink()

    @property
    def _row_bytes(self) -> int:
        size: int = self._columns * self._dtype.itemsize
        return size
