"""GPTQ folders of AutoGPTQ and GPTQModel (`quant_method: gptq`), 4 and 8 bits.

Source: AutoGPTQ, auto_gptq/nn_modules/qlinear (words along the inputs, zero points less one); GPTQModel, whose
`checkpoint_format: gptq_v2` stores zero points as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from trtbuild.errors import TrtbuildError
from trtbuild.quant.sources.assemble import Declaration, as_mapping
from trtbuild.quant.sources.column_major import ColumnMajorWeight
from trtbuild.quant.sources.grid import divide_groups, require_matrix, require_shape
from trtbuild.quant.sources.parts import Format, Linear, Part
from trtbuild.safetensors_file import TensorReader
from trtbuild.source import SourceCheckpoint

BITS = (4, 8)
#: `checkpoint_format` -> whether zero points are stored less one.
ZEROS_LESS_ONE = {"gptq": True, "gptq_v2": False}
MARKS = frozenset({"qweight", "qzeros", "scales", "g_idx"})
_WORD_BITS = 32


def declare(source: SourceCheckpoint, block: Mapping[str, Any]) -> Declaration:
    """Return what `quantization_config` says.

    Args:
        source: the opened folder.
        block: `quantization_config` of config.json.

    Raises:
        TrtbuildError: a format, bit width or group size that is not read, or modules with settings of their own.
    """
    bits, group_size = block.get("bits"), block.get("group_size")
    name = "marlin" if block.get("is_marlin_format") else str(block.get("checkpoint_format") or "gptq")
    if name not in ZEROS_LESS_ONE:
        raise TrtbuildError(
            f"{source.path} is a GPTQ folder with checkpoint_format {name!r}",
            hint=f"read are {' and '.join(ZEROS_LESS_ONE)}; other formats are repacked for one kernel: use the original folder",
        )
    if not isinstance(bits, int) or bits not in BITS or block.get("pack_dtype", "int32") != "int32":
        raise TrtbuildError(
            f"{source.path} is a GPTQ folder with bits {bits!r} and pack_dtype {block.get('pack_dtype', 'int32')!r}",
            hint=f"read are {' and '.join(map(str, BITS))} bits in int32; convert the unquantized model",
        )
    if not isinstance(group_size, int) or isinstance(group_size, bool) or (group_size < 1 and group_size != -1):
        raise TrtbuildError(
            f"{source.path} declares GPTQ with group_size {group_size!r}",
            hint="group_size has to be a positive number, or -1 for one group per row",
        )
    own = [rule for rule in as_mapping(block.get("dynamic")) if not str(rule).startswith("-:")]
    if own:
        raise TrtbuildError(
            f"{source.path} is a GPTQ folder whose `dynamic` gives modules settings of their own ({', '.join(own[:3])})",
            hint="only rules that leave modules unquantized (-:) are read; convert the unquantized model",
        )
    is_reordered = bool(block.get("desc_act"))
    form = Format(
        parts=(
            Part("qweight", ("I32",)),
            Part("qzeros", ("I32",)),
            Part("scales", ("F16", "BF16", "F32")),
            Part("g_idx", ("I32",), is_required=is_reordered),
        ),
        build=partial(_build, bits=bits, group_size=group_size, zeros_less_one=ZEROS_LESS_ONE[name]),
    )
    notes = (
        f"{source.path} was quantized with desc_act: groups follow g_idx, as AutoGPTQ packs them; such weights have not been "
        "compared with what a GPTQ kernel computes",
    )
    return Declaration(
        "gptq", f"W{bits}A16_GPTQ", group_size, MARKS, lambda _linear: form, notes=notes if is_reordered else ()
    )


def _build(
    linear: Linear, _reader: TensorReader, *, bits: int, group_size: int, zeros_less_one: bool
) -> ColumnMajorWeight:
    codes, zeros, scales = (linear.parts[name] for name in ("qweight", "qzeros", "scales"))
    words, outputs = require_matrix(codes)
    per_word = _WORD_BITS // bits
    inputs = words * per_word
    size = divide_groups(codes, (outputs, inputs), group_size)[1]
    groups = inputs // size
    require_shape(scales, (groups, outputs))
    require_shape(zeros, (groups, -(-outputs // per_word)))
    index = linear.parts.get("g_idx")
    if index:
        require_shape(index, (inputs,))
    return ColumnMajorWeight(
        name=linear.weight_name,
        shape=(outputs, inputs),
        bits=bits,
        codes=codes,
        zeros=zeros,
        scales=scales,
        group_size=size,
        group_index=index,
        words_along_outputs=False,
        order=None,
        zeros_less_one=zeros_less_one,
    )
