"""compressed-tensors folders, as llm-compressor writes them (`quant_method: compressed-tensors`).

Source: compressed-tensors, src/compressed_tensors/compressors (tensors and packing) and quantization/utils/helpers.py (scales:
amax / 448 for FP8, amax / 127.5 for symmetric INT8; NVFP4 global scales are inverted: 448 * 6 / amax).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from trtbuild.errors import TrtbuildError
from trtbuild.quant.codecs.fp8 import E4M3_MAX
from trtbuild.quant.codecs.nvfp4 import LIMIT
from trtbuild.quant.sources.assemble import Declaration, as_mapping, kv_algorithm
from trtbuild.quant.sources.coding import FP8, INT8, Coding, E2m1Columns, WordColumns, WordRows
from trtbuild.quant.sources.grid import (
    divide_groups,
    lay_grid,
    require_length,
    require_matrix,
    require_shape,
)
from trtbuild.quant.sources.parts import Format, Linear, Part
from trtbuild.quant.sources.row_major import GlobalScale, RowMajorWeight
from trtbuild.safetensors_file import TensorReader
from trtbuild.source import SourceCheckpoint

_FLOATS = ("F32", "F16", "BF16")
#: Half the range -128 to 127, by which compressed-tensors divides.
_INT8_HALF = 127.5


@dataclass(frozen=True, slots=True)
class _Storage:
    """One row of the table below.

    Attributes:
        codes: name of the tensor of the codes.
        coding: how they are stored; None for int32 words, whose coding needs the width.
        bits: bit widths that are read.
        names: strategy -> algorithm with quantized inputs, algorithm without; the strategies are those that are read.
        scale_dtypes: dtypes of `weight_scale`.
        zero_dtypes: dtypes of `weight_zero_point`, none when zero points are not read.
        extra: further tensors.
        input_scale: name of the static input scale.
        amax_per_input_scale: see `Format`.
    """

    codes: str
    coding: Coding | None
    bits: tuple[int, ...]
    names: Mapping[str, tuple[str, str]]
    scale_dtypes: tuple[str, ...] = _FLOATS
    zero_dtypes: tuple[str, ...] = ()
    extra: tuple[Part, ...] = ()
    input_scale: str = "input_scale"
    amax_per_input_scale: float | None = None


_FP8_CHANNEL = "FP8_PER_CHANNEL_PER_TOKEN"
_FLOAT = _Storage(
    "weight", FP8, (8,),
    {"tensor": ("FP8", "FP8"), "channel": (_FP8_CHANNEL, _FP8_CHANNEL), "block": ("FP8_BLOCK", "FP8_BLOCK")},
    amax_per_input_scale=E4M3_MAX,
)  # fmt: skip
_INT = _Storage(
    "weight", INT8, (8,),
    {"tensor": ("INT8", "W8A16"), "channel": ("INT8", "W8A16")},
    zero_dtypes=INT8.dtypes, amax_per_input_scale=_INT8_HALF,
)  # fmt: skip
_PACK = _Storage(
    "weight_packed", None, (4, 8),
    {"channel": ("W{bits}A8", "W{bits}A16"), "group": ("W{bits}A8", "W{bits}A16")},
    zero_dtypes=("I32",),
    extra=(Part("weight_shape", ("I64", "I32")), Part("weight_g_idx", ("I32",), is_required=False)),
)  # fmt: skip
_NVFP4 = _Storage(
    "weight_packed", E2m1Columns(), (4,),
    {"tensor_group": ("NVFP4", "W4A16_NVFP4"), "group": ("NVFP4", "W4A16_NVFP4")},
    scale_dtypes=("F8_E4M3",), extra=(Part("weight_global_scale", ("F32",)),),
    input_scale="input_global_scale", amax_per_input_scale=LIMIT,
)  # fmt: skip
#: (format, type of the weights) -> how they are stored.
STORAGES: dict[tuple[str, str], _Storage] = {
    ("float-quantized", "float"): _FLOAT,
    ("naive-quantized", "float"): _FLOAT,
    ("int-quantized", "int"): _INT,
    ("naive-quantized", "int"): _INT,
    ("pack-quantized", "int"): _PACK,
    ("nvfp4-pack-quantized", "float"): _NVFP4,
}
MARKS = frozenset({
    "weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx", "weight_global_scale",
    "input_scale", "input_zero_point", "input_global_scale",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Group:
    """One config group: the modules it is for, and how they are stored."""

    targets: tuple[str, ...]
    patterns: tuple[re.Pattern[str], ...]
    algorithm: str
    group_size: int | None
    format: Format

    def is_named(self, module: str) -> bool:
        """Return whether a target is the module's name or a pattern that its beginning matches."""
        return module in self.targets or any(pattern.match(module) for pattern in self.patterns)


