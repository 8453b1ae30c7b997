"""The schemes, each one function from its options to its two forms.

Every row says where its layout is written down; the error bounds are those of the codecs.
"""

from __future__ import annotations

from typing import Any

from trtbuild.quant.codecs.base import Geometry
from trtbuild.quant.codecs.fp8 import E4M3_MAX, Fp8Codec
from trtbuild.quant.codecs.int4 import Int4Codec
from trtbuild.quant.codecs.nvfp4 import GROUP, LIMIT, Nvfp4Codec
from trtbuild.quant.recipes import SearchSettings
from trtbuild.quant.scheme import MODEL_DTYPE, Form, InputFormat, QuantScheme, ScaleTensor, SchemeOptions
from trtbuild.quant.weight_only import LoadedAs

#: FP8 GEMMs need both sides to be multiples of 16 (cuBLASLt documentation, FP8 alignment).
_FP8_ALIGNMENT = 16
#: Mixed-input kernels need multiples of 64 (checkpoint specification 2.8).
_MIXED_ALIGNMENT = 64
#: ModelOpt's exporter pads the vocabulary of AWQ models (checkpoint specification 2.9).
_AWQ_VOCABULARY = 64
#: TRT-LLM's converter bounds the inputs of row-wise FP8 (checkpoint specification 1.4).
_CLAMP = (-1200.0, 1200.0)
_SCALAR: tuple[int, ...] = ()


def _ranks_scale(geometry: Geometry, dtype: str = "F32") -> ScaleTensor:
    return ScaleTensor("weight", "weights_scaling_factor", dtype, geometry)


def _unified_scale(geometry: Geometry, dtype: str = "F32") -> ScaleTensor:
    return ScaleTensor("weight", "weight_scale", dtype, geometry, scalar=_SCALAR)


_RANKS_INPUT = ScaleTensor("input", "activation_scaling_factor", "F32", "tensor", is_per_expert=False)
_UNIFIED_INPUT = ScaleTensor("input", "input_scale", "F32", "tensor", scalar=_SCALAR)
_RANKS_SECOND = ScaleTensor("second", "weights_scaling_factor_2", "F32", "tensor")
_UNIFIED_SECOND = ScaleTensor("second", "weight_scale_2", "F32", "tensor", scalar=_SCALAR)
_RANKS_PRE_QUANT = ScaleTensor("pre_quant", "prequant_scaling_factor", MODEL_DTYPE, "columns")
_UNIFIED_PRE_QUANT = ScaleTensor("pre_quant", "pre_quant_scale", MODEL_DTYPE, "columns")


def _numbers(num_bits: int, kind: str = "float", **more: Any) -> dict[str, Any]:
    """Return a description of weights or inputs as in `config_groups` (modelopt/torch/export/convert_hf_config.py, 0.47.0)."""
    return {"dynamic": False, "num_bits": num_bits, "type": kind, **more}


def none(_options: SchemeOptions) -> QuantScheme:
    """Plain weights in the model's dtype."""
    return QuantScheme("none", Form(), Form())


def fp8(_options: SchemeOptions) -> QuantScheme:
    """FP8 with one static scale per tensor for weights and for inputs (checkpoint specification 2.6; unified 2.5, 2.6, 2.8)."""
    return QuantScheme(
        "fp8",
        Form("FP8", Fp8Codec(), "F8_E4M3", (_ranks_scale("tensor"), _RANKS_INPUT), writes_exclusions=True),
        Form(
            "FP8",
            Fp8Codec(rounds_twice=True),
            "F8_E4M3",
            (_unified_scale("tensor"), _UNIFIED_INPUT),
            description={"input_activations": _numbers(8), "weights": _numbers(8)},
            is_described_alone=True,
            shares_range=False,
        ),
        InputFormat("fp8", E4M3_MAX),
        alignment=_FP8_ALIGNMENT,
    )


def fp8_per_channel_per_token(_options: SchemeOptions) -> QuantScheme:
    """FP8 with a scale per output channel, inputs scaled per token at run time; needs no data (checkpoint specification 2.7)."""
    codec = Fp8Codec("rows")
    rows = ScaleTensor("weight", "per_channel_scale", "F32", "rows")
    return QuantScheme(
        "fp8_per_channel_per_token",
        Form(
            "FP8_PER_CHANNEL_PER_TOKEN",
            codec,
            "F8_E4M3",
            (rows,),
            config={"clamp_val": list(_CLAMP)},
            writes_exclusions=True,
        ),
        Form(
            "FP8_PER_CHANNEL_PER_TOKEN",
            codec,
            "F8_E4M3",
            (_unified_scale("rows"),),
            description={"input_activations": _numbers(8), "weights": _numbers(8, strategy="channel")},
        ),
        InputFormat("fp8_token"),
        alignment=_FP8_ALIGNMENT,
        has_experts=(False, True),
    )


def fp8_block(_options: SchemeOptions) -> QuantScheme:
    """FP8 with a scale per block of 128 x 128, inputs scaled per 128 at run time (unified specification 2.5: `fp8_pb_wo`)."""
    return QuantScheme(
        "fp8_block",
        None,  # the TensorRT backend takes FP8 block scales for DeepSeek only (checkpoint specification 1.4.1)
        Form(
            "fp8_pb_wo",
            Fp8Codec("blocks"),
            "F8_E4M3",
            (_unified_scale("blocks"),),
            # ModelOpt takes a single block for a scale per tensor: of shape [], and shared by linears that are read as one.
            single=Form("fp8_pb_wo", Fp8Codec(), "F8_E4M3", (_unified_scale("tensor"),)),
        ),
        InputFormat("fp8_group"),
        alignment=_FP8_ALIGNMENT,
    )


