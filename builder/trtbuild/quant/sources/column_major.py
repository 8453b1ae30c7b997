"""4- and 8-bit weights stored [in, out] in int32 words (AutoAWQ, GPTQ), as plain weights read in row blocks.

A row of the plain weight is a column of the stored one, so a row block reads the stored rows piece by piece and keeps its columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtbuild.errors import TrtbuildError
from trtbuild.quant.sources.coding import unpack_words
from trtbuild.quant.sources.grid import check_scales, check_values, read_index
from trtbuild.safetensors_file import TensorInfo, TensorReader

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Most that is read at once; almost every packed matrix of a model up to 70B parameters fits in one piece.
PIECE_BYTES = 64 * 2**20
_WORD_BITS = 32
#: Bits of codes that can be kept, and the zero point of symmetric ones.
_KEPT_BITS, _MIDDLE = 4, 8


@dataclass(frozen=True, slots=True)
class ColumnMajorWeight:
    """A `SourceTensor` of float32 rows: (code - zero) * scale.

    Attributes:
        name: name of the plain weight.
        shape: [out, in].
        bits: bits of a code.
        codes: int32; [in, out * bits / 32] when words run along the outputs, [in * bits / 32, out] when along the inputs.
        zeros: int32 [groups, out * bits / 32], words along the outputs.
        scales: [groups, out], floating point.
        group_size: inputs of a group.
        group_index: int32 [in], the group of each input, where that is not i // group_size.
        words_along_outputs: where the words of `codes` run.
        order: column (within a word) of each code, from the lowest bits up, for words along the outputs.
        zeros_less_one: whether zero points are stored less one.
    """

    name: str
    shape: tuple[int, int]
    bits: int
    codes: TensorInfo
    zeros: TensorInfo
    scales: TensorInfo
    group_size: int
    group_index: TensorInfo | None
    words_along_outputs: bool
    order: tuple[int, ...] | None
    zeros_less_one: bool

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
        stored = (self.codes, self.zeros, self.scales, self.group_index)
        return sum(info.nbytes for info in stored if info)

    def read_rows(self, reader: TensorReader, start: int, stop: int) -> NDArray[np.float32]:
        """Return rows [start, stop) as float32 [rows, in]; memory: a few times those rows, plus `PIECE_BYTES`.

        Raises:
            TrtbuildError: unreadable, a scale that is not a finite number, a group that does not exist, or a zero point that
                cannot be.
        """
        import numpy as np

        if self.words_along_outputs:
            codes = self._along_outputs(reader, self.codes, start, stop)
        else:
            words = read_columns(reader, self.codes, start, stop)
            codes = unpack_words(words.T, self.bits).T
        groups = self.scales.shape[0]
        scale = read_columns(reader, self.scales, start, stop).astype(np.float32)
        zero = self._zeros(reader, start, stop)
        if self.group_index:
            group = read_index(reader, self.group_index, groups)
        else:
            group = np.arange(self.shape[1], dtype=np.int32) // self.group_size
        values: NDArray[np.float32] = np.ascontiguousarray(codes.T, dtype=np.float32)
        values -= zero.T[:, group]
        factors = scale.T[:, group]
        check_scales(factors, values, info=self.scales)
        with np.errstate(over="ignore"):
            values *= factors
        check_values(values, info=self.scales)
        return values

    def why_not_kept(self, reader: TensorReader) -> str:
        """Return why the INT4 form of TensorRT-LLM cannot hold the codes, "" when it can; reads zero points and group index."""
        import numpy as np

        if self.bits != _KEPT_BITS:
            return f"it has {self.bits} bits"
        if self.group_index:
            group = read_index(reader, self.group_index, self.scales.shape[0])
            if (group != np.arange(self.shape[1]) // self.group_size).any():
                return "its groups are not neighbouring inputs (desc_act)"
        if (self._zeros(reader, 0, self.shape[0]) != _MIDDLE).any():
            return f"it has zero points other than {_MIDDLE}"
        return ""

    def group_scales(self, reader: TensorReader, start: int, stop: int) -> NDArray[np.float32]:
        """Return the scales of rows [start, stop): float32 [rows, groups]."""
        import numpy as np

        return np.ascontiguousarray(read_columns(reader, self.scales, start, stop).T, dtype=np.float32)

    def _along_outputs(self, reader: TensorReader, info: TensorInfo, start: int, stop: int) -> NDArray[np.uint8]:
        """Return columns [start, stop) of codes whose words run along the outputs: [rows, columns]."""
        per_word = _WORD_BITS // self.bits
        first = start // per_word
        words = read_columns(reader, info, first, -(-stop // per_word))
        return unpack_words(words, self.bits, self.order)[:, start - first * per_word : stop - first * per_word]

    def _zeros(self, reader: TensorReader, start: int, stop: int) -> NDArray[np.float32]:
        """Return the zero points of columns [start, stop): float32 [groups, columns]."""
        import numpy as np

        stored = self._along_outputs(reader, self.zeros, start, stop)
        largest = 2**self.bits - 1
        if self.zeros_less_one and stored.size and stored.max() == largest:
            raise TrtbuildError(
                f"{self.zeros.path}: {self.zeros.name} holds {largest}, which stands for {largest + 1} less one; "
                f"zero points lie between 0 and {largest}",
                hint='the first GPTQ format cannot store this zero point; quantize again with checkpoint_format "gptq_v2"',
            )
        zero: NDArray[np.float32] = stored.astype(np.float32)
        if self.zeros_less_one:
            zero += 1
        return zero


def read_columns(reader: TensorReader, info: TensorInfo, start: int, stop: int) -> NDArray[Any]:
    """Return columns [start, stop) of a stored matrix: [rows, columns]; memory: those columns, plus `PIECE_BYTES`."""
    import numpy as np

    step = max(PIECE_BYTES // max(info.row_bytes, 1), 1)
    pieces = [
        reader.read_rows(info, row, min(row + step, info.shape[0]))[:, start:stop].copy()
        for row in range(0, info.shape[0], step)
    ]
    return np.concatenate(pieces) if len(pieces) > 1 else pieces[0]
