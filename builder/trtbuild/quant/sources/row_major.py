"""Weights stored [out, in], as plain weights read in row blocks. Knows no format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtbuild.quant.sources.coding import SCALE, Coding
from trtbuild.quant.sources.grid import Grid, check_scales, check_values
from trtbuild.safetensors_file import TensorInfo, TensorReader

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class GlobalScale:
    """One number for a whole tensor, on top of the scales of its blocks.

    Attributes:
        info: float32, one number.
        divides: whether the block scales are divided by it (compressed-tensors) instead of multiplied (ModelOpt).
    """

    info: TensorInfo
    divides: bool

    def apply(self, reader: TensorReader, scale: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the scales times the number, or divided by it."""
        import numpy as np

        number = reader.read(self.info).astype(np.float32).reshape(())
        # A zero that divides leaves infinities, which `check_scales` refuses with the name of the tensor.
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            product: NDArray[np.float32] = scale / number if self.divides else scale * number
        return product


@dataclass(frozen=True, slots=True)
class RowMajorWeight:
    """A `SourceTensor` of float32 rows: ((code - zero) * scale) * pre_quant_scale, each operation rounded to float32.

    Attributes:
        name: name of the plain weight.
        shape: [out, in].
        codes: the stored codes.
        coding: how they are stored.
        scale: scale of each weight.
        global_scale: applied to `scale` first.
        zero: zero point of each weight, in codes.
        pre_quant_scale: [in]; the kernel multiplies inputs by it, W (p * x) = (W * p) x, so the plain weight carries it.
    """

    name: str
    shape: tuple[int, int]
    codes: TensorInfo
    coding: Coding
    scale: Grid
    global_scale: GlobalScale | None = None
    zero: Grid | None = None
    pre_quant_scale: TensorInfo | None = None

    @property
    def path(self) -> Path:
        """File of the codes."""
        return self.codes.path

    @property
    def dtype(self) -> str:
        """Float32, whatever the folder's own dtype is."""
        return "F32"

    @property
    def nbytes(self) -> int:
        """Bytes of everything that is read."""
        return sum(info.nbytes for info in self._stored())

    def _stored(self) -> Iterator[TensorInfo]:
        yield from (self.codes, self.scale.info)
        yield from (info for info in (self.scale.column_index, self.pre_quant_scale) if info)
        yield from (part.info for part in (self.global_scale, self.zero) if part)

    def read_rows(self, reader: TensorReader, start: int, stop: int) -> NDArray[np.float32]:
        """Return rows [start, stop) as float32 [rows, in]; memory: a few times those rows.

        Raises:
            TrtbuildError: unreadable, or a scale or code that is not a finite number.
        """
        import numpy as np

        width = self.shape[1]
        values = self.coding.read(reader, self.codes, start, stop)
        if self.zero:
            values -= self.zero.read(reader, start, stop, width)
        scale = self.scale.read(reader, start, stop, width)
        if self.global_scale:
            scale = self.global_scale.apply(reader, scale)
        check_scales(scale, values, info=self.scale.info)
        with np.errstate(over="ignore", invalid="ignore"):
            values *= scale
            if self.pre_quant_scale:
                factors = SCALE.read(reader, self.pre_quant_scale, 0, width).reshape(width)
                check_scales(factors, np.ones_like(factors), info=self.pre_quant_scale)
                values *= factors
        check_values(values, info=self.codes)
        return values

    def why_not_kept(self, _reader: TensorReader) -> str:
        """Return why the INT4 form of TensorRT-LLM cannot hold the codes, "" when it can."""
        if self.zero:
            return "it has zero points"
        if self.scale.column_index:
            return "its groups are not neighbouring inputs"
        return ""

    def group_scales(self, reader: TensorReader, start: int, stop: int) -> NDArray[np.float32]:
        """Return the scales of rows [start, stop): float32 [rows, groups]."""
        return self.scale.coding.read(reader, self.scale.info, start, stop)