def declare(source: SourceCheckpoint, block: Mapping[str, Any]) -> Declaration:
    """Return what `quantization_config` says.

    Args:
        source: the opened folder.
        block: `quantization_config` of config.json.

    Raises:
        TrtbuildError: a format, sparsity or transform that is not read.
    """
    where = str(source.path)
    _refuse_more_than_codes(block, where)
    described = as_mapping(block.get("config_groups"))
    if not described:
        raise TrtbuildError(
            f"{where} declares compressed-tensors without config_groups",
            hint="config.json is incomplete; download it again",
        )
    groups = [
        _group(as_mapping(group), str(as_mapping(group).get("format") or block.get("format")), f"{where}, {name}")
        for name, group in described.items()
    ]

    def format_of(linear: Linear) -> Format:
        if len(groups) == 1:
            return groups[0].format
        named = [group for group in groups if group.is_named(linear.module)]
        found = named or [group for group in groups if "Linear" in group.targets]
        if not found:
            raise TrtbuildError(
                f"{where}: {linear.module} has quantized tensors, but no config group is for it",
                hint="its targets have to name the module, match it, or be Linear; download config.json again",
            )
        return found[0].format

    algorithms = {group.algorithm for group in groups}
    sizes = {group.group_size for group in groups}
    kv, notes = kv_algorithm(block.get("kv_cache_scheme"), where)
    return Declaration(
        method="compressed-tensors",
        algorithm=algorithms.pop() if len(algorithms) == 1 else "MIXED_PRECISION",
        group_size=sizes.pop() if len(sizes) == 1 else None,
        marks=MARKS,
        format_of=format_of,
        kv_algorithm=kv,
        notes=notes,
    )


def _refuse_more_than_codes(block: Mapping[str, Any], where: str) -> None:
    """Refuse what changes weights or inputs beyond quantization: sparse storage and rotations."""
    sparsity = as_mapping(block.get("sparsity_config")).get("format", "dense")
    if sparsity != "dense":
        raise TrtbuildError(
            f"{where} stores its weights in the sparse format {sparsity!r}",
            hint="only dense storage is read; save the model again without sparse compression",
        )
    transforms = as_mapping(block.get("transform_config")).get("config_groups")
    if transforms:
        raise TrtbuildError(
            f"{where} rotates its inputs at run time (transform_config: {', '.join(map(str, transforms))})",
            hint="TensorRT-LLM does not; quantize again without transforms, or convert the unquantized model",
        )


def _group(group: Mapping[str, Any], stored_as: str, where: str) -> _Group:
    weights, inputs = as_mapping(group.get("weights")), as_mapping(group.get("input_activations"))
    kind, bits = str(weights.get("type", "int")), weights.get("num_bits")
    storage = STORAGES.get((stored_as, kind))
    size = weights.get("group_size")
    strategy = str(weights.get("strategy") or {"None": "tensor", "-1": "channel"}.get(str(size), "group"))
    if storage is None or not (isinstance(bits, int) and bits in storage.bits and strategy in storage.names):
        readable = "; ".join(
            f"{name} with {kind} of {' or '.join(map(str, row.bits))} bits per {', '.join(row.names)}"
            for (name, kind), row in STORAGES.items()
        )
        raise TrtbuildError(
            f"{where} stores weights as {stored_as}: {kind} of {bits} bits per {strategy}, which is not read",
            hint=f"read are: {readable}",
        )
    is_symmetric = weights.get("symmetric", True) is not False
    if not is_symmetric and not storage.zero_dtypes:
        raise TrtbuildError(f"{where} has asymmetric {stored_as} weights", hint="only symmetric ones are read")
    # NVFP4 inputs are dynamic per group ("local") under a static global scale.
    has_static_inputs = bool(inputs) and inputs.get("dynamic") in (False, None, "local")
    has_input_zeros = has_static_inputs and inputs.get("symmetric", True) is False
    tile = _tile(strategy, weights, where)
    parts = (
        Part(storage.codes, storage.coding.dtypes if storage.coding else ("I32",)),
        Part("weight_scale", storage.scale_dtypes),
        *storage.extra,
        *([] if is_symmetric else [Part("weight_zero_point", storage.zero_dtypes)]),
        *([Part(storage.input_scale, _FLOATS)] if has_static_inputs else []),
        *([Part("input_zero_point", ("I8", "U8", "I32"))] if has_input_zeros else []),
    )
    form = Format(
        parts=parts,
        build=partial(_build, storage=storage, bits=bits, tile=tile),
        amax_per_input_scale=None if has_input_zeros else storage.amax_per_input_scale,
        input_scale=storage.input_scale,
        is_inverse=storage.input_scale == "input_global_scale",
        has_tensor_scale=storage is _FLOAT and strategy == "tensor",
    )
    with_inputs, without = storage.names[strategy]
    name = (with_inputs if inputs else without).format(bits=bits)
    named = group.get("targets")
    targets = tuple(str(target) for target in named) if isinstance(named, list) else ()
    try:
        patterns = tuple(re.compile(target[3:]) for target in targets if target.startswith("re:"))
    except re.error as error:
        raise TrtbuildError(
            f"{where} has the target {error.pattern!r}, which is not a regular expression: {error}",
            hint="config.json is damaged; download it again",
        ) from error
    return _Group(targets, patterns, name, tile[1] if tile[1] > 0 and tile[0] == 1 else None, form)


