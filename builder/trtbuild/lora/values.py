"""A and B as numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtbuild.errors import TrtbuildError
from trtbuild.safetensors_file import TensorInfo, TensorReader

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def read_rows(reader: TensorReader, info: TensorInfo, start: int, stop: int) -> NDArray[np.float32]:
    """Return rows [start, stop) of A or B as float32 [rows, columns].

    Raises:
        TrtbuildError: they hold NaN or infinity; the message names file, tensor and row.
    """
    import numpy as np

    values: NDArray[Any] = reader.read_rows(info, start, stop).astype(np.float32)
    finite = np.isfinite(values)
    if not finite.all():
        row = start + int(np.argmin(finite.all(axis=1)))
        raise TrtbuildError(
            f"{info.path}: {info.name} holds NaN or infinite values, first in row {row}",
            hint="the training diverged or the file is damaged; use an earlier state of the adapter",
        )
    return values


def read(reader: TensorReader, info: TensorInfo) -> NDArray[np.float32]:
    """Return the whole of A or B as float32; see `read_rows`."""
    return read_rows(reader, info, 0, info.shape[0])
