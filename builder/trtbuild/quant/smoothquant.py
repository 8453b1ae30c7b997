"""INT8 SmoothQuant: ModelOpt's form, and the four of TensorRT-LLM's SmoothQuant plugins, which are for engines only.

The plugins' layouts are checked against TensorRT-LLM's source (1.x copies of tensorrt_llm/quantization/{layers,quantize}.py and
models/llama/convert.py; checkpoint specification 2.12, second table); no exporter writes files to compare with.
"""

from __future__ import annotations

from dataclasses import replace

from trtbuild.names import SMOOTHQUANT_MODES, SmoothQuantMode
from trtbuild.quant.codecs.int8 import LARGEST, Int8Codec
from trtbuild.quant.recipes import SearchSettings
from trtbuild.quant.scheme import MODEL_DTYPE, Form, InputFormat, QuantScheme, ScaleTensor, SchemeOptions

#: INT8 GEMMs need both sides to be multiples of 16 (cutlass, alignment of 128 bits).
_ALIGNMENT = 16
_STATIC, _PER_TOKEN = InputFormat("int8", float(LARGEST)), InputFormat("int8_token")
_UNVERIFIED = "TensorRT-LLM's PyTorch backend has no INT8 SmoothQuant (unified specification 2.3)"

_RANKS = (
    ScaleTensor("weight", "weights_scaling_factor", "F32", "rows"),
    ScaleTensor("input", "activation_scaling_factor", "F32", "tensor", is_per_expert=False),
    ScaleTensor("pre_quant", "prequant_scaling_factor", MODEL_DTYPE, "columns"),
)
_UNIFIED = (
    ScaleTensor("weight", "weight_scale", "F32", "rows"),
    ScaleTensor("input", "input_scale", "F32", "tensor", scalar=()),
    ScaleTensor("pre_quant", "pre_quant_scale", MODEL_DTYPE, "columns"),
)

#: As in `config_groups` (modelopt/torch/export/convert_hf_config.py, 0.47.0).
_DESCRIPTION = {
    "input_activations": {"dynamic": False, "num_bits": 8, "type": "int"},
    "weights": {"dynamic": False, "num_bits": 8, "type": "int", "strategy": "channel"},
}

#: The kernel's result is accumulator x act_scale x per_channel_scale, so it reads the product alone. NVIDIA's converter stores output range
#: / 127 and the rest; here each is the scale that its name says, which divides nothing and multiplies nothing.
_ROWS = ScaleTensor("weight", "per_channel_scale", "F32", "rows", is_row=True)
_WHOLE = ScaleTensor("weight", "per_channel_scale", "F32", "tensor", scalar=(1, 1))
_ACT = ScaleTensor("input", "act_scale", "F32", "tensor", scalar=(1, 1))
#: What the norm multiplies its output by to emit INT8. Its layer has the parameter in every mode and the loader insists on it; scales
#: per token do not read it, and NVIDIA's converter stores 1 then.
_NORM = ScaleTensor("to_int", "scale_to_int", "F32", "tensor", owner="norm")
#: The same of attention and MLP, for their last linears; only there when scales are static.
_BLOCK = ScaleTensor("to_int", "quantization_scaling_factor", "F32", "tensor", owner="block")
#: The kernel casts it to the model's dtype and divides by it; the layer has it, smoothed or not.
_SMOOTHER = ScaleTensor("smoother", "smoother", "F32", "columns", is_row=True)
#: Mode -> (whether weights have a scale per output channel, how inputs are rounded), of those that run in plugins.
_PLUGIN_MODES: dict[SmoothQuantMode, tuple[bool, InputFormat]] = {
    "per_tensor": (False, _STATIC),
    "per_channel_per_token": (True, _PER_TOKEN),
    "per_channel_per_tensor": (True, _STATIC),
    "per_tensor_per_token": (False, _PER_TOKEN),
}
_CAUTION = (
    "SmoothQuant with one scale per weight has lost whole models unnoticed: check with `trtbuild evaluate`, or set limits in the section "
    "`accuracy`, which `trtbuild build` keeps; per_channel modes lose less"
)


def int8_smoothquant(options: SchemeOptions) -> QuantScheme:
    """INT8 weights and inputs after smoothing, scaled as `options.smoothquant_mode` says (checkpoint specification 2.12)."""
    mode = options.smoothquant_mode
    if mode in _PLUGIN_MODES:
        return _plugin(mode, options)
    codec, algo = Int8Codec(), SMOOTHQUANT_MODES[mode]
    return QuantScheme(
        "int8_smoothquant",
        Form(algo, codec, "I8", _RANKS, writes_exclusions=True),
        Form(algo, codec, "I8", _UNIFIED, description=_DESCRIPTION, unverified=_UNVERIFIED),
        _STATIC,
        SearchSettings("smooth", alpha=options.smoothquant_alpha),
        alignment=_ALIGNMENT,
        has_experts=(False, False),
    )


def _plugin(mode: SmoothQuantMode, options: SchemeOptions) -> QuantScheme:
    """Return the scheme of a mode that runs in plugins: the kernel of q, k and v always has a scale per row, the others as the mode says."""
    has_rows, inputs = _PLUGIN_MODES[mode]
    act, block = ((_ACT,), (_BLOCK,)) if inputs is _STATIC else ((), ())
    scale = _ROWS if has_rows else _WHOLE
    behind_norm = Form(
        SMOOTHQUANT_MODES[mode],
        Int8Codec() if has_rows else Int8Codec("tensor", needs_range=True),
        "I8",
        (scale, *act, _NORM),
        config={"smoothquant_val": options.smoothquant_alpha},
        folds_norms=True,
        shares_range=False,
        replaces_layers=True,
    )
    qkv = replace(behind_norm, codec=Int8Codec(needs_range=not has_rows), scales=(_ROWS, *act, _NORM))
    last = replace(behind_norm, scales=(scale, *act, *block, _SMOOTHER), folds_norms=False)
    return QuantScheme(
        "int8_smoothquant",
        replace(behind_norm, linears={"qkv": qkv, "dense": last, "proj": last}),
        None,
        inputs,
        SearchSettings("smooth", alpha=options.smoothquant_alpha, is_divisor=True, is_per_tensor=not has_rows),
        alignment=_ALIGNMENT,
        has_experts=(False, False),
        caution="" if has_rows else _CAUTION,
    )
