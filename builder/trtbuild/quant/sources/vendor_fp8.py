"""FP8 as model vendors publish it (`quant_method: fp8`): square blocks, or one scale per tensor.

Source: config.json and tensors of DeepSeek-V3 and Qwen3 FP8 (blocks: `weight_scale_inv`, which despite its name multiplies the
codes), of AutoFP8 (per tensor: `weight_scale`, `input_scale`), and transformers' FineGrainedFP8 without a block size, which keeps
the names `weight_scale_inv` and `activation_scale`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from trtbuild.errors import TrtbuildError
from trtbuild.quant.codecs.fp8 import E4M3_MAX
from trtbuild.quant.sources.assemble import Declaration
from trtbuild.quant.sources.coding import FP8, SCALE
from trtbuild.quant.sources.grid import lay_grid, require_matrix
from trtbuild.quant.sources.parts import Format, Linear, Part
from trtbuild.quant.sources.row_major import RowMajorWeight
from trtbuild.safetensors_file import TensorReader
from trtbuild.source import SourceCheckpoint

_SCALES = ("F32", "BF16", "F16", "F8_E8M0")
#: Name of the weight scale -> name of the input scale beside it, in folders with one scale per tensor.
_SPELLINGS = {"weight_scale": "input_scale", "weight_scale_inv": "activation_scale"}
MARKS = frozenset({*_SPELLINGS, *_SPELLINGS.values()})


def declare(source: SourceCheckpoint, block: Mapping[str, Any]) -> Declaration:
    """Return what `quantization_config` says.

    Args:
        source: the opened folder.
        block: `quantization_config` of config.json.

    Raises:
        TrtbuildError: a block size that is none.
    """
    size = block.get("weight_block_size")
    if size is None:
        is_static = block.get("activation_scheme") == "static"
        by_name = {name: _per_tensor(name, is_static=is_static) for name in _SPELLINGS}

        def format_of(linear: Linear) -> Format:
            return next((by_name[name] for name in _SPELLINGS if name in linear.parts), by_name["weight_scale"])

        return Declaration("fp8", "FP8", None, MARKS, format_of)
    if not (isinstance(size, list) and len(size) == 2 and all(isinstance(side, int) and side > 0 for side in size)):
        raise TrtbuildError(
            f"{source.path} declares weight_block_size {size!r}",
            hint="it has to be two positive numbers, such as [128, 128], or absent for one scale per tensor",
        )
    blocks = Format(
        parts=(Part("weight", FP8.dtypes), Part("weight_scale_inv", _SCALES)),
        build=partial(_build, scale="weight_scale_inv", tile=(size[0], size[1])),
    )
    return Declaration("fp8", "FP8_BLOCK", None, MARKS, lambda _linear: blocks)


def _per_tensor(scale: str, *, is_static: bool) -> Format:
    inputs = _SPELLINGS[scale]
    return Format(
        parts=(Part("weight", FP8.dtypes), Part(scale, _SCALES), Part(inputs, _SCALES, is_required=is_static)),
        build=partial(_build, scale=scale, tile=None),
        amax_per_input_scale=E4M3_MAX,
        input_scale=inputs,
        has_tensor_scale=True,
        weight_scale=scale,
    )


def _build(linear: Linear, _reader: TensorReader, *, scale: str, tile: tuple[int, int] | None) -> RowMajorWeight:
    codes = linear.parts["weight"]
    shape = require_matrix(codes)
    grid = lay_grid(linear.parts[scale], shape, tile or shape, coding=SCALE)
    return RowMajorWeight(name=linear.weight_name, shape=shape, codes=codes, coding=FP8, scale=grid)
