"""FP8 (E4M3) with one static scale per tensor for weights and for inputs.

Source: checkpoint specification 2.6 (modelopt/torch/export, tensorrt_llm/quantization/layers.py); E4M3: "FP8 Formats for Deep
Learning" (Micikevicius et al. 2022), the variant without infinities.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trtbuild.quant.recipes import SearchSettings
from trtbuild.quant.scheme import EXCLUDE_MODULES, ScaleTensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Largest finite E4M3 value.
E4M3_MAX = 448.0
#: Smallest normal float32: the range of an all-zero tensor, so that its scale is positive.
TINY = 1.1754943508222875e-38


class Fp8:
    """`weight` [out, in] E4M3, `weights_scaling_factor` [1] and `activation_scaling_factor` [1] float32.

    real = code * scale, scale = amax / 448. Codes are the float32 quotient, clamped to +-448 and rounded once, half to even.
    Error bound: |w - code * scale| <= 2^-4 |w| for normal codes, <= scale * 2^-10 below them.
    """

    name = "fp8"
    quant_algo: str | None = "FP8"
    weight_dtype: str | None = "F8_E4M3"
    scale_tensors = (
        ScaleTensor("weights_scaling_factor", "F32", (1,)),
        ScaleTensor("activation_scaling_factor", "F32", (1,), is_per_expert=False),
    )
    needs_activations = True
    is_elementwise = True
    search: SearchSettings | None = None

    def config(self) -> dict[str, Any]:
        """Return the algorithm and the full list of excluded modules."""
        return {"quant_algo": self.quant_algo, "exclude_modules": list(EXCLUDE_MODULES)}

    def warnings(self, module: str, local_shape: tuple[int, ...]) -> list[str]:
        """FP8 GEMMs need both sides to be multiples of 16 (cuBLASLt documentation, FP8 alignment)."""
        if any(size % 16 for size in local_shape):
            return [f"{module} is {list(local_shape)} on a rank; FP8 kernels need multiples of 16"]
        return []

    def scales(self, *, weight_amax: float, input_amax: float | None) -> dict[str, NDArray[Any]]:
        """Return both scales: amax / 448 in float32, never zero."""
        import numpy as np

        assert input_amax is not None
        amax = np.array([[weight_amax], [input_amax]], dtype=np.float32)
        weight, activation = np.maximum(amax, np.float32(TINY)) / np.float32(E4M3_MAX)
        return {"weights_scaling_factor": weight, "activation_scaling_factor": activation}

    def encode(self, block: NDArray[Any], scales: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return E4M3 codes of float32 rows."""
        import ml_dtypes
        import numpy as np

        scaled = block / scales["weights_scaling_factor"][0]
        codes: NDArray[Any] = np.clip(scaled, -E4M3_MAX, E4M3_MAX, out=scaled).astype(ml_dtypes.float8_e4m3fn)
        return codes

    def bound(self, block: NDArray[Any], scales: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return the bound of the class, with room for the rounding of quotient and product in float32."""
        import numpy as np

        exact = np.maximum(np.abs(block) / 16, scales["weights_scaling_factor"][0] / 1024)
        bound: NDArray[Any] = exact * np.float32(1 + 2**-20)
        return bound

    def decode(self, weight: NDArray[Any], scales: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return code * scale in float32."""
        import numpy as np

        product: NDArray[Any] = weight.astype(np.float32) * scales["weights_scaling_factor"][0]
        return product
