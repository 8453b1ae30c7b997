"""Writes the tensors of a unified Hugging Face folder, group by group as the plan goes through the source.

Knows which parts it wants of a group and what becomes of them; reading, order and threads are `execute`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from numpy.typing import NDArray

from trtbuild.convert.blocks import BlockSource
from trtbuild.convert.cast import cast, tabled
from trtbuild.convert.journal import INPUTS, Journal
from trtbuild.convert.plan import ConversionPlan
from trtbuild.convert.rank_files import ConversionResult
from trtbuild.convert.unified_config import write_beside
from trtbuild.convert.writer import RankWriter
from trtbuild.layout import Part, Slot
from trtbuild.quant.stats import CalibrationStats
from trtbuild.quant.unified import scale_of
from trtbuild.unified_layout import UnifiedLayout, UnifiedWeight


class UnifiedSink:
    """The files of one folder under construction.

    Args:
        plan: what is read.
        unified: what is written.
        folder: where to; empty, or left by an interrupted run of the same plan.
        stats: calibrated ranges; needed when `plan.needs_calibration`.
    """

    def __init__(
        self, plan: ConversionPlan, unified: UnifiedLayout, folder: Path, stats: CalibrationStats | None
    ) -> None:
        self._plan, self._unified, self._stats = plan, unified, stats
        self._folder = folder
        self._writers: dict[str, RankWriter] = {}
        with ExitStack() as stack:
            self._journal = stack.enter_context(Journal(folder))
            for name, tensors in unified.files.items():
                self._writers[name] = RankWriter(folder / name, tensors, done=self._journal.done(name))
                stack.callback(self._writers[name].close)
            self._open = stack.pop_all()
        self._inputs = self._journal.done(INPUTS)

    def __enter__(self) -> UnifiedSink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    @property
    def read_bytes(self) -> int:
        """Source bytes that all groups together read."""
        return sum(self._plan.part_bytes(weight.part) for weight in self._unified.weights)

    @property
    def write_bytes(self) -> int:
        """Bytes of all tensors."""
        return self._unified.nbytes

    def parts(self, group: Sequence[Slot]) -> list[Part]:
        """Return what will be read for a group."""
        return [weight.part for weight in self._weights(group)]

    def is_done(self, group: Sequence[Slot]) -> bool:
        """Say whether an interrupted run finished everything of a group."""
        return all(
            self._writer(tensor.name).is_done(tensor.name)
            for weight in self._weights(group)
            for tensor in weight.tensors
        )

    def write(
        self, group: Sequence[Slot], source: BlockSource, *, check: Callable[[], None], advance: Callable[[int], None]
    ) -> None:
        """Write the tensors of a group; see `execute.Sink`."""
        weights = self._weights(group)
        modules = [part.module for slot in group for part in slot.parts]
        for weight in weights:
            check()
            scales = self._scales(weight, modules, source) if weight.scales else {}
            for tensor in weight.scales:
                self._writer(tensor.name).append(tensor.name, scales[tensor.name.rpartition(".")[2]])
            encode = self._encoder(weight, source.dtype(weight.part), scales)
            writer = self._writer(weight.tensor.name)
            for _, block in source.blocks(weight.part):
                check()
                writer.append(weight.tensor.name, encode(block))
                advance(block.nbytes)
        self._note(weights, source)

    def finish(self) -> ConversionResult:
        """Write the KV scales and close the files; the result has the larger KV scale of each layer."""
        kv_scales = []
        for layer, (k_tensor, v_tensor) in enumerate(self._unified.kv_scales):
            assert self._stats is not None
            pair = (scale_of(self._stats.k_amax[layer]), scale_of(self._stats.v_amax[layer]))
            for tensor, scale in zip((k_tensor, v_tensor), pair, strict=True):
                self._writer(tensor.name).append(tensor.name, scale)
            kv_scales.append(max(map(float, pair)))
        digests = {name: writer.finish() for name, writer in self._writers.items()}
        self._journal.remove()
        return ConversionResult(dict(sorted(self._inputs.items())), digests, tuple(kv_scales))

    def write_beside(self) -> None:
        """Write the JSON files and the tokenizer."""
        write_beside(self._plan.source, self._unified, self._folder)

    def _weights(self, group: Sequence[Slot]) -> list[UnifiedWeight]:
        return [weight for slot in group for weight in self._unified.by_slot[slot.layer, slot.target]]

    def _writer(self, tensor: str) -> RankWriter:
        return self._writers[self._unified.file_of[tensor]]

    def _scales(self, weight: UnifiedWeight, modules: Sequence[str], source: BlockSource) -> dict[str, NDArray[Any]]:
        """Return the scales of one weight: its own range, and the range of the input."""
        assert self._stats is not None
        # Linears that read the same input see the same range; those of different experts' inner products do not.
        shared = [weight.part.module] if weight.part.expert is not None else list(modules)
        known = self._plan.known.weight_amax.get(weight.part.module) if self._plan.known else None
        return self._unified.form.scales(
            weight_amax=source.amax(weight.part) if known is None else known,  # codes are kept only if their scale is
            input_amax=self._stats.group_input_amax(shared),
        )

    def _encoder(
        self, weight: UnifiedWeight, source_dtype: str, scales: dict[str, NDArray[Any]]
    ) -> Callable[[NDArray[Any]], NDArray[Any]]:
        form, dtype = self._unified.form, self._unified.layout.dtype
        if scales:
            return tabled(
                lambda block: form.encode(block, scales, dtype),
                weight.part,
                source_dtype,
                is_elementwise=form.is_elementwise,
            )
        if source_dtype == dtype:
            return lambda block: block
        return lambda block: cast(block, weight.part, dtype)

    def _note(self, weights: Sequence[UnifiedWeight], source: BlockSource) -> None:
        inputs = {weight.part.label: source.digests[weight.part] for weight in weights}
        self._inputs.update(inputs)
        names = [tensor.name for weight in weights for tensor in weight.tensors]
        self._journal.add(
            {(INPUTS, label): digest for label, digest in inputs.items()}
            | {(self._unified.file_of[name], name): self._writer(name).digest(name) for name in names}
        )
