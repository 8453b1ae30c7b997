"""Casts of weights that are not quantized. Knows the limits of the dtypes; knows no files."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtbuild.convert.blocks import is_finite, magnitude_bits
from trtbuild.dtypes import TO_CONFIG, numpy_dtype
from trtbuild.errors import TrtbuildError
from trtbuild.layout import Part


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
