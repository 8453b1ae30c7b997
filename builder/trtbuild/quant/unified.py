"""How a quantized linear lies in a unified Hugging Face folder (NVIDIA ModelOpt's layout), and which schemes have such a form.

Knows numbers and suffixes; knows no files and no model names. Source: unified checkpoint specification 2.1 to 2.8
(modelopt/torch/export/{unified_export_hf,quant_utils}.py, 0.47.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from trtbuild.errors import TrtbuildError
from trtbuild.quant.fp8 import E4M3_MAX, TINY
from trtbuild.quant.scheme import ScaleTensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: KV cache algorithms that the folder can name (2.1): there is no form for INT8.
KV_CACHE_ALGOS = ("FP8",)
#: Largest code of an FP8 KV cache: scale = amax / 448, without the floor of rank files (2.6).
KV_LIMIT = E4M3_MAX


class UnifiedFormat(Protocol):
    """The form of a scheme in the unified folder.

    Attributes:
        scheme: name of the command line.
        quant_algo: what `hf_quant_config.json` says, None for plain weights.
        weight_dtype: safetensors dtype of the codes, None for plain weights.
        scale_tensors: stored beside each weight, under the module's name.
        is_elementwise: whether a code depends on its own value and the scales alone, not on where the value is.
        description: `input_activations` and `weights` of `config_groups.group_0`, empty where ModelOpt writes no groups (2.2).
    """

    scheme: str
    quant_algo: str | None
    weight_dtype: str | None
    scale_tensors: tuple[ScaleTensor, ...]
    is_elementwise: bool
    description: Mapping[str, Any]

    def scales(self, *, weight_amax: float, input_amax: float) -> dict[str, NDArray[Any]]:
        """Return suffix -> tensor for the ranges of one weight and of the input it shares with its group."""
        ...

    def encode(self, block: NDArray[Any], scales: Mapping[str, NDArray[Any]], dtype: str) -> NDArray[Any]:
        """Return the codes of some rows. block: [rows, in], float32; dtype: safetensors dtype of the model."""
        ...

    def bound(self, block: NDArray[Any], scales: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return how far a decoded value may be from the original. block: [rows, in], float32, original; result of the same shape."""
        ...

    def decode(self, weight: NDArray[Any], scales: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return the numbers that codes stand for. weight: [out, in] as stored; result [out, in], float32."""
        ...


class UnifiedPlain:
    """Plain weights in the model's dtype."""

    scheme = "none"
    quant_algo: str | None = None
    weight_dtype: str | None = None
    scale_tensors: tuple[ScaleTensor, ...] = ()
    is_elementwise = True
    description: Mapping[str, Any] = {}

    def scales(self, *, weight_amax: float, input_amax: float) -> dict[str, NDArray[Any]]:
        """Return nothing."""
        return {}

    def encode(self, block: NDArray[Any], scales: Mapping[str, NDArray[Any]], dtype: str) -> NDArray[Any]:
        """Return the block."""
        return block

    def bound(self, block: NDArray[Any], scales: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return zero: the file holds the weight itself."""
        zero: NDArray[Any] = block * 0
        return zero

    def decode(self, weight: NDArray[Any], scales: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return the weight."""
        return weight


class UnifiedFp8:
    """`weight` [out, in] E4M3, `weight_scale` [] and `input_scale` [] float32; real = code * scale, scale = amax / 448.

    Every weight has its own scale; the loader takes the largest of a fused group and rounds the codes again (2.6). The quotient is
    rounded to the model's dtype before it is rounded to E4M3, as ModelOpt does (2.8); both half to even.
    Error bound: |w - code * scale| <= 2^-8 |w| (bfloat16's share) + the larger of 2^-4 |w| and 2^-10 scale.
    """

    scheme = "fp8"
    quant_algo: str | None = "FP8"
    weight_dtype: str | None = "F8_E4M3"
    scale_tensors: tuple[ScaleTensor, ...] = (
        ScaleTensor("weight_scale", "F32", ()),
        ScaleTensor("input_scale", "F32", ()),
    )
    is_elementwise = True
    description: Mapping[str, Any] = {
        "input_activations": {"dynamic": False, "num_bits": 8, "type": "float"},
        "weights": {"dynamic": False, "num_bits": 8, "type": "float"},
    }

    def scales(self, *, weight_amax: float, input_amax: float) -> dict[str, NDArray[Any]]:
        """Return both scales: amax / 448 in float32, never zero."""
        return {"weight_scale": scale_of(weight_amax), "input_scale": scale_of(input_amax)}

    def encode(self, block: NDArray[Any], scales: Mapping[str, NDArray[Any]], dtype: str) -> NDArray[Any]:
        """Return E4M3 codes of float32 rows."""
        import ml_dtypes
        import numpy as np

        from trtbuild.dtypes import numpy_dtype

        quotient = (block / scales["weight_scale"]).astype(numpy_dtype(dtype)).astype(np.float32)
        codes: NDArray[Any] = np.clip(quotient, -E4M3_MAX, E4M3_MAX, out=quotient).astype(ml_dtypes.float8_e4m3fn)
        return codes

    def bound(self, block: NDArray[Any], scales: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return the bound of the class, with room for the rounding of quotient and product in float32."""
        import numpy as np

        exact = np.abs(block)
        exact = np.maximum(exact / 16, scales["weight_scale"] / 1024) + exact / 256
        bound: NDArray[Any] = exact * np.float32(1 + 2**-20)
        return bound

    def decode(self, weight: NDArray[Any], scales: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return code * scale in float32."""
        import numpy as np

        product: NDArray[Any] = weight.astype(np.float32) * scales["weight_scale"]
        return product


#: Scheme -> its form in the folder; a scheme that is missing here has none.
UNIFIED_FORMATS: dict[str, UnifiedFormat] = {"none": UnifiedPlain(), "fp8": UnifiedFp8()}
#: What comes nearest to a scheme that the PyTorch backend cannot load, the best first (support matrix, 3.1).
_NEAREST: dict[str, tuple[str, ...]] = {
    "int8_weight_only": ("fp8_per_channel_per_token", "fp8"),
    "int4_weight_only": ("int4_awq", "fp8"),
    "int4_gptq": ("int4_awq", "fp8"),
    "int8_smoothquant": ("fp8",),
}


def scale_of(amax: float) -> NDArray[Any]:
    """Return amax / 448 as a float32 tensor of shape [], never zero."""
    import numpy as np

    scale: NDArray[Any] = np.array(np.maximum(np.float32(amax), np.float32(TINY)) / np.float32(E4M3_MAX))
    return scale


def unified_format(scheme: str) -> UnifiedFormat:
    """Return the form of a scheme in the unified folder.

    Raises:
        TrtbuildError: it has none; the nearest scheme that has one is named.
    """
    if scheme not in UNIFIED_FORMATS:
        near = next((name for name in _NEAREST.get(scheme, ()) if name in UNIFIED_FORMATS), "fp8")
        raise TrtbuildError(
            f"quantization '{scheme}' has no form that TensorRT-LLM's PyTorch backend loads; "
            f"target 'pytorch' takes {', '.join(UNIFIED_FORMATS)}",
            hint=f"the nearest is --quantization {near}; '{scheme}' itself works with --target tensorrt",
        )
    return UNIFIED_FORMATS[scheme]


def format_of_algo(quant_algo: str | None) -> UnifiedFormat | None:
    """Return the form whose folders say `quant_algo`, or None when this version writes no such folder."""
    return next((form for form in UNIFIED_FORMATS.values() if form.quant_algo == quant_algo), None)


def check_kv_cache(quant_algo: str | None) -> None:
    """Raise TrtbuildError unless the folder can name this KV cache format."""
    if quant_algo is not None and quant_algo not in KV_CACHE_ALGOS:
        raise TrtbuildError(
            f"KV cache {quant_algo} cannot be written for target 'pytorch', which takes {', '.join(KV_CACHE_ALGOS)}",
            hint="use --kv-cache fp8, or --target tensorrt",
        )
