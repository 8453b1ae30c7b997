"""Headers of safetensors files and reads of single tensors or row ranges, without mapping the file.

`pread` is used on purpose: pages of a mapped file count as resident memory, which would break the memory bound.
Source: the safetensors format: u64 little-endian header length, JSON header, then the tensors without gaps.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trtbuild.dtypes import SIZES, numpy_dtype
from trtbuild.errors import TrtbuildError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Limit of the safetensors library; a larger length means that the file is something else.
MAX_HEADER_BYTES = 100_000_000
#: Longest entry that a message shows, characters.
_SHOWN = 200
#: Bytes of a tensor that are hashed at once.
_DIGEST_BYTES = 4 * 2**20
#: More axes than any weight has; bounds the product of a shape.
_MOST_AXES = 16
_LFS_MAGIC = b"version https://git-lfs"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies: file, dtype (safetensors name), shape, absolute offset and size in bytes."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.nbytes // max(num_rows(self.shape), 1)

    def read_rows(self, reader: TensorReader, start: int, stop: int) -> NDArray[Any]:
        """Return rows [start, stop); see `SourceTensor`."""
        return reader.read_rows(self, start, stop)


class SourceTensor(Protocol):
    """A weight that can be read in row blocks: as it lies in a file, or computed from what lies there.

    A row is one index of all axes but the last together: a tensor [E, out, in] has E * out rows of [in], a vector [n] has n rows
    of one number.

    Attributes:
        name: Hugging Face name of the weight.
        path: the file, for messages.
        dtype: safetensors dtype of what `read_rows` returns.
        shape: full shape.
        nbytes: bytes that lie in the file.
    """

    @property
    def name(self) -> str: ...
    @property
    def path(self) -> Path: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...

    def read_rows(self, reader: TensorReader, start: int, stop: int) -> NDArray[Any]:
        """Return rows [start, stop) as [rows, last axis], a vector's as [rows]; memory: a few times those rows.

        Raises:
            TrtbuildError: the file cannot be read; the message names file and tensor.
        """
        ...


def num_rows(shape: tuple[int, ...]) -> int:
    """Return the number of rows of a tensor (see `SourceTensor`)."""
    return math.prod(shape[:-1]) if len(shape) > 1 else math.prod(shape)


def encoded(arrays: Mapping[str, NDArray[Any]]) -> Iterator[bytes | memoryview]:
    """Yield the pieces of a file with some tensors, without a copy of them.

    Args:
        arrays: name -> contiguous float32 or int8 array; the order in the file is by width, then by name, so that all are aligned.
    """
    kinds = {"float32": "F32", "int8": "I8"}
    ordered = sorted(arrays.items(), key=lambda pair: (-pair[1].itemsize, pair[0]))
    entries, position = {}, 0
    for name, array in ordered:
        end = position + array.nbytes
        entries[name] = {"dtype": kinds[array.dtype.name], "shape": list(array.shape), "data_offsets": [position, end]}
        position = end
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    yield struct.pack("<Q", len(header)) + header
    for _, array in ordered:
        yield array.view("u1").data


def refuse_lfs_pointer(path: Path) -> None:
    """Raise TrtbuildError when the file is a Git LFS pointer instead of the content it names."""
    if path.exists() and not path.is_file():
        raise TrtbuildError(f"{path} is not a regular file", hint="put the file itself there")
    with path.open("rb") as file:
        head = file.read(512)
    if head.startswith(_LFS_MAGIC):
        size = next(
            (line.split()[1] for line in head.decode("utf-8", "replace").splitlines() if line.startswith("size ")), "?"
        )
        raise TrtbuildError(
            f"{path} is a Git LFS pointer, not the file itself ({size} bytes)",
            hint="fetch the content first: `git lfs pull` in that folder, or download the model again",
        )


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Return name -> TensorInfo of a safetensors file; reads the header only.

    Raises:
        TrtbuildError: not a safetensors file, a Git LFS pointer, truncated, or with inconsistent offsets.
    """
    try:
        refuse_lfs_pointer(path)
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            prefix = file.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else None
            if length is None or not 2 <= length <= MAX_HEADER_BYTES:
                raise TrtbuildError(
                    f"{path} is not a safetensors file ({size} bytes)", hint="download or convert it again"
                )
            if 8 + length > size:
                raise TrtbuildError(
                    f"{path} is truncated: its header needs {8 + length} bytes, the file has {size}",
                    hint="download it again",
                )
            header = json.loads(file.read(length))
    except OSError as error:
        raise TrtbuildError(
            f"cannot read {path}: {error.strerror}", hint="check the file and its permissions"
        ) from error
    except (ValueError, RecursionError) as error:
        problem = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise TrtbuildError(f"{path} has a damaged safetensors header: {problem}", hint="download it again") from error
    if not isinstance(header, dict):
        raise TrtbuildError(f"{path} has a damaged safetensors header: not an object", hint="download it again")
    header.pop("__metadata__", None)
    infos = {name: _info(name, entry, path, 8 + length) for name, entry in header.items()}
    end = max((info.offset + info.nbytes for info in infos.values()), default=8 + length)
    if end != size:
        problem = "truncated" if end > size else "longer than its header says"
        raise TrtbuildError(f"{path} is {problem}: expected {end} bytes, found {size}", hint="download it again")
    _check_gapless(infos.values(), path, 8 + length)
    return infos


