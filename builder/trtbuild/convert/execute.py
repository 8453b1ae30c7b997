"""Carries out a ConversionPlan: reads every source tensor in row blocks, encodes it once, and cuts it per rank.

Memory bound: a few times `BLOCK_BYTES`, whatever the size of the model or of its largest tensor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtbuild.convert.plan import ConversionPlan
from trtbuild.convert.writer import RankWriter
from trtbuild.dtypes import TO_CONFIG, numpy_dtype
from trtbuild.errors import TrtbuildError
from trtbuild.layout import Slot
from trtbuild.quant.kv_cache import KV_SCALE_NAMES
from trtbuild.quant.stats import CalibrationStats
from trtbuild.safetensors_file import SourceTensor, TensorReader, num_rows

logger = logging.getLogger(__name__)

#: Source bytes of one row block.
BLOCK_BYTES = 16 * 2**20
#: Exponent bits of each float format: all set means infinity or NaN.
_EXPONENT: dict[str, tuple[type[np.unsignedinteger[Any]], int]] = {
    "F16": (np.uint16, 0x7C00),
    "BF16": (np.uint16, 0x7F80),
    "F32": (np.uint32, 0x7F800000),
}


@dataclass(frozen=True, slots=True)
class ConversionResult:
    """What was written: rank file name -> tensor name -> SHA-256, and the KV scales per layer (empty without)."""

    digests: dict[str, dict[str, str]]
    kv_scales: tuple[float, ...]


def execute(
    plan: ConversionPlan, folder: Path, *, stats: CalibrationStats | None, advance: Callable[[int], None]
) -> ConversionResult:
    """Write all rank files of a plan into an existing, empty folder.

    Args:
        plan: what to write.
        folder: where to.
        stats: calibrated ranges; needed when `plan.needs_calibration`.
        advance: called with the source bytes that were just finished.

    Raises:
        TrtbuildError: a weight is not finite, does not fit the dtype, or cannot be read.
    """
    layout = plan.layout
    with ExitStack() as stack:
        reader = stack.enter_context(TensorReader())
        writers: list[RankWriter] = []
        for rank in layout.parallel.ranks():
            writer = RankWriter(folder / f"rank{rank.index}.safetensors", layout.tensors(rank))
            stack.callback(writer.close)
            writers.append(writer)
        for group in _groups(plan):
            _convert_group(plan, group, reader, writers, stats, advance)
        kv_scales = _write_kv_scales(plan, writers, stats)
        digests = {f"rank{index}.safetensors": writer.finish() for index, writer in enumerate(writers)}
    return ConversionResult(digests, kv_scales)


def _groups(plan: ConversionPlan) -> list[list[Slot]]:
    """Return the slots by shared scales, in storage order; a slot without a scale group is alone."""
    groups: dict[tuple[int, str], list[Slot]] = {}
    for slot in plan.layout.slots():
        groups.setdefault((slot.layer, slot.rule.scale_group or slot.target), []).append(slot)
    return list(groups.values())


def _convert_group(
    plan: ConversionPlan,
    group: list[Slot],
    reader: TensorReader,
    writers: list[RankWriter],
    stats: CalibrationStats | None,
    advance: Callable[[int], None],
) -> None:
    layout = plan.layout
    parallel, scheme = layout.parallel, layout.scheme
    quantized = layout.is_quantized(group[0])
    scales: dict[str, NDArray[Any]] = {}
    if quantized:
        parts = [part for slot in group for part in plan.parts(slot)]
        weight_amax = max(_amax(reader, part) for part in parts)
        input_amax = (
            stats.group_input_amax([part.name for part in parts]) if stats and scheme.needs_activations else None
        )
        scales = scheme.scales(weight_amax=weight_amax, input_amax=input_amax)
    for slot in group:
        held = [rank for rank in parallel.ranks() if rank.pp_rank == slot.pp_rank]
        for suffix, value in scales.items():
            for rank in held:
                writers[rank.index].append(f"{slot.module}.{suffix}", value)
        for number, part in enumerate(plan.parts(slot)):
            cuts = [
                (writers[rank.index], slot.shard.cut(number, part.shape, plan.dims, parallel.tp_size, rank.tp_rank))
                for rank in held
            ]
            for start, block in _blocks(reader, part):
                encoded = scheme.encode(_exact(block), scales) if quantized else _cast(block, part, layout.dtype)
                for writer, cut in cuts:
                    if cut.axis:
                        writer.append(slot.target, encoded[:, cut.start : cut.stop])
                    elif start < cut.stop and cut.start < start + len(block):
                        writer.append(slot.target, encoded[max(cut.start - start, 0) : cut.stop - start])
                advance(block.nbytes)
            for writer, cut in cuts:
                writer.pad_rows(slot.target, cut.pad)
        logger.debug("%s <- %s", slot.target, ", ".join(slot.sources))


def _blocks(reader: TensorReader, info: SourceTensor) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield (first row, rows) until the tensor is read."""
    rows = num_rows(info.shape)
    step = max(BLOCK_BYTES * rows // max(info.nbytes, 1), 1)
    for start in range(0, rows, step):
        block = info.read_rows(reader, start, min(start + step, rows))
        _require_finite(block, info)
        yield start, block


def require_finite_source(plan: ConversionPlan) -> None:
    """Read every tensor of the source and raise TrtbuildError for the first that holds NaN or infinity."""
    with TensorReader() as reader:
        for slot in plan.layout.slots():
            for part in plan.parts(slot):
                for _ in _blocks(reader, part):
                    pass


def _require_finite(block: NDArray[Any], info: SourceTensor) -> None:
    integer, mask = _EXPONENT[info.dtype]
    bits = block.view(integer)
    bad = int(np.count_nonzero((bits & integer(mask)) == mask))
    if bad:
        raise TrtbuildError(
            f"{info.path}: tensor {info.name} holds {bad} values that are NaN or infinite",
            hint="the checkpoint is damaged; use another copy",
        )


def _exact(block: NDArray[Any]) -> NDArray[np.float32]:
    return block.astype(np.float32)


def _amax(reader: TensorReader, info: SourceTensor) -> float:
    return max((float(np.abs(_exact(block)).max(initial=0.0)) for _, block in _blocks(reader, info)), default=0.0)


def _cast(block: NDArray[Any], info: SourceTensor, dtype: str) -> NDArray[Any]:
    if info.dtype == dtype:
        return block
    with np.errstate(over="ignore"):
        result = _exact(block).astype(numpy_dtype(dtype))
    integer, mask = _EXPONENT[dtype]
    overflown = int(np.count_nonzero((result.view(integer) & integer(mask)) == mask))
    if overflown:
        raise TrtbuildError(
            f"tensor {info.name}: {overflown} values are too large for {TO_CONFIG[dtype]}",
            hint="use --dtype bfloat16 (or float32)",
        )
    return result


def _write_kv_scales(
    plan: ConversionPlan, writers: list[RankWriter], stats: CalibrationStats | None
) -> tuple[float, ...]:
    parallel, kv_format = plan.layout.parallel, plan.layout.kv_format
    if kv_format is None:
        return ()
    assert stats is not None
    written = []
    for rank in parallel.ranks():
        for local, layer in enumerate(parallel.layers(plan.dims.num_layers, rank.pp_rank)):
            k_scale, v_scale = (kv_format.scale(amax) for amax in (stats.k_amax[layer], stats.v_amax[layer]))
            values = (max(k_scale, v_scale), k_scale, v_scale)
            for name, value in zip(KV_SCALE_NAMES, values, strict=True):
                tensor = f"transformer.layers.{local}.attention.{name}"
                writers[rank.index].append(tensor, np.array([value], dtype=np.float32))
            if rank.tp_rank == 0:
                written.append(values[0])
    return tuple(written)
