"""Writes the rank files of a plan, group by group: encodes every part once and cuts it per rank.

Knows which parts it wants of a group and what becomes of them; reading, order and threads are `execute`'s.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtbuild import __version__
from trtbuild.checkpoint import TOKENIZER_FOLDER
from trtbuild.convert.blocks import BlockSource
from trtbuild.convert.cast import cast
from trtbuild.convert.encoding import Knowledge, LinearCoding, encoder, group_codings
from trtbuild.convert.sink_files import ConversionResult, SinkFiles
from trtbuild.convert.unified_config import write_json
from trtbuild.convert.writer import RankWriter
from trtbuild.dtypes import numpy_dtype
from trtbuild.layout import Part, Slot
from trtbuild.parallel import Rank
from trtbuild.quant.kv_cache import KV_SCALE_NAMES
from trtbuild.quant.scheme import Form
from trtbuild.rank_config import QUANT_CFG, rank_quant_cfg
from trtbuild.shard import Cut


class RankSink(SinkFiles):
    """The rank files of one folder under construction.

    Args:
        knowledge: the plan, and what is known about its linears.
        folder: where to; empty, or left by an interrupted run of the same plan.
    """

    def __init__(self, knowledge: Knowledge, folder: Path) -> None:
        plan = knowledge.plan
        self._knowledge, self._plan, self._layout, self._stats = knowledge, plan, plan.layout, knowledge.stats
        ranks = plan.layout.parallel.ranks()
        super().__init__(folder, {_file(rank.index): plan.layout.tensors(rank) for rank in ranks})
        self._writers = list(self._files.values())

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
        codings: Mapping[int | None, LinearCoding] = {}
        form = self._layout.form_of(group[0])
        if form is not None and form.codec is not None:
            scheme = self._layout.scheme_of(group[0])
            limit = scheme.inputs.limit if scheme and scheme.inputs else 0.0
            multiplier = self._knowledge.multiplier([group[0].parts[0].module], source.reader)
            codings = group_codings(form, limit, group, source, self._knowledge, multiplier, check)
        for slot in group:
            if form is not None and codings:
                self._write_constants(slot, form, codings)
            for number in range(len(slot.parts)):
                self._write_part(slot, number, source, codings, check, advance)
        inputs = {part.label: source.digests[part] for part in self.parts(group)}
        self._note(inputs, [(_file(rank), name) for rank, name in self._names(group)])

    def finish(self) -> ConversionResult:
        """Write the KV scales and close the files."""
        return self._close(self._write_kv_scales())

    def write_beside(self) -> None:
        """Write config.json and the tokenizer."""
        tokenizer = self._plan.source.tokenizer_files()
        if tokenizer:
            (self._folder / TOKENIZER_FOLDER).mkdir(exist_ok=True)
            for file in tokenizer:
                shutil.copyfile(file, self._folder / TOKENIZER_FOLDER / file.name)
        config = {**self._plan.config(), "producer": {"name": "trtbuild", "version": __version__}}
        if self._layout.kv_format:
            config["trtbuild"] = {**config.get("trtbuild", {}), "kv_cache_scale_floor": self._layout.kv_format.floor}
        write_json(self._folder / "config.json", config)
        if quant_cfg := rank_quant_cfg(self._layout):
            write_json(self._folder / QUANT_CFG, quant_cfg)

    def _names(self, group: Sequence[Slot]) -> list[tuple[int, str]]:
        return [stored for slot in group for stored in self._stored(slot)]

    def _ranks(self, slot: Slot) -> list[Rank]:
        return [rank for rank in self._layout.parallel.ranks() if rank.pp_rank == slot.pp_rank]

    def _stored(self, slot: Slot) -> Iterator[tuple[int, str]]:
        """Yield (rank, tensor name) of everything that is written for a slot."""
        form = self._layout.form_of(slot)
        suffixes = [scale.suffix for scale in form.scales] if form else []
        for rank in self._ranks(slot):
            yield rank.index, slot.target
            for suffix in suffixes:
                yield rank.index, f"{slot.module}.{suffix}"

    def _write_constants(self, slot: Slot, form: Form, codings: Mapping[int | None, LinearCoding]) -> None:
        """Write the scale tensors that do not come row by row."""
        columns = slot.parts[0].shape[1]
        for rank in self._ranks(slot):
            experts: list[int | None] = [*self._layout.local_experts(slot, rank.tp_rank)] or [None]
            cut = self._layout.pieces(slot, rank.tp_rank)[0].cut
            for scale in form.scales:
                if scale.geometry not in ("tensor", "columns"):
                    continue
                own = [
                    codings[expert].constant(scale.role, columns, self._layout.dtype)
                    for expert in (experts if scale.is_per_expert else experts[:1])
                ]
                if scale.geometry == "columns" and cut.axis:
                    own = [values[cut.start : cut.stop] for values in own]
                self._writers[rank.index].append(f"{slot.module}.{scale.suffix}", np.stack(own))

    def _write_part(
        self,
        slot: Slot,
        number: int,
        source: BlockSource,
        codings: Mapping[int | None, LinearCoding],
        check: Callable[[], None],
        advance: Callable[[int], None],
    ) -> None:
        part, cuts = slot.parts[number], list(self._cuts(slot, number))
        form = self._layout.form_of(slot) if codings else None
        if form is None:
            convert = self._plain(slot, part, source.dtype(part))
        else:
            encode = encoder(form, part, codings[part.expert], self._knowledge, source.reader, source.dtype(part))
        for start, block in source.blocks(part):
            check()
            if form is None:
                for writer, cut in cuts:
                    _append(writer, slot.target, convert(block), cut, start, len(block), (1, 1))
            else:
                assert form.codec is not None
                codes, scales = encode(block, start)
                for writer, cut in cuts:
                    stored = codes.view(numpy_dtype(form.dtype))
                    _append(writer, slot.target, stored, cut, start, len(block), form.codec.packing)
                    for scale in form.scales:
                        if scale.geometry in ("rows", "groups"):
                            assert scales.weight is not None
                            name, group = f"{slot.module}.{scale.suffix}", form.codec.group_size or 1
                            _append(writer, name, scales.weight, cut, start, len(block), (1, group))
            advance(block.nbytes)
        for writer, cut in cuts:
            writer.pad_rows(slot.target, cut.pad)

    def _cuts(self, slot: Slot, number: int) -> Iterator[tuple[RankWriter, Cut]]:
        """Yield what each rank holds of a part."""
        for rank in self._ranks(slot):
            for piece in self._layout.pieces(slot, rank.tp_rank):
                if piece.number == number:
                    yield self._writers[rank.index], piece.cut

    def _plain(self, slot: Slot, part: Part, source_dtype: str) -> Callable[[NDArray[Any]], NDArray[Any]]:
        """Return what turns a block of a part into what is stored of it, unquantized."""
        dtype, offset = self._layout.stored_dtype(slot), slot.rule.offset
        if source_dtype == dtype and not offset:
            return lambda block: block
        return lambda block: cast(block, part, dtype, offset)

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


def _file(rank: int) -> str:
    return f"rank{rank}.safetensors"


def _append(
    writer: RankWriter,
    name: str,
    values: NDArray[Any],
    cut: Cut,
    start: int,
    count: int,
    packing: tuple[int, int],
) -> None:
    """Append to a rank's tensor what it holds of some rows of a part.

    Args:
        writer: of the rank.
        name: of the tensor.
        values: rows [start, start + count) of the part, packed.
        cut: what the rank holds, in weights.
        start: first row.
        count: number of rows.
        packing: weights of an element of `values`, along rows and columns.
    """
    rows, columns = packing
    if cut.axis:
        writer.append(name, values[:, cut.start // columns : cut.stop // columns] if values.ndim > 1 else values)
    elif start < cut.stop and cut.start < start + count:
        writer.append(name, values[max(cut.start - start, 0) // rows : (min(cut.stop, start + count) - start) // rows])
