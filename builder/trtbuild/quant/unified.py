"""What a unified Hugging Face folder (NVIDIA ModelOpt's layout) has a form for, and what comes nearest to what it has none for.

Source: unified checkpoint specification 2.1 to 2.8 (modelopt/torch/export/{unified_export_hf,quant_utils}.py, 0.47.0), 3.1.
"""

from __future__ import annotations

from trtbuild.errors import UsageError, Way
from trtbuild.names import QUANTIZATIONS
from trtbuild.quant.codecs.fp8 import E4M3_MAX
from trtbuild.quant.scheme import Form, QuantScheme, load_scheme

#: KV cache algorithms that the folder can name (2.1): there is no form for INT8.
KV_CACHE_ALGOS = ("FP8",)
#: Largest code of an FP8 KV cache: scale = amax / 448, without the floor of rank files (2.6).
KV_LIMIT = E4M3_MAX
#: What comes nearest to a scheme that the PyTorch backend cannot load, the best first (support matrix, 3.1).
_NEAREST: dict[str, tuple[str, ...]] = {
    "int8_weight_only": ("fp8_per_channel_per_token", "fp8", "none"),
    "int4_weight_only": ("int4_awq", "fp8", "none"),
}


def unified_schemes() -> list[str]:
    """Return the schemes that the folder has a form for that a loader takes."""
    return [name for name in QUANTIZATIONS if (form := load_scheme(name).unified) and not form.unverified]


def unified_form(scheme: QuantScheme) -> Form:
    """Return the form of a scheme in the unified folder.

    Raises:
        UsageError: it has none; the nearest scheme that has one is named.
    """
    if scheme.unified is None:
        raise UsageError(
            f"quantization '{scheme.name}' has no form that TensorRT-LLM's PyTorch backend loads; "
            f"target 'pytorch' takes {', '.join(unified_schemes())}",
            ways=[
                *(
                    Way(f"the nearest is --quantization {near}", {"quantization.scheme": near}, "format")
                    for near in _NEAREST.get(scheme.name, ("fp8", "int4_awq", "none"))
                ),
                Way(f"'{scheme.name}' itself works with --target tensorrt", {"target": "tensorrt"}),
            ],
        )
    return scheme.unified


def check_kv_cache(quant_algo: str | None) -> None:
    """Raise UsageError unless the folder can name this KV cache format."""
    if quant_algo is not None and quant_algo not in KV_CACHE_ALGOS:
        raise UsageError(
            f"KV cache {quant_algo} cannot be written for target 'pytorch', which takes {', '.join(KV_CACHE_ALGOS)}",
            ways=[
                Way("use --kv-cache fp8", {"quantization.kv_cache": "fp8"}, "format"),
                Way("use --kv-cache auto", {"quantization.kv_cache": "auto"}, "format"),
                Way("use --target tensorrt", {"target": "tensorrt"}),
            ],
        )
