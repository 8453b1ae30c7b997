"""Folders of NVIDIA ModelOpt's unified Hugging Face export.

Source: modelopt/torch/export (0.37 and 0.47), whose files the tests hold; TensorRT-LLM's names of the algorithms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from trtbuild.errors import TrtbuildError
from trtbuild.quant.codecs.fp8 import E4M3_MAX
from trtbuild.quant.codecs.nvfp4 import GROUP, LIMIT
from trtbuild.quant.sources.assemble import Declaration, as_mapping, kv_algorithm
from trtbuild.quant.sources.coding import FP8, INT8, SCALE, Coding, E2m1Columns, NibbleRows
from trtbuild.quant.sources.grid import divide_groups, lay_grid, require_length, require_matrix
from trtbuild.quant.sources.parts import Format, Linear, Part
from trtbuild.quant.sources.registry import MODELOPT_FILE
from trtbuild.quant.sources.row_major import GlobalScale, RowMajorWeight
from trtbuild.safetensors_file import TensorReader
from trtbuild.source import SourceCheckpoint, read_json

#: Side of the square blocks of `FP8_PB_WO`.
_FP8_BLOCK = 128
_INT8_MAX = 127.0
_FLOATS = ("F32", "F16", "BF16")
_MIXED = "MIXED_PRECISION"

_INPUT = Part("input_scale", ("F32",))
_PRE_QUANT = Part("pre_quant_scale", _FLOATS, is_required=False)
_SECOND = Part("weight_scale_2", ("F32",))


@dataclass(frozen=True, slots=True)
class _Algorithm:
    """One row of the table below.

    Attributes:
        name: how trtbuild calls it.
        coding: how codes are stored.
        tile: (rows, columns) per scale; 0 stands for the whole side, -1 for the declared group size.
        scale_dtypes: dtypes of `weight_scale`.
        extra: parts besides `weight` and `weight_scale`.
        global_scale: whether `weight_scale_2` multiplies the scales (in W4A8_AWQ it does not: it is the second stage of the kernel).
        amax_per_input_scale: see `Format`.
        group_size: group size to assume where none is declared.
    """

    name: str
    coding: Coding
    tile: tuple[int, int]
    scale_dtypes: tuple[str, ...] = ("F32",)
    extra: tuple[Part, ...] = ()
    global_scale: bool = False
    amax_per_input_scale: float | None = None
    group_size: int | None = None


_BLOCK_FP8 = _Algorithm("FP8_BLOCK", FP8, (_FP8_BLOCK, _FP8_BLOCK))
#: `quant_algo`, upper case -> what it is.
ALGORITHMS: dict[str, _Algorithm] = {
    "FP8": _Algorithm("FP8", FP8, (0, 0), extra=(_INPUT,), amax_per_input_scale=E4M3_MAX),
    "FP8_PER_CHANNEL_PER_TOKEN": _Algorithm("FP8_PER_CHANNEL_PER_TOKEN", FP8, (1, 0)),
    "FP8_PB_WO": _BLOCK_FP8,
    "FP8_BLOCK_SCALES": _BLOCK_FP8,
    "W4A16_AWQ": _Algorithm("W4A16_AWQ", NibbleRows(), (1, -1), _FLOATS, extra=(_PRE_QUANT,)),
    "W4A8_AWQ": _Algorithm(
        "W4A8_AWQ", NibbleRows(), (1, -1), _FLOATS,
        extra=(_PRE_QUANT, _SECOND, _INPUT), amax_per_input_scale=E4M3_MAX,
    ),
    "NVFP4": _Algorithm(
        "NVFP4", E2m1Columns(), (1, -1), ("F8_E4M3",),
        extra=(_SECOND, _INPUT), global_scale=True, amax_per_input_scale=LIMIT, group_size=GROUP,
    ),
    "W4A16_NVFP4": _Algorithm(
        "W4A16_NVFP4", E2m1Columns(), (1, -1), ("F8_E4M3",),
        extra=(_SECOND,), global_scale=True, group_size=GROUP,
    ),
    "W8A8_SQ_PER_CHANNEL": _Algorithm(
        "INT8", INT8, (1, 0), extra=(_PRE_QUANT, _INPUT), amax_per_input_scale=_INT8_MAX
    ),
    "W8A16": _Algorithm("W8A16", INT8, (1, 0), _FLOATS),
}  # fmt: skip
MARKS = frozenset({"weight_scale", "weight_scale_2", "input_scale", "pre_quant_scale"})


def declare(source: SourceCheckpoint, block: Mapping[str, Any]) -> Declaration:
    """Return what `hf_quant_config.json` and `quantization_config` say together.

    Args:
        source: the opened folder.
        block: `quantization_config` of config.json, empty when only the other file exists.

    Raises:
        TrtbuildError: they disagree, or name an algorithm that is not read.
    """
    file = source.path / MODELOPT_FILE
    legacy = as_mapping(read_json(file).get("quantization")) if file.is_file() else {}
    facts = {**legacy, **{key: value for key, value in block.items() if value is not None}}
    algo = facts.get("quant_algo")
    if block.get("quant_algo") and legacy and legacy.get("quant_algo") != block["quant_algo"]:
        raise TrtbuildError(
            f"{file} says quant_algo {legacy.get('quant_algo')!r}, config.json beside it says {block['quant_algo']!r}",
            hint="the two files belong to different exports; download or export the model again",
        )
    kv, notes = _kv_algorithm(facts, str(source.path))
    layers = facts.get("quantized_layers") if algo == _MIXED else None
    if algo == _MIXED and not isinstance(layers, Mapping):
        raise TrtbuildError(
            f"{source.path} declares quant_algo {_MIXED} without quantized_layers",
            hint=f"{MODELOPT_FILE} has to say which algorithm each module has; export the model again",
        )
    size = facts.get("group_size", _group_size(block))
    common = _format(algo, size, str(source.path)) if algo and not layers else None
    by_module = {
        module: _format(
            as_mapping(entry).get("quant_algo"), as_mapping(entry).get("group_size", size), f"{source.path}, {module}"
        )
        for module, entry in (layers or {}).items()
    }

    def format_of(linear: Linear) -> Format:
        found = by_module.get(linear.module, common)
        if found is None:
            raise TrtbuildError(
                f"{source.path}: {linear.module} has quantized tensors ({', '.join(sorted(linear.parts))}), but the folder "
                "declares no algorithm for it",
                hint=f"add it to quantized_layers of {MODELOPT_FILE}, or export the model again",
            )
        return found

    row = ALGORITHMS.get(str(algo).upper())
    return Declaration(
        method="modelopt",
        algorithm=row.name if row else str(algo or "NONE"),
        group_size=(size or row.group_size) if row and row.tile[1] == -1 else None,
        marks=MARKS,
        format_of=format_of,
        kv_algorithm=kv,
        must_quantize=bool(algo),
        notes=notes,
    )


def _format(algo: object, group_size: int | None, where: str) -> Format:
    row = ALGORITHMS.get(str(algo).upper())
    if row is None:
        raise TrtbuildError(
            f"{where} declares quant_algo {algo!r}, which is not read",
            hint=f"read are: {', '.join(ALGORITHMS)}; convert the unquantized model instead",
        )
    size = row.group_size if group_size is None else group_size
    if row.tile[1] == -1 and not (isinstance(size, int) and size > 0):
        raise TrtbuildError(
            f"{where} declares quant_algo {algo!r} with group_size {size!r}",
            hint=f"{MODELOPT_FILE} has to hold the group size, a positive number; config.json of ModelOpt does not",
        )
    return Format(
        parts=(Part("weight", row.coding.dtypes), Part("weight_scale", row.scale_dtypes), *row.extra),
        build=partial(_build, row=row, group_size=size),
        amax_per_input_scale=row.amax_per_input_scale,
        has_tensor_scale=row.tile == (0, 0),
    )


def _build(linear: Linear, _reader: TensorReader, *, row: _Algorithm, group_size: int | None) -> RowMajorWeight:
    codes, scale = linear.parts["weight"], linear.parts["weight_scale"]
    rows, columns = require_matrix(codes)
    shape = rows * row.coding.pack[0], columns * row.coding.pack[1]
    tile = row.tile[0] or shape[0], row.tile[1] or shape[1]
    if tile[1] == -1:
        assert group_size is not None, "checked with the declaration"
        tile = divide_groups(codes, shape, group_size)
    second, pre_quant = linear.parts.get("weight_scale_2"), linear.parts.get("pre_quant_scale")
    if second:
        require_length(second, 1)
    if pre_quant:
        require_length(pre_quant, shape[1])
    return RowMajorWeight(
        name=linear.weight_name,
        shape=shape,
        codes=codes,
        coding=row.coding,
        scale=lay_grid(scale, shape, tile, coding=SCALE),
        global_scale=GlobalScale(second, divides=False) if second and row.global_scale else None,
        pre_quant_scale=pre_quant,
    )


def _group_size(block: Mapping[str, Any]) -> int | None:
    """Return the group size of the first config group; only some algorithms write one there."""
    first = next(iter(as_mapping(block.get("config_groups")).values()), None)
    size = as_mapping(as_mapping(first).get("weights")).get("group_size")
    return size if isinstance(size, int) else None


def _kv_algorithm(facts: Mapping[str, Any], where: str) -> tuple[str | None, tuple[str, ...]]:
    """Return the KV cache algorithm of either file: a name in one, a description or a name in the other."""
    return kv_algorithm(facts.get("kv_cache_quant_algo") or facts.get("kv_cache_scheme"), where)