def _int4(name: str, options: SchemeOptions, search: SearchSettings | None) -> QuantScheme:
    codec = Int4Codec(options.group_size)
    config = {"group_size": options.group_size, "has_zero_point": False, "pre_quant_scale": True}
    return QuantScheme(
        name,
        Form(
            "W4A16_AWQ",
            codec,
            "I8",
            (_ranks_scale("groups"), _RANKS_PRE_QUANT),
            config=config,
            writes_exclusions=True,
            vocab_multiple=_AWQ_VOCABULARY,
        ),
        Form(
            "W4A16_AWQ",
            codec,
            "U8",
            (_unified_scale("groups"), _UNIFIED_PRE_QUANT),
            config=config,
            description={"weights": _numbers(4, "int", group_size=options.group_size)},
            folds_norms=True,
        ),
        search=search,
        needs_multiple=max(_MIXED_ALIGNMENT, options.group_size),
        has_experts=(True, False),
    )


def int4_awq(options: SchemeOptions) -> QuantScheme:
    """INT4 groups with input multipliers found on calibration data (checkpoint specification 2.9; unified 2.7)."""
    return _int4("int4_awq", options, SearchSettings("awq", options.group_size))


def int4_gptq(options: SchemeOptions) -> QuantScheme:
    """INT4 groups as in `int4_awq`, codes chosen so that the errors of a row make up for each other; written in the same form."""
    return _int4("int4_gptq", options, SearchSettings("gptq", options.group_size, act_order=options.act_order))


def int4_rtn(options: SchemeOptions) -> QuantScheme:
    """INT4 groups, each weight rounded to the nearest code; needs no data and loses the most."""
    return _int4("int4_rtn", options, None)


def w4a8_awq(options: SchemeOptions) -> QuantScheme:
    """INT4 groups as in `int4_awq`, inputs in FP8 with a static scale (checkpoint specification 2.10; unified 2.5)."""
    codec = Int4Codec(options.group_size, has_second=True)
    config = {"group_size": options.group_size, "has_zero_point": False, "pre_quant_scale": True}
    return QuantScheme(
        "w4a8_awq",
        Form(
            "W4A8_AWQ",
            codec,
            "I8",
            (_ranks_scale("groups"), _RANKS_SECOND, _RANKS_INPUT, _RANKS_PRE_QUANT),
            config=config,
            writes_exclusions=True,
            vocab_multiple=_AWQ_VOCABULARY,
        ),
        Form(
            "W4A8_AWQ",
            codec,
            "U8",
            (_unified_scale("groups"), _UNIFIED_SECOND, _UNIFIED_INPUT, _UNIFIED_PRE_QUANT),
            config=config,
            description={
                "input_activations": _numbers(8, group_size=options.group_size),
                "weights": _numbers(4, group_size=options.group_size),
            },
            folds_norms=True,
        ),
        InputFormat("fp8", E4M3_MAX),
        SearchSettings("awq", options.group_size),
        needs_multiple=max(2 * _MIXED_ALIGNMENT, options.group_size),
        has_experts=(True, False),
        unverified="" if options.group_size == 128 else "W4A8 kernels are documented for groups of 128 only",
    )


def int8_weight_only(_options: SchemeOptions) -> QuantScheme:
    """8-bit codes made by the loader; the file holds plain weights (checkpoint specification 2.8, form P)."""
    return QuantScheme("int8_weight_only", Form("W8A16", loaded=LoadedAs(8)), alignment=_MIXED_ALIGNMENT)


def int4_weight_only(_options: SchemeOptions) -> QuantScheme:
    """4-bit codes made by the loader; the file holds plain weights (checkpoint specification 2.8, form P)."""
    return QuantScheme("int4_weight_only", Form("W4A16", loaded=LoadedAs(4)), alignment=_MIXED_ALIGNMENT)


def nvfp4(_options: SchemeOptions) -> QuantScheme:
    """E2M1 in blocks of 16 under E4M3 scales, for weights and inputs (checkpoint specification 2.14; unified 2.9)."""
    codec = Nvfp4Codec()
    config = {"group_size": GROUP}
    return QuantScheme(
        "nvfp4",
        Form(
            "NVFP4",
            codec,
            "U8",
            (
                _ranks_scale("groups", "F8_E4M3"),
                ScaleTensor("second", "weights_scaling_factor_2", "F32", "tensor", scalar=_SCALAR),
                ScaleTensor("input", "activation_scaling_factor", "F32", "tensor", scalar=_SCALAR, is_per_expert=False),
            ),
            config=config,
            writes_exclusions=True,
        ),
        Form(
            "NVFP4",
            codec,
            "U8",
            (_unified_scale("groups", "F8_E4M3"), _UNIFIED_SECOND, _UNIFIED_INPUT),
            config=config,
            description={
                "input_activations": _numbers(4, group_size=GROUP),
                "weights": _numbers(4, group_size=GROUP),
            },
            is_described_alone=True,
        ),
        InputFormat("nvfp4", LIMIT),
        has_experts=(False, True),
    )
