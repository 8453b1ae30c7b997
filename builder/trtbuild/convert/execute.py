"""Carries out a ConversionPlan: reads every source tensor in row blocks, encodes it once, and cuts it per rank.

Groups of tensors that share scales are independent of each other, so several threads work on one each: reading, encoding, hashing and
writing overlap. Memory bound: `memory_bytes`, whatever the size of the model or of its largest tensor.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtbuild.convert.blocks import BlockSource, is_finite, magnitude_bits
from trtbuild.convert.journal import INPUTS, Journal
from trtbuild.convert.plan import ConversionPlan
from trtbuild.convert.writer import RankWriter
from trtbuild.dtypes import TO_CONFIG, numpy_dtype
from trtbuild.errors import TrtbuildError
from trtbuild.layout import Part, Slot
from trtbuild.quant.kv_cache import KV_SCALE_NAMES
from trtbuild.quant.stats import CalibrationStats
from trtbuild.safetensors_file import TensorReader

logger = logging.getLogger(__name__)

#: Memory of a conversion above that of the interpreter, bytes.
DEFAULT_MEMORY_BYTES = 2**30
#: More threads than this only wait for the disk.
_MOST_WORKERS = 8
LARGEST_BLOCK_BYTES, SMALLEST_BLOCK_BYTES = 16 * 2**20, 2**18
#: A worker holds a raw block, its float32 form, a quotient, codes and a rank's copy at most: this many times the raw block.
_BLOCKS_PER_WORKER = 8
#: Share of the memory that keeps groups which are gone through twice.
_CACHE_SHARE = 2
#: Source dtypes of so few values that all their codes can be listed, and how large a weight must be to make that pay.
_TABLED, _LEAST_TABLED = ("F16", "BF16"), 2**18


@dataclass(frozen=True, slots=True)
class ConversionResult:
    """What was read and written.

    Attributes:
        inputs: label of a part of the source -> SHA-256 of its rows.
        digests: rank file name -> tensor name -> SHA-256.
        kv_scales: per layer, empty without a quantized KV cache.
    """

    inputs: dict[str, str]
    digests: dict[str, dict[str, str]]
    kv_scales: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Budget:
    workers: int
    block_bytes: int
    cache_bytes: int

    @classmethod
    def of(cls, memory_bytes: int) -> _Budget:
        workers = max(min(os.cpu_count() or 1, _MOST_WORKERS), 1)
        block = memory_bytes // (workers * _BLOCKS_PER_WORKER * _CACHE_SHARE)
        return cls(
            workers=workers,
            block_bytes=min(max(block, SMALLEST_BLOCK_BYTES), LARGEST_BLOCK_BYTES),
            cache_bytes=memory_bytes // (_CACHE_SHARE * workers),
        )


def execute(
    plan: ConversionPlan,
    folder: Path,
    *,
    stats: CalibrationStats | None,
    advance: Callable[[int], None],
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> ConversionResult:
    """Write all rank files of a plan into a folder; what an interrupted run of the same plan finished there is kept.

    Args:
        plan: what to write.
        folder: where to; empty, or left by an interrupted run of the same plan.
        stats: calibrated ranges; needed when `plan.needs_calibration`.
        advance: called with the source bytes that were just finished.
        memory_bytes: what may be used above the interpreter.

    Raises:
        TrtbuildError: a weight is not finite, does not fit the dtype, or cannot be read.
    """
    with ExitStack() as stack:
        reader = stack.enter_context(TensorReader())
        journal = stack.enter_context(Journal(folder))
        writers: list[RankWriter] = []
        for rank in plan.layout.parallel.ranks():
            name = f"rank{rank.index}.safetensors"
            writer = RankWriter(folder / name, plan.layout.tensors(rank), done=journal.done(name))
            stack.callback(writer.close)
            writers.append(writer)
        work = _Work(plan, reader, writers, journal, stats, advance, _Budget.of(memory_bytes))
        work.run()
        kv_scales = _write_kv_scales(plan, writers, stats)
        digests = {f"rank{index}.safetensors": writer.finish() for index, writer in enumerate(writers)}
    journal.remove()
    return ConversionResult(dict(sorted(work.inputs.items())), digests, kv_scales)


def _groups(plan: ConversionPlan) -> list[list[Slot]]:
    """Return the slots by shared scales, in storage order; a slot without a scale group is alone."""
    groups: dict[tuple[int, str], list[Slot]] = {}
    for slot in plan.layout.slots:
        groups.setdefault((slot.layer, slot.rule.scale_group or slot.target), []).append(slot)
    return list(groups.values())


class _Stopped(Exception):
    """Another thread failed, or the user interrupted."""


class _Work:
    """The groups of a plan, done by several threads."""

    def __init__(
        self,
        plan: ConversionPlan,
        reader: TensorReader,
        writers: Sequence[RankWriter],
        journal: Journal,
        stats: CalibrationStats | None,
        advance: Callable[[int], None],
        budget: _Budget,
    ) -> None:
        self._plan, self._layout = plan, plan.layout
        self._reader, self._writers, self._journal = reader, writers, journal
        self._stats, self._advance, self._budget = stats, advance, budget
        self.inputs = dict(journal.done(INPUTS))
        self._stop = threading.Event()
        self._progress = threading.Lock()

    def run(self) -> None:
        """Convert all groups; the first failure stops the others after their current block."""
        with ThreadPoolExecutor(self._budget.workers, thread_name_prefix="trtbuild-convert") as pool:
            futures = [pool.submit(self._convert_group, group) for group in _groups(self._plan)]
            try:
                # With a time limit: a signal that comes just before an endless wait would not end it.
                while (state := wait(futures, timeout=0.5, return_when=FIRST_EXCEPTION)).not_done:
                    if any(future.exception() for future in state.done):
                        break
            finally:
                self._stop.set()
                if any(not future.done() for future in futures):
                    pool.shutdown(cancel_futures=True)
        failures = [error for future in futures if not future.cancelled() and (error := future.exception())]
        for error in sorted(failures, key=lambda error: isinstance(error, _Stopped)):
            raise error

    def _convert_group(self, group: list[Slot]) -> None:
        layout = self._layout
        parts = [part for slot in group for part in slot.parts]
        nbytes = sum(self._plan.part_bytes(part) for part in parts)
        names = [(rank.index, name) for slot in group for rank, name in self._stored(slot)]
        if all(self._writers[rank].is_done(name) for rank, name in names):
            self._report(nbytes)
            return
        source = BlockSource(
            self._plan.source.tensors, self._reader, parts,
            block_bytes=self._budget.block_bytes, cache_bytes=self._budget.cache_bytes,
        )  # fmt: skip
        scales = self._scales(group, source) if layout.is_quantized(group[0]) else {}
        for slot in group:
            self._write_scales(slot, scales)
            self._write_weight(slot, source, scales)
            logger.debug("%s <- %s", slot.target, ", ".join(slot.sources[:4]))
        inputs = {part.label: digest for part, digest in source.digests.items()}
        self.inputs.update(inputs)
        written = {(f"rank{rank}.safetensors", name): self._writers[rank].digest(name) for rank, name in names}
        self._journal.add({**{(INPUTS, label): digest for label, digest in inputs.items()}, **written})

    def _stored(self, slot: Slot) -> Iterator[tuple[Any, str]]:
        """Yield (rank, tensor name) of everything that is written for a slot."""
        suffixes = (
            [scale.suffix for scale in self._layout.scheme.scale_tensors] if self._layout.is_quantized(slot) else []
        )
        for rank in self._layout.parallel.ranks():
            if rank.pp_rank == slot.pp_rank:
                yield rank, slot.target
                for suffix in suffixes:
                    yield rank, f"{slot.module}.{suffix}"

    def _scales(self, group: list[Slot], source: BlockSource) -> dict[int | None, dict[str, NDArray[Any]]]:
        """Return the scale tensors of a group, by expert; None is the key outside of experts."""
        scheme, stats = self._layout.scheme, self._stats
        parts = [part for slot in group for part in slot.parts]
        input_amax = None
        if scheme.needs_activations:
            assert stats is not None
            input_amax = stats.group_input_amax([part.module for part in parts])
        weight_amax: dict[int | None, float] = {}
        for part in parts:
            self._check_stopped()
            known = self._plan.known.weight_amax.get(part.module) if self._plan.known else None
            amax = source.amax(part) if known is None else known  # codes are kept only if their scale is
            weight_amax[part.expert] = max(weight_amax.get(part.expert, 0.0), amax)
        return {expert: scheme.scales(weight_amax=amax, input_amax=input_amax) for expert, amax in weight_amax.items()}

    def _write_scales(self, slot: Slot, scales: dict[int | None, dict[str, NDArray[Any]]]) -> None:
        if not scales:
            return
        for rank in self._layout.parallel.ranks():
            if rank.pp_rank != slot.pp_rank:
                continue
            experts = self._layout.local_experts(slot, rank.tp_rank)
            for scale in self._layout.scheme.scale_tensors:
                first = scales[experts[0] if experts else None][scale.suffix]
                if experts and scale.is_per_expert:
                    first = np.stack([scales[expert][scale.suffix] for expert in experts])
                self._writers[rank.index].append(f"{slot.module}.{scale.suffix}", first)

    def _write_weight(self, slot: Slot, source: BlockSource, scales: dict[int | None, dict[str, NDArray[Any]]]) -> None:
        layout = self._layout
        held = [
            (self._writers[rank.index], {piece.number: piece.cut for piece in layout.pieces(slot, rank.tp_rank)})
            for rank in layout.parallel.ranks()
            if rank.pp_rank == slot.pp_rank
        ]
        for number, part in enumerate(slot.parts):
            cuts = [(writer, cut[number]) for writer, cut in held if number in cut]
            encode = self._encoder(slot, part, source.dtype(part), scales)
            for start, block in source.blocks(part):
                self._check_stopped()
                encoded = encode(block)
                for writer, cut in cuts:
                    if cut.axis:
                        writer.append(slot.target, encoded[:, cut.start : cut.stop])
                    elif start < cut.stop and cut.start < start + len(block):
                        writer.append(slot.target, encoded[max(cut.start - start, 0) : cut.stop - start])
                self._report(block.nbytes)
            for writer, cut in cuts:
                writer.pad_rows(slot.target, cut.pad)

    def _encoder(
        self, slot: Slot, part: Part, source_dtype: str, scales: dict[int | None, dict[str, NDArray[Any]]]
    ) -> Callable[[NDArray[Any]], NDArray[Any]]:
        """Return what turns a block of a part into what is stored of it."""
        dtype = self._layout.stored_dtype(slot)
        if not scales:
            offset = slot.rule.offset
            if source_dtype == dtype and not offset:
                return lambda block: block
            return lambda block: _cast(block, part, dtype, offset)
        scheme, own = self._layout.scheme, scales[part.expert]
        if scheme.is_elementwise and source_dtype in _TABLED and math.prod(part.shape) > _LEAST_TABLED:
            # There are only 65,536 different values: looking codes up is several times faster than rounding each.
            patterns = np.arange(2**16, dtype=np.uint16)
            with np.errstate(all="ignore"):  # those of NaN and infinity, which no block holds
                table = scheme.encode(patterns.view(numpy_dtype(source_dtype)).astype(np.float32), own)
            return lambda block: table[block.view(np.uint16)]
        return lambda block: scheme.encode(block.astype(np.float32), own)

    def _check_stopped(self) -> None:
        if self._stop.is_set():
            raise _Stopped

    def _report(self, nbytes: int) -> None:
        with self._progress:
            self._advance(nbytes)


def digest_source(plan: ConversionPlan, *, advance: Callable[[int], None]) -> dict[str, str]:
    """Read every part of the source and return label -> SHA-256 of its rows.

    Args:
        plan: names the parts.
        advance: called with the source bytes just read.

    Raises:
        TrtbuildError: a value is NaN or infinite, or the file cannot be read.
    """
    found: dict[str, str] = {}
    with TensorReader() as reader:
        for slot in plan.layout.slots:
            source = BlockSource(
                plan.source.tensors, reader, slot.parts, block_bytes=LARGEST_BLOCK_BYTES, cache_bytes=0
            )
            for part in slot.parts:
                source.amax(part)
                advance(plan.part_bytes(part))
            found.update({part.label: digest for part, digest in source.digests.items()})
    return found


def _cast(block: NDArray[Any], part: Part, dtype: str, offset: float) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        exact = block.astype(np.float32)
        result: NDArray[Any] = (exact + np.float32(offset) if offset else exact).astype(numpy_dtype(dtype))
    if not is_finite(magnitude_bits(result, dtype), dtype):
        overflown = int(np.count_nonzero(~np.isfinite(result.astype(np.float32))))
        raise TrtbuildError(
            f"tensor {part.source}: {overflown} values are too large for {TO_CONFIG[dtype]}",
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