def _check_gapless(infos: Iterable[TensorInfo], path: Path, start: int) -> None:
    """Raise TrtbuildError unless the tensors lie one behind the other: a name given twice leaves a gap, a wrong offset an overlap."""
    for info in sorted(infos, key=lambda info: (info.offset, info.nbytes)):
        if info.offset != start:
            problem = "a gap before" if info.offset > start else "an overlap with"
            raise TrtbuildError(
                f"{path} has a damaged safetensors header: {problem} tensor {info.name}", hint="download it again"
            )
        start += info.nbytes


def _info(name: str, entry: Any, path: Path, base: int) -> TensorInfo:
    try:
        dtype, shape, (start, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        sound = all(type(n) is int and 0 <= n < 2**63 for n in (*shape, start, stop)) and stop >= start
        sound = sound and isinstance(dtype, str) and len(shape) <= _MOST_AXES
        if dtype in SIZES:
            sound = sound and stop - start == math.prod(shape) * SIZES[dtype]
    except (TypeError, KeyError, ValueError):
        sound = False
    if not sound:
        raise TrtbuildError(
            f"{path}: tensor {name} has an inconsistent header entry {repr(entry)[:_SHOWN]}", hint="download it again"
        )
    return TensorInfo(name, path, dtype, shape, base + start, stop - start)


class TensorReader:
    """Reads tensors with `pread`; keeps one file descriptor per file and may be shared by threads."""

    def __init__(self) -> None:
        self._descriptors: dict[Path, int] = {}

    def __enter__(self) -> TensorReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all files."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def read(self, info: TensorInfo) -> NDArray[Any]:
        """Return the whole tensor."""
        flat = self._read(info, info.offset, info.nbytes)
        return flat.reshape(info.shape)

    def read_rows(self, info: TensorInfo, start: int, stop: int) -> NDArray[Any]:
        """Return rows [start, stop) as [rows, last axis], a vector's as [rows]; memory: those rows."""
        flat = self._read(info, info.offset + start * info.row_bytes, (stop - start) * info.row_bytes)
        return flat.reshape((stop - start, *info.shape[1:][-1:]))

    def digest(self, info: TensorInfo) -> str:
        """Return the SHA-256 of a tensor's bytes; memory: one block."""
        digest = hashlib.sha256()
        rows, step = num_rows(info.shape), max(_DIGEST_BYTES // max(info.row_bytes, 1), 1)
        for start in range(0, rows, step):
            digest.update(self.read_rows(info, start, min(start + step, rows)).view("u1").data)
        return digest.hexdigest()

    def _read(self, info: TensorInfo, offset: int, nbytes: int) -> NDArray[Any]:
        import numpy as np

        buffer: NDArray[np.uint8] = np.empty(nbytes, dtype=np.uint8)
        view = buffer.data
        try:
            if info.path not in self._descriptors:
                self._descriptors[info.path] = os.open(info.path, os.O_RDONLY | os.O_CLOEXEC)
            done = 0
            while done < nbytes:
                got = os.preadv(self._descriptors[info.path], [view[done:]], offset + done)
                if got == 0:
                    raise TrtbuildError(
                        f"{info.path} ended inside tensor {info.name}", hint="the file changed while it was read"
                    )
                done += got
        except OSError as error:
            raise TrtbuildError(
                f"cannot read tensor {info.name} from {info.path}: {error.strerror}",
                hint="check the disk, then run again",
            ) from error
        return buffer.view(numpy_dtype(info.dtype))
