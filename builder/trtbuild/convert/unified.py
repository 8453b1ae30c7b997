"""Writes the tensors of a unified Hugging Face folder, group by group as the plan goes through the source.

Knows which parts it wants of a group and what becomes of them; reading, order and threads are `execute`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from trtbuild.convert.blocks import BlockSource
from trtbuild.convert.cast import cast
from trtbuild.convert.encoding import Knowledge, LinearCoding, encoder, fold_norm, group_codings
from trtbuild.convert.sink_files import ConversionResult, SinkFiles
from trtbuild.convert.unified_config import write_beside
from trtbuild.convert.writer import RankWriter
from trtbuild.dtypes import numpy_dtype
from trtbuild.layout import Part, Slot
from trtbuild.quant.codecs.fp8 import scale_of
from trtbuild.quant.scheme import Form
from trtbuild.unified_layout import UnifiedLayout, UnifiedWeight


class UnifiedSink(SinkFiles):
    """The files of one folder under construction.

    Args:
        knowledge: the plan, and what is known about its linears.
        unified: what is written.
        folder: where to; empty, or left by an interrupted run of the same plan.
    """

    def __init__(self, knowledge: Knowledge, unified: UnifiedLayout, folder: Path) -> None:
        self._knowledge, self._plan, self._stats = knowledge, knowledge.plan, knowledge.stats
        self._unified = unified
        super().__init__(folder, unified.files)

    @property
    def rows_bytes(self) -> int:
        """Bytes of the source's rows that all groups together work on."""
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
        codings = self._codings(group, weights, source, check)
        for weight in weights:
            form, writer = weight.form, self._writer(weight.tensor.name)
            if form is None:
                for _, block in source.blocks(weight.part):
                    check()
                    writer.append(weight.tensor.name, self._plain(weight, block, source))
                    advance(block.nbytes)
                continue
            coding = codings[weight.part.module]
            self._write_constants(weight, form, coding)
            encode = encoder(form, weight.part, coding, self._knowledge, source.reader, source.dtype(weight.part))
            for start, block in source.blocks(weight.part):
                check()
                codes, scales = encode(block, start)
                writer.append(weight.tensor.name, codes.view(numpy_dtype(form.dtype)))
                for scale in form.scales:
                    if scale.geometry in ("rows", "groups", "blocks"):
                        assert scales.weight is not None
                        writer.append(f"{weight.part.module}.{scale.suffix}", scales.weight)
                advance(block.nbytes)
        names = [tensor.name for weight in weights for tensor in weight.tensors]
        inputs = {weight.part.label: source.digests[weight.part] for weight in weights}
        self._note(inputs, [(self._unified.file_of[name], name) for name in names])

    def finish(self) -> ConversionResult:
        """Write the KV scales and close the files; the result has the larger KV scale of each layer."""
        kv_scales = []
        for layer, (k_tensor, v_tensor) in enumerate(self._unified.kv_scales):
            assert self._stats is not None
            pair = (scale_of(self._stats.k_amax[layer]), scale_of(self._stats.v_amax[layer]))
            for tensor, scale in zip((k_tensor, v_tensor), pair, strict=True):
                self._writer(tensor.name).append(tensor.name, scale)
            kv_scales.append(max(map(float, pair)))
        return self._close(tuple(kv_scales))

    def write_beside(self) -> None:
        """Write the JSON files and the tokenizer."""
        write_beside(self._plan.source, self._unified, self._folder)

    def _weights(self, group: Sequence[Slot]) -> list[UnifiedWeight]:
        return [weight for slot in group for weight in self._unified.by_slot[slot.layer, slot.target]]

    def _writer(self, tensor: str) -> RankWriter:
        return self._files[self._unified.file_of[tensor]]

    def _codings(
        self, group: Sequence[Slot], weights: Sequence[UnifiedWeight], source: BlockSource, check: Callable[[], None]
    ) -> dict[str, LinearCoding]:
        """Return module -> how it is encoded. Scales of whole weights are those of a fused group, but for plain FP8 (2.6)."""
        scheme = self._unified.layout.scheme_of(group[0])
        form = scheme.unified if scheme else None
        if scheme is None or form is None or form.codec is None or not weights:
            return {}
        limit = scheme.inputs.limit if scheme.inputs else 0.0
        multiplier = self._knowledge.multiplier([weights[0].part.module], source.reader)
        if multiplier is not None and weights[0].folded_into:
            multiplier = self._fold(weights[0].folded_into, multiplier, source)[1]
        codings = group_codings(form, limit, group, source, self._knowledge, multiplier, check)
        shared = {part.expert: coding for part, coding in codings.items()}
        found = {weight.part.module: shared[weight.part.expert] for weight in weights}
        ranged = [weight for weight in weights if _has_scale_of_all(weight)]
        amax = {weight.part.module: self._knowledge.amax(weight.part, source, multiplier) for weight in ranged}
        for weight in weights:
            # Linears that read the same input see the same range; those of different experts' inner products do not.
            module, coding = weight.part.module, found[weight.part.module]
            if weight.part.expert is not None:
                coding = replace(coding, input=self._knowledge.input_scale(form, limit, [module]))
            if weight in ranged and weight.form and weight.form.codec:
                peers = [each for each in ranged if each.part.expert == weight.part.expert]
                widest = max(amax[each.part.module] for each in (peers if weight.form.shares_range else [weight]))
                coding = replace(coding, whole=weight.form.codec.whole(widest))
            found[module] = coding
        return found

    def _write_constants(self, weight: UnifiedWeight, form: Form, coding: LinearCoding) -> None:
        """Write the scale tensors that do not come row by row."""
        names = {tensor.name for tensor in weight.scales}
        for scale in form.scales:
            name = f"{weight.part.module}.{scale.suffix}"
            if name in names and scale.geometry in ("tensor", "columns"):
                values = coding.constant(scale.role, weight.part.shape[1], self._unified.layout.dtype)
                self._writer(name).append(name, values)

    def _fold(self, norm: str, multiplier: NDArray[Any], source: BlockSource) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return a norm with a multiplier folded into it, and the multiplier it then stands for; see `fold_norm`."""
        tensor = self._plan.source.tensors[norm]
        values = tensor.read_rows(source.reader, 0, tensor.shape[0])
        offset = self._offsets[norm]
        return fold_norm(values, multiplier, offset=offset, kept=offset, dtype=self._unified.layout.dtype)

    @cached_property
    def _offsets(self) -> dict[str, float]:
        return {weight.tensor.name: weight.offset for weight in self._unified.weights if weight.folds}

    def _plain(self, weight: UnifiedWeight, block: NDArray[Any], source: BlockSource) -> NDArray[Any]:
        """Return what is stored of a block of a tensor that is not quantized; a norm is one block."""
        dtype = self._unified.layout.dtype
        multiplier = self._knowledge.multiplier([weight.folds], source.reader) if weight.folds else None
        if multiplier is not None:
            return self._fold(weight.tensor.name, multiplier, source)[0]
        return block if source.dtype(weight.part) == dtype else cast(block, weight.part, dtype)


def _has_scale_of_all(weight: UnifiedWeight) -> bool:
    """Say whether a weight has one scale for all of its rows."""
    codec = weight.form.codec if weight.form else None
    return codec is not None and codec.needs_range and codec.geometry == "tensor"
