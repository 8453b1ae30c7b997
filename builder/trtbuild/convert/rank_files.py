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
from trtbuild.convert.blocks import BlockSource
from trtbuild.convert.cast import cast
from trtbuild.convert.encoding import (
    Knowledge,
    LinearCoding,
    encoder,
    finite,
    fold_norm,
    group_codings,
    rounded_divisor,
)
from trtbuild.convert.sink_files import ConversionResult, SinkFiles
from trtbuild.convert.unified_config import write_json
from trtbuild.convert.writer import RankWriter
from trtbuild.dtypes import numpy_dtype
from trtbuild.layout import Part, Slot
from trtbuild.names import TOKENIZER_FOLDER
from trtbuild.parallel import Rank
from trtbuild.quant.kv_cache import KV_SCALE_NAMES
from trtbuild.quant.scheme import Form
from trtbuild.rank_config import QUANT_CFG, rank_quant_cfg
from trtbuild.safetensors_file import TensorReader
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
    def rows_bytes(self) -> int:
        """Bytes of the source's rows that all groups together work on."""
        return self._plan.rows_bytes

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
        codings: Mapping[Part, LinearCoding] = {}
        form = self._layout.form_of(group[0])
        if form is not None and form.codec is not None:
            scheme = self._layout.scheme_of(group[0])
            limit = scheme.inputs.limit if scheme and scheme.inputs else 0.0
            multiplier = self._multiplier(group[0], form, source.reader)
            codings = group_codings(form, limit, group, source, self._knowledge, multiplier, check)
        for slot in group:
            if form is not None and codings:
                self._write_constants(slot, codings)
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
        names = [name for _, name in self._layout.scales(slot)]
        for rank in self._ranks(slot):
            yield rank.index, slot.target
            for name in names:
                yield rank.index, name

    def _multiplier(self, slot: Slot, form: Form, reader: TensorReader) -> NDArray[Any] | None:
        """Return what the input of a scale group is multiplied by in effect, [in] float32, given how the file holds it; None for ones.

        Args:
            slot: of the group.
            form: of the group.
            reader: for recipes and the norm in front.
        """
        wanted = self._knowledge.multiplier([slot.parts[0].module], reader)
        if wanted is None:
            return None
        if form.folds_norms:
            return self._fold(self._layout.norm_of(slot)[0], wanted, reader)[1]
        return np.reciprocal(rounded_divisor(wanted, self._layout.dtype)) if form.has("smoother") else wanted

    def _fold(self, norm: Slot, wanted: NDArray[Any], reader: TensorReader) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the weight of a norm with a multiplier folded into it, and the multiplier it then stands for; see `fold_norm`."""
        tensor = self._plan.source.tensors[norm.parts[0].source]
        values = tensor.read_rows(reader, 0, tensor.shape[0])
        return fold_norm(values, wanted, offset=norm.rule.offset, kept=0.0, dtype=self._layout.stored_dtype(norm))

    def _folded(self, slot: Slot, reader: TensorReader) -> NDArray[Any] | None:
        """Return weight or bias of a norm as it is stored, if a multiplier is folded into it; None for any other tensor."""
        linear = self._layout.folded(slot)
        wanted = self._knowledge.multiplier([linear.parts[0].module], reader) if linear else None
        if linear is None or wanted is None:
            return None
        weight = self._layout.norm_of(linear)[0]
        stored, multiplier = self._fold(weight, wanted, reader)
        if slot == weight:
            return stored
        tensor = self._plan.source.tensors[slot.parts[0].source]
        bias = tensor.read_rows(reader, 0, tensor.shape[0]).astype(np.float32)
        return finite(bias * multiplier, self._layout.stored_dtype(slot))

    def _write_constants(self, slot: Slot, codings: Mapping[Part, LinearCoding]) -> None:
        """Write the scale tensors that do not come row by row."""
        columns = slot.parts[0].shape[1]
        by_expert = {part.expert: codings[part] for part in slot.parts}
        for rank in self._ranks(slot):
            experts: list[int | None] = [*self._layout.local_experts(slot, rank.tp_rank)] or [None]
            cut = self._layout.pieces(slot, rank.tp_rank)[0].cut
            for scale, name in self._layout.scales(slot):
                if scale.geometry not in ("tensor", "columns"):
                    continue
                own = [
                    by_expert[expert].constant(scale.role, columns, self._layout.dtype)
                    for expert in (experts if scale.is_per_expert else experts[:1])
                ]
                if scale.geometry == "columns" and cut.axis:
                    own = [values[cut.start : cut.stop] for values in own]
                self._writers[rank.index].append(name, np.stack(own))

    def _write_part(
        self,
        slot: Slot,
        number: int,
        source: BlockSource,
        codings: Mapping[Part, LinearCoding],
        check: Callable[[], None],
        advance: Callable[[int], None],
    ) -> None:
        part, cuts = slot.parts[number], list(self._cuts(slot, number))
        form = self._layout.form_of(slot) if codings else None
        if form is None:
            convert = self._plain(slot, part, source)
        else:
            by_row = [name for scale, name in self._layout.scales(slot) if scale.geometry in ("rows", "groups")]
            encode = encoder(form, part, codings[part], self._knowledge, source.reader, source.dtype(part))
        for start, block in source.blocks(part):
            check()
            if form is None:
                for writer, cut in cuts:
                    _append(writer, slot.target, convert(block, start), cut, start, len(block), (1, 1))
            else:
                assert form.codec is not None
                codes, scales = encode(block, start)
                for writer, cut in cuts:
                    stored = codes.view(numpy_dtype(form.dtype))
                    _append(writer, slot.target, stored, cut, start, len(block), form.codec.packing)
                    for name in by_row:
                        assert scales.weight is not None
                        group = form.codec.group_size or 1
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

    def _plain(self, slot: Slot, part: Part, source: BlockSource) -> Callable[[NDArray[Any], int], NDArray[Any]]:
        """Return what turns a block of a part, and the number of its first row, into what is stored of it, unquantized."""
        folded = self._folded(slot, source.reader)
        if folded is not None:
            return lambda block, start: folded[start : start + len(block)]
        dtype, offset = self._layout.stored_dtype(slot), slot.rule.offset
        if source.dtype(part) == dtype and not offset:
            return lambda block, _: block
        return lambda block, _: cast(block, part, dtype, offset)

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
