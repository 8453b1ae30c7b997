"""The dtypes of safetensors files: sizes, names, and the numpy type of each.

Importing this module does not import numpy, so that planning from headers stays cheap.
Source: the safetensors format description (dtype names), TensorRT-LLM's `str_dtype_to_*` tables (float16, bfloat16, float32).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

#: safetensors dtype -> bytes per element.
SIZES: dict[str, int] = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip
#: dtype names of config files and of the command line -> safetensors dtype.
FROM_CONFIG: dict[str, str] = {"float16": "F16", "bfloat16": "BF16", "float32": "F32"}
TO_CONFIG: dict[str, str] = {value: key for key, value in FROM_CONFIG.items()}
#: Weights are read in these.
FLOATS = ("F16", "BF16", "F32")


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the numpy dtype of a safetensors dtype (ml_dtypes for BF16 and FP8).

    F8_E8M0 holds biased exponents and nothing else; they come as uint8, because ml_dtypes below 0.5 has no such type.
    """
    import ml_dtypes
    import numpy as np

    special = {
        "BF16": ml_dtypes.bfloat16,
        "F8_E4M3": ml_dtypes.float8_e4m3fn,
        "F8_E5M2": ml_dtypes.float8_e5m2,
        "F8_E8M0": np.uint8,
        "BOOL": np.bool_,
    }
    # F32 -> f4, I8 -> i1, U16 -> u2: numpy's letter and size.
    dtype: np.dtype[Any] = np.dtype(special.get(name) or f"{name[0].lower()}{SIZES[name]}")
    return dtype
