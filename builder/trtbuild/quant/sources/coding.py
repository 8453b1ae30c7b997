"""How codes lie in bytes, and what number each code is. Knows no scales and no tensor names of any format.

Every reader here returns float32: FP8, INT8, 4-bit and E2M1 codes are all exact in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from trtbuild.quant.codecs.nvfp4 import MAGNITUDES
from trtbuild.safetensors_file import TensorInfo, TensorReader

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: An E8M0 byte e stands for 2 ** (e - 127), 255 for NaN. Source: OCP Microscaling Formats (MX) v1.0, 5.4.1.
_E8M0_BIAS, _E8M0_NAN = 127, 255
_WORD_BITS = 32


class Coding(Protocol):
    """A way to store a matrix of codes, rows first.

    Attributes:
        dtypes: safetensors dtypes it may have.
        pack: (rows, columns) of the matrix in one stored item.
    """

    @property
    def dtypes(self) -> tuple[str, ...]: ...
    @property
    def pack(self) -> tuple[int, int]: ...

    def read(self, reader: TensorReader, info: TensorInfo, start: int, stop: int) -> NDArray[np.float32]:
        """Return rows [start, stop) of the matrix, [rows, columns]; memory: a few times those rows."""
        ...


@dataclass(frozen=True, slots=True)
class Plain:
    """One code per item."""

    dtypes: tuple[str, ...]
    pack: tuple[int, int] = (1, 1)

    def read(self, reader: TensorReader, info: TensorInfo, start: int, stop: int) -> NDArray[np.float32]:
        """Return the items as float32."""
        import numpy as np

        items = reader.read_rows(info, start, stop)
        if info.dtype == "F8_E8M0":
            is_nan = items == _E8M0_NAN
            exponents = np.where(is_nan, 0, items.astype(np.int32) - _E8M0_BIAS)
            power: NDArray[np.float32] = np.ldexp(np.float32(1), exponents)
            power[is_nan] = np.nan
            return power
        values: NDArray[np.float32] = items.astype(np.float32)
        return values


@dataclass(frozen=True, slots=True)
class NibbleRows:
    """Two rows of signed 4-bit codes per byte row: even row in the low nibble, two's complement.

    Source: ModelOpt's unified INT4 export (modelopt/torch/export/quant_utils.py), checked against its files byte for byte.
    """

    dtypes: tuple[str, ...] = ("U8", "I8")
    pack: tuple[int, int] = (2, 1)

    def read(self, reader: TensorReader, info: TensorInfo, start: int, stop: int) -> NDArray[np.float32]:
        """Return codes -8 to 7."""
        import numpy as np

        first = start // 2
        packed = reader.read_rows(info, first, max(-(-stop // 2), first)).view(np.uint8)
        both = np.stack([packed & 15, packed >> 4], axis=1).reshape(-1, packed.shape[1]).astype(np.int8)
        signed = np.where(both > 7, both - 16, both)[start - 2 * first : stop - 2 * first]
        codes: NDArray[np.float32] = signed.astype(np.float32)
        return codes


@dataclass(frozen=True, slots=True)
class E2m1Columns:
    """Two E2M1 numbers per byte: even column in the low nibble.

    Source: ModelOpt's NVFP4 export and compressed-tensors' nvfp4-pack-quantized, which pack alike.
    """

    dtypes: tuple[str, ...] = ("U8",)
    pack: tuple[int, int] = (1, 2)

    def read(self, reader: TensorReader, info: TensorInfo, start: int, stop: int) -> NDArray[np.float32]:
        """Return the numbers, -6 to 6."""
        import numpy as np

        packed = reader.read_rows(info, start, stop)
        table = np.array([*MAGNITUDES, *(-value for value in MAGNITUDES)], dtype=np.float32)
        both = np.stack([packed & 15, packed >> 4], axis=2).reshape(len(packed), 2 * packed.shape[1])
        numbers: NDArray[np.float32] = table[both]
        return numbers


@dataclass(frozen=True, slots=True)
class WordColumns:
    """Unsigned codes in int32 words along the columns, lowest bits first, shifted down by half their range.

    A last word that is not full is padded; `columns` says where the matrix ends.
    Source: compressed-tensors, compressors/pack_quantized.
    """

    bits: int
    columns: int
    dtypes: tuple[str, ...] = ("I32",)

    @property
    def pack(self) -> tuple[int, int]:
        """Codes per word lie in one row."""
        return 1, _WORD_BITS // self.bits

    def read(self, reader: TensorReader, info: TensorInfo, start: int, stop: int) -> NDArray[np.float32]:
        """Return codes -2^(bits-1) to 2^(bits-1) - 1."""
        import numpy as np

        unsigned = unpack_words(reader.read_rows(info, start, stop), self.bits)[:, : self.columns]
        codes: NDArray[np.float32] = unsigned.astype(np.float32)
        codes -= 2 ** (self.bits - 1)
        return codes


@dataclass(frozen=True, slots=True)
class WordRows:
    """As `WordColumns`, but words hold codes of successive rows.

    Source: compressed-tensors, compressors/pack_quantized (zero points).
    """

    bits: int
    dtypes: tuple[str, ...] = ("I32",)

    @property
    def pack(self) -> tuple[int, int]:
        """Codes per word lie in one column."""
        return _WORD_BITS // self.bits, 1

    def read(self, reader: TensorReader, info: TensorInfo, start: int, stop: int) -> NDArray[np.float32]:
        """Return codes -2^(bits-1) to 2^(bits-1) - 1."""
        import numpy as np

        per_word = _WORD_BITS // self.bits
        first = start // per_word
        words = reader.read_rows(info, first, max(-(-stop // per_word), first))
        unsigned = unpack_words(words.T, self.bits).T[start - first * per_word : stop - first * per_word]
        codes: NDArray[np.float32] = unsigned.astype(np.float32)
        codes -= 2 ** (self.bits - 1)
        return codes


def unpack_words(words: NDArray[np.int32], bits: int, order: tuple[int, ...] | None = None) -> NDArray[np.uint8]:
    """Return the unsigned codes of int32 words, [rows, words * 32 / bits].

    Args:
        words: [rows, words], int32.
        bits: bits of a code, at most 8 and a divisor of 32.
        order: column (within the word) of each code from the lowest bits up; None for 0, 1, 2 ...
    """
    import numpy as np

    per_word = _WORD_BITS // bits
    unsigned = np.ascontiguousarray(words).view(np.uint32)
    codes = np.empty((*unsigned.shape, per_word), dtype=np.uint8)
    for position, column in enumerate(order or range(per_word)):
        codes[:, :, column] = (unsigned >> np.uint32(bits * position)) & np.uint32(2**bits - 1)
    return codes.reshape(len(words), words.shape[1] * per_word)


FP8 = Plain(("F8_E4M3",))
INT8 = Plain(("I8",))
#: Scales may be stored in any of these.
SCALE = Plain(("F32", "F16", "BF16", "F8_E4M3", "F8_E8M0"))
