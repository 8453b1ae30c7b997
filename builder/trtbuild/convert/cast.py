"""What becomes of a block of values: casts, and codes looked up. Knows the limits of the dtypes; knows no files and no schemes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtbuild.convert.blocks import is_finite, magnitude_bits
from trtbuild.dtypes import TO_CONFIG, numpy_dtype
from trtbuild.errors import TrtbuildError
from trtbuild.layout import Part

#: Source dtypes of so few values that all their codes can be listed.
_TABLED = ("F16", "BF16")
#: Elements a weight must have to make that pay.
LEAST_TABLED = 2**18


def tabled(
    encode: Callable[[NDArray[Any]], NDArray[Any]], part: Part, source_dtype: str
) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """Return what turns a block of the source into codes that depend on their own value alone.

    Args:
        encode: turns float32 rows into codes.
        part: what the blocks are of.
        source_dtype: safetensors dtype of the blocks.
    """
    if source_dtype not in _TABLED or math.prod(part.shape) <= LEAST_TABLED:
        return lambda block: encode(block.astype(np.float32))
    # There are only 65,536 different values: looking codes up is several times faster than rounding each.
    patterns = np.arange(2**16, dtype=np.uint16)
    with np.errstate(all="ignore"):  # those of NaN and infinity, which no block holds
        table = encode(patterns.view(numpy_dtype(source_dtype)).astype(np.float32))
    return lambda block: table[block.view(np.uint16)]


def cast(block: NDArray[Any], part: Part, dtype: str, offset: float = 0.0) -> NDArray[Any]:
    """Return a block plus an offset in another dtype.

    Raises:
        TrtbuildError: a value is too large for it.
    """
    with np.errstate(over="ignore"):
        exact = block.astype(np.float32)
        result: NDArray[Any] = (exact + np.float32(offset) if offset else exact).astype(numpy_dtype(dtype))
    if not is_finite(magnitude_bits(result, dtype), dtype):
        overflown = int(np.count_nonzero(~np.isfinite(result.astype(np.float32))))
        raise TrtbuildError(
            f"tensor {part.source}: {overflown} values are too large for {TO_CONFIG[dtype]}",
            hint="use --dtype bfloat16 (or float32)",
        )
    return result
