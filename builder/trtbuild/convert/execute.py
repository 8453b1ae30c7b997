"""Carries out a ConversionPlan: reads every source tensor in row blocks, once, and hands it to whatever is written from it.

Groups of tensors that share scales are independent of each other, so several threads work on one each: reading, encoding, hashing and
writing overlap. Memory bound: `memory_bytes`, whatever the size of the model or of its largest tensor.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Protocol

from trtbuild.convert.blocks import BlockSource
from trtbuild.convert.budget import DEFAULT_MEMORY_BYTES, LARGEST_BLOCK_BYTES, Budget
from trtbuild.convert.encoding import Knowledge
from trtbuild.convert.plan import ConversionPlan
from trtbuild.convert.rank_files import RankSink
from trtbuild.convert.sink_files import ConversionResult
from trtbuild.layout import Part, Slot
from trtbuild.quant.recipes import Recipes
from trtbuild.quant.stats import CalibrationStats
from trtbuild.safetensors_file import TensorReader

logger = logging.getLogger(__name__)


class Sink(Protocol):
    """Something that is written from the groups of a plan; different groups may come from different threads."""

    def parts(self, group: Sequence[Slot]) -> list[Part]:
        """Return what will be read for a group."""
        ...

    def is_done(self, group: Sequence[Slot]) -> bool:
        """Say whether an interrupted run finished everything of a group."""
        ...

    def write(
        self, group: Sequence[Slot], source: BlockSource, *, check: Callable[[], None], advance: Callable[[int], None]
    ) -> None:
        """Write everything of a group.

        Args:
            group: slots that share scales.
            source: has the parts.
            check: raises when the work is to stop; called for every block.
            advance: called with the source bytes that were just written.
        """
        ...


def run_sinks(
    plan: ConversionPlan,
    sinks: Sequence[Sink],
    *,
    advance: Callable[[int], None],
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> None:
    """Go through the source of a plan once and hand every group of tensors to all sinks.

    Args:
        plan: what to read.
        sinks: what to write; what an interrupted run finished there is left alone.
        advance: called with the source bytes that a sink just finished.
        memory_bytes: what may be used above the interpreter.

    Raises:
        TrtbuildError: a weight is not finite, does not fit the dtype, or cannot be read.
    """
    with TensorReader() as reader:
        _Work(plan, reader, sinks, advance, Budget.of(memory_bytes)).run()


def execute(
    plan: ConversionPlan,
    folder: Path,
    *,
    stats: CalibrationStats | None,
    advance: Callable[[int], None],
    recipes: Recipes | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> ConversionResult:
    """Write all rank files of a plan into a folder; what an interrupted run of the same plan finished there is kept.

    Args:
        plan: what to write.
        folder: where to; empty, or left by an interrupted run of the same plan.
        stats: calibrated ranges; needed when `plan.needs_calibration`.
        advance: called with the source bytes that were just finished.
        recipes: what calibration decided about single linears.
        memory_bytes: what may be used above the interpreter.

    Raises:
        TrtbuildError: a weight is not finite, does not fit the dtype, or cannot be read.
    """
    with RankSink(Knowledge(plan, stats, recipes or Recipes()), folder) as sink:
        run_sinks(plan, [sink], advance=advance, memory_bytes=memory_bytes)
        return sink.finish()


def groups(plan: ConversionPlan) -> list[list[Slot]]:
    """Return the slots by shared scales, in storage order; a slot without a scale group is alone."""
    found: dict[tuple[int, str], list[Slot]] = {}
    for slot in plan.layout.slots:
        found.setdefault((slot.layer, slot.rule.scale_group or slot.target), []).append(slot)
    return list(found.values())


class _Stopped(Exception):
    """Another thread failed, or the user interrupted."""


class _Work:
    """The groups of a plan, done by several threads."""

    def __init__(
        self,
        plan: ConversionPlan,
        reader: TensorReader,
        sinks: Sequence[Sink],
        advance: Callable[[int], None],
        budget: Budget,
    ) -> None:
        self._plan, self._reader, self._sinks = plan, reader, sinks
        self._advance, self._budget = advance, budget
        self._stop = threading.Event()
        self._progress = threading.Lock()

    def run(self) -> None:
        """Convert all groups; the first failure stops the others after their current block."""
        with ThreadPoolExecutor(self._budget.workers, thread_name_prefix="trtbuild-convert") as pool:
            futures = [pool.submit(self._convert_group, group) for group in groups(self._plan)]
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
        wanted = {id(sink): sink.parts(group) for sink in self._sinks}
        pending = [sink for sink in self._sinks if not sink.is_done(group)]
        for sink in self._sinks:
            if sink not in pending:
                self._report(sum(self._plan.part_bytes(part) for part in wanted[id(sink)]))
        if not pending:
            return
        source = BlockSource(
            self._plan.source.tensors, self._reader, list(dict.fromkeys(part for sink in pending for part in wanted[id(sink)])),
            block_bytes=self._budget.block_bytes, cache_bytes=self._budget.cache_bytes, row_step=self._plan.row_step(group[0]),
        )  # fmt: skip
        for sink in pending:
            sink.write(group, source, check=self._check_stopped, advance=self._report)
        logger.debug("%s <- %s", group[0].target, ", ".join(group[0].sources[:4]))

    def _check_stopped(self) -> None:
        if self._stop.is_set():
            raise _Stopped

    def _report(self, nbytes: int) -> None:
        with self._progress:
            self._advance(nbytes)


def digest_source(plan: ConversionPlan, parts: Iterable[Part], *, advance: Callable[[int], None]) -> dict[str, str]:
    """Read parts of the source and return label -> SHA-256 of their rows.

    Args:
        plan: has the source.
        parts: what to read, each once.
        advance: called with the source bytes just read.

    Raises:
        TrtbuildError: a value is NaN or infinite, or the file cannot be read.
    """
    found: dict[str, str] = {}
    with TensorReader() as reader:
        for part in parts:
            source = BlockSource(plan.source.tensors, reader, [part], block_bytes=LARGEST_BLOCK_BYTES, cache_bytes=0)
            source.amax(part)
            advance(plan.part_bytes(part))
            found[part.label] = source.digests[part]
    return found
