"""Writes rank files: header first, since all sizes are known, then each tensor front to back in any order of tensors.

Files are byte-identical between runs: tensors are ordered by alignment and name, and nothing else goes into the header.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtbuild.dtypes import SIZES, numpy_dtype
from trtbuild.layout import StoredTensor

_READ_BYTES = 16 * 2**20


class RankWriter:
    """One safetensors file under construction.

    Different tensors may be appended to from different threads.

    Args:
        path: the file; new, or left by an interrupted run with the same tensors.
        tensors: everything that will be in it.
        done: tensor name -> SHA-256 of what an interrupted run says it finished; believed where the file agrees.
    """

    def __init__(self, path: Path, tensors: Iterable[StoredTensor], *, done: Mapping[str, str]) -> None:
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
        self._final: dict[str, str] = {}
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        start = struct.pack("<Q", len(header)) + header
        is_ours = os.fstat(self._descriptor).st_size == base + position and os.pread(self._descriptor, base, 0) == start
        if not is_ours:
            os.ftruncate(self._descriptor, 0)
            os.ftruncate(self._descriptor, base + position)
            self._write_at(0, memoryview(start))
        for name, digest in done.items() if is_ours else ():
            if name in self._tensors and self._digest_on_disk(name) == digest:
                self._final[name] = digest
                self._written[name] = self._tensors[name].nbytes

    def is_done(self, name: str) -> bool:
        """Say whether a tensor was finished by an earlier run."""
        return name in self._final

    def digest(self, name: str) -> str:
        """Return the SHA-256 of a finished tensor."""
        assert self._written[name] == self._tensors[name].nbytes, name
        return self._final.get(name) or self._digests[name].hexdigest()

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
        if name in self._final:
            return
        done = self._written[name]
        assert done + len(raw) <= self._tensors[name].nbytes, name
        self._write_at(self._offsets[name] + done, raw)
        # Has the kernel begin to write to the disk now; else all of it waits for the sync at the end.
        os.posix_fadvise(self._descriptor, self._offsets[name] + done, len(raw), os.POSIX_FADV_DONTNEED)
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
        return {name: self.digest(name) for name in sorted(self._tensors)}

    def _digest_on_disk(self, name: str) -> str:
        digest = hashlib.sha256()
        offset, left = self._offsets[name], self._tensors[name].nbytes
        while left:
            block = os.pread(self._descriptor, min(left, _READ_BYTES), offset)
            digest.update(block)
            offset, left = offset + len(block), left - len(block)
        return digest.hexdigest()

    def close(self) -> None:
        """Close the file, finished or not."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
