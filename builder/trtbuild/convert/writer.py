"""Writes rank files: header first, since all sizes are known, then each tensor front to back in any order of tensors.

Files are byte-identical between runs: tensors are ordered by alignment and name, and nothing else goes into the header.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtbuild.dtypes import SIZES, numpy_dtype
from trtbuild.layout import StoredTensor


class RankWriter:
    """One safetensors file under construction.

    Args:
        path: the file; must not exist.
        tensors: everything that will be in it.
    """

    def __init__(self, path: Path, tensors: Iterable[StoredTensor]) -> None:
        # Widest dtype first keeps every tensor aligned without gaps, which the format does not allow.
        ordered = sorted(tensors, key=lambda tensor: (-SIZES[tensor.dtype], tensor.name))
        entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        position = 0
        self._tensors: dict[str, StoredTensor] = {}
        for tensor in ordered:
            end = position + tensor.nbytes
            entries[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [position, end]}
            self._tensors[tensor.name] = tensor
            position = end
        header = json.dumps(entries, separators=(",", ":")).encode()
        header += b" " * (-len(header) % 8)
        base = 8 + len(header)
        self._offsets = {name: base + entries[name]["data_offsets"][0] for name in self._tensors}
        self._written = dict.fromkeys(self._tensors, 0)
        self._digests = {name: hashlib.sha256() for name in self._tensors}
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.ftruncate(self._descriptor, base + position)
        self._write_at(0, memoryview(struct.pack("<Q", len(header)) + header))

    def append(self, name: str, data: NDArray[Any]) -> None:
        """Write the next rows of a tensor; strided views are copied, since bytes are taken as they lie in memory."""
        tensor = self._tensors[name]
        assert data.dtype == numpy_dtype(tensor.dtype), (name, data.dtype, tensor.dtype)
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
        self._append(name, raw)

    def pad_rows(self, name: str, rows: int) -> None:
        """Leave the next rows of a tensor zero."""
        tensor = self._tensors[name]
        self._append(name, memoryview(bytes(rows * tensor.nbytes // max(tensor.shape[0], 1))))

    def _append(self, name: str, raw: memoryview) -> None:
        done = self._written[name]
        assert done + len(raw) <= self._tensors[name].nbytes, name
        self._write_at(self._offsets[name] + done, raw)
        self._digests[name].update(raw)
        self._written[name] = done + len(raw)

    def _write_at(self, offset: int, raw: memoryview) -> None:
        while raw:
            count = os.pwrite(self._descriptor, raw, offset)
            raw, offset = raw[count:], offset + count

    def finish(self) -> dict[str, str]:
        """Close the file and return tensor name -> SHA-256 of its bytes."""
        short = [name for name, tensor in self._tensors.items() if self._written[name] != tensor.nbytes]
        assert not short, short
        self.close()
        return {name: digest.hexdigest() for name, digest in sorted(self._digests.items())}

    def close(self) -> None:
        """Close the file, finished or not."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