def _tile(strategy: str, weights: Mapping[str, Any], where: str) -> tuple[int, int]:
    """Return (rows, columns) per scale, 0 for the whole side.

    Raises:
        TrtbuildError: a group or block size that is none.
    """
    size, block = weights.get("group_size"), weights.get("block_structure")
    sides = block if isinstance(block, list) else []
    tiles = {"tensor": (0, 0), "channel": (1, 0), "group": (1, size), "tensor_group": (1, size), "block": tuple(sides)}
    tile = tiles[strategy]
    if len(tile) == 2 and all(isinstance(side, int) and side >= 0 for side in tile):
        rows, columns = tile
        if strategy in ("tensor", "channel") or (rows and columns):
            return int(rows), int(columns)
    raise TrtbuildError(
        f"{where} has scales per {strategy} with group_size {size!r} and block_structure {block!r}",
        hint="a group needs a positive group_size, a block two positive sides",
    )


def _build(
    linear: Linear, reader: TensorReader, *, storage: _Storage, bits: int, tile: tuple[int, int]
) -> RowMajorWeight:
    codes = linear.parts[storage.codes]
    shape, coding = _shape(linear, reader, storage=storage, bits=bits)
    whole = tile[0] or shape[0], tile[1] or shape[1]
    if whole[0] == 1:
        whole = divide_groups(codes, shape, whole[1])
    index, second = linear.parts.get("weight_g_idx"), linear.parts.get("weight_global_scale")
    zero = linear.parts.get("weight_zero_point")
    if index:
        require_shape(index, (shape[1],))
    if second:
        require_length(second, 1)
    zero_coding: Coding = INT8 if storage.coding else WordRows(bits)
    return RowMajorWeight(
        name=linear.weight_name,
        shape=shape,
        codes=codes,
        coding=coding,
        scale=lay_grid(linear.parts["weight_scale"], shape, whole, column_index=index),
        global_scale=GlobalScale(second, divides=True) if second else None,
        zero=lay_grid(zero, shape, whole, coding=zero_coding, column_index=index) if zero else None,
    )


def _shape(linear: Linear, reader: TensorReader, *, storage: _Storage, bits: int) -> tuple[tuple[int, int], Coding]:
    """Return [out, in] of the plain weight, and its coding.

    Raises:
        TrtbuildError: `weight_shape` and the words do not belong together.
    """
    codes = linear.parts[storage.codes]
    rows, columns = require_matrix(codes)
    if storage.coding:
        return (rows * storage.coding.pack[0], columns * storage.coding.pack[1]), storage.coding
    info = linear.parts["weight_shape"]
    require_length(info, 2)
    said = tuple(int(side) for side in reader.read(info))
    words = -(-said[1] * bits // 32)
    if said[0] != rows or words != columns:
        raise TrtbuildError(
            f"{info.path}: {info.name} says {list(said)}, but {codes.name} has shape {list(codes.shape)}",
            hint=f"with {bits} bits it would have to be [{said[0]}, {words}]; the file is damaged",
        )
    return (said[0], said[1]), WordColumns(bits, said[1])
