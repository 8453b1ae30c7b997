"""AutoAWQ folders (`quant_method: awq`), version GEMM: asymmetric 4-bit codes with zero points.

AutoAWQ has already multiplied its smoothing factors into the layers before, so nothing but codes, zeros and scales is left.
Source: AutoAWQ, awq/utils/packing_utils.py (order of the codes) and awq/modules/linear/gemm.py (shapes).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from trtbuild.errors import TrtbuildError
from trtbuild.quant.sources.assemble import Declaration
from trtbuild.quant.sources.column_major import ColumnMajorWeight
from trtbuild.quant.sources.grid import divide_groups, require_matrix, require_shape
from trtbuild.quant.sources.parts import Format, Linear, Part
from trtbuild.safetensors_file import TensorReader
from trtbuild.source import SourceCheckpoint

BITS = 4
#: Column of each code of a word, from the lowest bits up.
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
VERSION = "gemm"
MARKS = frozenset({"qweight", "qzeros", "scales"})


def declare(source: SourceCheckpoint, block: Mapping[str, Any]) -> Declaration:
    """Return what `quantization_config` says.

    Args:
        source: the opened folder.
        block: `quantization_config` of config.json.

    Raises:
        TrtbuildError: a version, bit width or kind of zero point that is not read.
    """
    facts = {
        "version": (str(block.get("version", VERSION)).lower(), (VERSION,)),
        "backend": (str(block.get("backend", "autoawq")), ("autoawq",)),
        "bits": (block.get("bits", block.get("w_bit")), (BITS,)),
        "zero_point": (block.get("zero_point", True), (True,)),
    }
    for name, (value, allowed) in facts.items():
        if value not in allowed:
            have = "has" if any(key.endswith(".qzeros") for key in source.tensors) else "has no"
            raise TrtbuildError(
                f"{source.path} is an AWQ folder with {name} {value!r}; read is {name} {allowed[0]!r} (the folder {have} qzeros)",
                hint="quantize again with AutoAWQ's GEMM version, 4 bits and zero points, or convert the unquantized model",
            )
    group_size = block.get("group_size", block.get("q_group_size"))
    if not isinstance(group_size, int) or isinstance(group_size, bool) or (group_size < 1 and group_size != -1):
        raise TrtbuildError(
            f"{source.path} declares AWQ with group_size {group_size!r}",
            hint="group_size has to be a positive number, or -1 for one group per row",
        )
    floats = ("F16", "BF16", "F32")
    form = Format(
        parts=(Part("qweight", ("I32",)), Part("qzeros", ("I32",)), Part("scales", floats)),
        build=partial(_build, group_size=group_size),
    )
    return Declaration("awq", "W4A16_AWQ", group_size, MARKS, lambda _linear: form)


def _build(linear: Linear, _reader: TensorReader, *, group_size: int) -> ColumnMajorWeight:
    codes, zeros, scales = (linear.parts[name] for name in ("qweight", "qzeros", "scales"))
    inputs, words = require_matrix(codes)
    outputs = words * (32 // BITS)
    size = divide_groups(codes, (outputs, inputs), group_size)[1]
    require_shape(scales, (inputs // size, outputs))
    require_shape(zeros, (inputs // size, words))
    return ColumnMajorWeight(
        name=linear.weight_name,
        shape=(outputs, inputs),
        bits=BITS,
        codes=codes,
        zeros=zeros,
        scales=scales,
        group_size=size,
        group_index=None,
        words_along_outputs=True,
        order=ORDER,
        zeros_less_one=False,
    )
