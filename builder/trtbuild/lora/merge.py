"""A model folder with an adapter merged in: W + scaling * B @ A, computed when rows are read, written nowhere."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtbuild.dtypes import numpy_dtype
from trtbuild.errors import TrtbuildError
from trtbuild.lora.adapter import Adapter, AdapterModule
from trtbuild.lora.fit import fit
from trtbuild.lora.values import read, read_rows
from trtbuild.safetensors_file import SourceTensor, TensorReader
from trtbuild.source import SourceCheckpoint

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: B @ A is always computed in these blocks of rows, counted from row 0: a BLAS library sums in an order that depends on the
#: shape of the product, and the bytes of a row must not depend on the block it is read in.
TILE_ROWS = 64


@dataclass(frozen=True, slots=True)
class MergedTensor:
    """One weight of the base plus its adapter; a `SourceTensor`.

    Attributes:
        base: W, [out, in], or [in, out] when `transposed`; float16, bfloat16 or float32.
        module: A, B and scaling.
        transposed: whether W is kept as [in, out] (Conv1D), so that (B @ A).T is added.
    """

    base: SourceTensor
    module: AdapterModule
    transposed: bool

    @property
    def name(self) -> str:
        """Return the name of the weight."""
        return self.base.name

    @property
    def path(self) -> Path:
        """Return the file of the base weight."""
        return self.base.path

    @property
    def dtype(self) -> str:
        """Return the dtype of the base weight, which the merged one keeps."""
        return self.base.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the base weight."""
        return self.base.shape

    @property
    def nbytes(self) -> int:
        """Return the bytes of the base weight."""
        return self.base.nbytes

    def read_rows(self, reader: TensorReader, start: int, stop: int) -> NDArray[Any]:
        """Return rows [start, stop) of W + scaling * B @ A, in the dtype of W.

        Computed in float32 and rounded once, half to even. Memory: three times those rows in float32, `TILE_ROWS` rows, A and the
        same rows of B (all of A and B when `transposed`).

        Raises:
            TrtbuildError: a file cannot be read; W, A or B hold NaN or infinity; the sum exceeds the range of the dtype. The
                message names file and tensor.
        """
        import numpy as np

        weight: NDArray[np.float32] = self.base.read_rows(reader, start, stop).astype(np.float32)
        if not np.isfinite(weight).all():
            raise TrtbuildError(
                f"{self.path}: {self.name} holds NaN or infinite values", hint="the model is damaged; download it again"
            )
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is an error below, with the tensor's name
            self._add(weight, reader, start)
            result: NDArray[Any] = weight.astype(numpy_dtype(self.dtype))
            finite = bool(np.isfinite(result).all())
        if not finite:
            raise TrtbuildError(
                f"{self.path}: {self.name} exceeds the range of {self.dtype} when {self.module.a.path} is merged into it",
                hint="the adapter diverged or belongs to another model; a bfloat16 base has a wider range",
            )
        return result

    def _add(self, weight: NDArray[np.float32], reader: TensorReader, start: int) -> None:
        """Add scaling * B @ A to the rows of W that begin at `start`, in place."""
        import numpy as np

        scaling, stop = np.float32(self.module.scaling), start + len(weight)
        first = start - start % TILE_ROWS
        last = min(-(-stop // TILE_ROWS) * TILE_ROWS, self.shape[0])
        a = read(reader, self.module.a)
        if self.transposed:
            left, right = a.T[first:last], read(reader, self.module.b).T
        else:
            left, right = read_rows(reader, self.module.b, first, last), a
        for tile in range(first, last, TILE_ROWS):
            product = left[tile - first : tile - first + TILE_ROWS] @ right
            product *= scaling
            low, high = max(tile, start), min(tile + TILE_ROWS, stop)
            weight[low - start : high - start] += product[low - tile : high - tile]


def merged(source: SourceCheckpoint, adapter: Adapter) -> SourceCheckpoint:
    """Return the same model folder with every adapted weight replaced by its merged one; reads headers only.

    Adapters may be merged one after the other; each step rounds to the dtype of the weight.

    Raises:
        TrtbuildError: the adapter does not fit the model; the message names the tensors.
    """
    weights = fit(adapter, source)
    modules = {module.name: module for module in adapter.modules}
    changed = {
        weight.name: MergedTensor(base=weight, module=modules[name], transposed=adapter.fan_in_fan_out)
        for name, weight in weights.items()
    }
    return dataclasses.replace(source, tensors={**source.tensors, **changed})
