"""Writes the rank files of a plan, group by group: encodes every part once and cuts it per rank.

Knows which parts it wants of a group and what becomes of them; reading, order and threads are `execute`'s.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtbuild import __version__
from trtbuild.checkpoint import TOKENIZER_FOLDER
from trtbuild.convert.blocks import BlockSource
from trtbuild.convert.cast import cast, tabled
from trtbuild.convert.journal import INPUTS, Journal
from trtbuild.convert.plan import ConversionPlan
from trtbuild.convert.writer import RankWriter
from trtbuild.layout import Part, Slot
from trtbuild.quant.kv_cache import KV_SCALE_NAMES
from trtbuild.quant.stats import CalibrationStats


@dataclass(frozen=True, slots=True)
class ConversionResult:
    """What was read and written.

    Attributes:
        inputs: label of a part of the source -> SHA-256 of its rows.
        digests: file name -> tensor name -> SHA-256.
        kv_scales: per layer, empty without a quantized KV cache.
    """

    inputs: dict[str, str]
    digests: dict[str, dict[str, str]]
    kv_scales: tuple[float, ...]


class RankSink:
    """The rank files of one folder under construction.

    Args:
        plan: what is written.
        folder: where to; empty, or left by an interrupted run of the same plan.
        stats: calibrated ranges; needed when `plan.needs_calibration`.
    """

    def __init__(self, plan: ConversionPlan, folder: Path, stats: CalibrationStats | None) -> None:
        self._plan, self._layout, self._stats = plan, plan.layout, stats
        self._folder = folder
        self._writers: list[RankWriter] = []
        with ExitStack() as stack:
            self._journal = stack.enter_context(Journal(folder))
            for rank in plan.layout.parallel.ranks():
                name = f"rank{rank.index}.safetensors"
                writer = RankWriter(folder / name, plan.layout.tensors(rank), done=self._journal.done(name))
                stack.callback(writer.close)
                self._writers.append(writer)
            self._open = stack.pop_all()
        self._inputs = self._journal.done(INPUTS)

    def __enter__(self) -> RankSink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    @property
    def read_bytes(self) -> int:
        """Source bytes that all groups together read."""
        return self._plan.read_bytes

    @property
    def write_bytes(self) -> int:
        """Bytes of all tensors of all ranks."""
        return self._plan.write_bytes

    def parts(self, group: Sequence[Slot]) -> list[Part]:
        """Return what will be read for a group."""
        return [part for slot in group for part in slot.parts]

    def is_done(self, group: Sequence[Slot]) -> bool:
        """Say whether an interrupted run finished everything of a group."""
        return all(self._writers[rank].is_done(name) for rank, name in self._names(group))

    def write(
        self, group: Sequence[Slot], source: BlockSource, *, check: Callable[[], None], advance: Callable[[int], None]
    ) -> None:
        """Write the tensors of a group to all ranks; see `execute.Sink`."""
        scales = self._scales(group, source, check) if self._layout.is_quantized(group[0]) else {}
        for slot in group:
            self._write_scales(slot, scales)
            self._write_weight(slot, source, scales, check, advance)
        inputs = {part.label: source.digests[part] for part in self.parts(group)}
        self._inputs.update(inputs)
        self._journal.add(
            {(INPUTS, label): digest for label, digest in inputs.items()}
            | {(f"rank{rank}.safetensors", name): self._writers[rank].digest(name) for rank, name in self._names(group)}
        )

    def finish(self) -> ConversionResult:
        """Write the KV scales and close the files."""
        kv_scales = self._write_kv_scales()
        digests = {f"rank{index}.safetensors": writer.finish() for index, writer in enumerate(self._writers)}
        self._journal.remove()
        return ConversionResult(dict(sorted(self._inputs.items())), digests, kv_scales)

    def write_beside(self) -> None:
        """Write config.json and the tokenizer."""
        tokenizer = self._plan.source.tokenizer_files()
        if tokenizer:
            (self._folder / TOKENIZER_FOLDER).mkdir(exist_ok=True)
            for file in tokenizer:
                shutil.copyfile(file, self._folder / TOKENIZER_FOLDER / file.name)
        config = {**self._plan.config(), "producer": {"name": "trtbuild", "version": __version__}}
        if self._layout.kv_format:
            config["trtbuild"] = {"kv_cache_scale_floor": self._layout.kv_format.floor}
        (self._folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    def _names(self, group: Sequence[Slot]) -> list[tuple[int, str]]:
        return [(rank.index, name) for slot in group for rank, name in self._stored(slot)]

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

    def _scales(
        self, group: Sequence[Slot], source: BlockSource, check: Callable[[], None]
    ) -> dict[int | None, dict[str, NDArray[Any]]]:
        """Return the scale tensors of a group, by expert; None is the key outside of experts."""
        scheme, stats = self._layout.scheme, self._stats
        parts = [part for slot in group for part in slot.parts]
        input_amax = None
        if scheme.needs_activations:
            assert stats is not None
            input_amax = stats.group_input_amax([part.module for part in parts])
        weight_amax: dict[int | None, float] = {}
        for part in parts:
            check()
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

    def _write_weight(
        self,
        slot: Slot,
        source: BlockSource,
        scales: dict[int | None, dict[str, NDArray[Any]]],
        check: Callable[[], None],
        advance: Callable[[int], None],
    ) -> None:
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
                check()
                encoded = encode(block)
                for writer, cut in cuts:
                    if cut.axis:
                        writer.append(slot.target, encoded[:, cut.start : cut.stop])
                    elif start < cut.stop and cut.start < start + len(block):
                        writer.append(slot.target, encoded[max(cut.start - start, 0) : cut.stop - start])
                advance(block.nbytes)
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
            return lambda block: cast(block, part, dtype, offset)
        scheme, own = self._layout.scheme, scales[part.expert]
        return tabled(lambda block: scheme.encode(block, own), part, source_dtype, is_elementwise=scheme.is_elementwise)

    def _write_kv_scales(self) -> tuple[float, ...]:
        parallel, kv_format, stats = self._layout.parallel, self._layout.kv_format, self._stats
        if kv_format is None:
            return ()
        assert stats is not None
        written = []
        for rank in parallel.ranks():
            for local, layer in enumerate(parallel.layers(self._layout.dims.num_layers, rank.pp_rank)):
                k_scale, v_scale = (kv_format.scale(amax) for amax in (stats.k_amax[layer], stats.v_amax[layer]))
                values = (max(k_scale, v_scale), k_scale, v_scale)
                for name, value in zip(KV_SCALE_NAMES, values, strict=True):
                    tensor = f"transformer.layers.{local}.attention.{name}"
                    self._writers[rank.index].append(tensor, np.array([value], dtype=np.float32))
                if rank.tp_rank == 0:
                    written.append(values[0])
        return tuple(written)
