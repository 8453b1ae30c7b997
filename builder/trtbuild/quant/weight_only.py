"""INT8 and INT4 weight-only, form P: the file holds plain weights and the loader quantizes them for its GPU.

Source: checkpoint specification 2.8 (tensorrt_llm/models/convert_utils.py, cutlass_preprocessors.cpp `symmetric_quantize`).
Processed weights depend on the GPU architecture and the release, so they are not written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class LoadedAs:
    """What the loader makes of a plain weight [out, in]: codes times the scale rounded to the weight's dtype, in float32.

    Symmetric, per output channel: scale = amax / 2^(bits-1), code = round(w / scale), half away from zero, clamped to
    [-2^(bits-1), 2^(bits-1) - 1]. Error bound: scale / 2, except that the largest positive weight of a row may be clipped by one scale.
    """

    bits: int

    def __call__(self, weight: NDArray[Any]) -> NDArray[Any]:
        """Return the numbers that the kernel multiplies with."""
        import numpy as np

        limit = float(1 << (self.bits - 1))
        exact = weight.astype(np.float32)
        scale = np.abs(exact).max(axis=1, keepdims=True) / np.float32(limit)
        scaled = exact / np.where(scale > 0, scale, np.float32(1))
        codes = np.clip(np.trunc(scaled + np.copysign(np.float32(0.5), scaled)), -limit, limit - 1)
        product: NDArray[Any] = codes * scale.astype(weight.dtype).astype(np.float32)
        return product
