"""Reads a folder of rank files back: checks it against its own config.json and merges the ranks into Hugging Face tensors.

The same layout that wrote the files is run backwards. Opening reads config.json and headers only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtbuild.arch.rules import View
from trtbuild.dims import ModelDims
from trtbuild.errors import TrtbuildError
from trtbuild.layout import Layout, Piece, Slot
from trtbuild.parallel import Rank
from trtbuild.quant.codecs.base import Geometry, Scales
from trtbuild.quant.inputs import InputRounding
from trtbuild.quant.scheme import Role
from trtbuild.rank_config import QUANT_CFG, hf_config, layout_of
from trtbuild.safetensors_file import TensorInfo, TensorReader, read_header
from trtbuild.source import read_json
from trtbuild.stored_check import check_stored

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Name of the folder beside the rank files that holds the tokenizer.
TOKENIZER_FOLDER = "tokenizer"
_HINT = "convert the model again with `trtbuild convert`"
#: How far from one the product of a scale and its reciprocal may be, both rounded to float32.
_SAME_SCALE = 1e-5


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened checkpoint folder.

    Attributes:
        path: the folder.
        config: TensorRT-LLM's config.json.
        layout: what the rank files must hold.
        tensors: per rank, name -> TensorInfo.
    """

    path: Path
    config: Mapping[str, Any]
    layout: Layout
    tensors: tuple[Mapping[str, TensorInfo], ...]
    _cache: dict[tuple[Slot, int], dict[int, Piece]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def open(cls, path: Path) -> Checkpoint:
        """Open a checkpoint folder.

        Raises:
            TrtbuildError: it is incomplete, or the files are not what config.json says.
        """
        if not (path / "config.json").is_file():
            raise TrtbuildError(
                f"{path} is not a checkpoint folder: it has no config.json", hint="make one with `trtbuild convert`"
            )
        config = read_json(path / "config.json")
        try:
            quant_cfg = read_json(path / QUANT_CFG) if (path / QUANT_CFG).is_file() else None
            layout = layout_of(config, str(path / "config.json"), quant_cfg)
        except KeyError as error:
            raise TrtbuildError(f"{path / 'config.json'} has no {error}", hint=_HINT) from error
        tensors = []
        for rank in layout.parallel.ranks():
            file = path / f"rank{rank.index}.safetensors"
            if not file.is_file():
                raise TrtbuildError(f"{file} is missing: mapping says {layout.parallel.world_size} ranks", hint=_HINT)
            header = read_header(file)
            check_stored(str(file), header, layout.tensors(rank), configs="config.json", hint=_HINT)
            tensors.append(header)
        return cls(path, config, layout, tuple(tensors))

    @property
    def files(self) -> dict[str, Mapping[str, TensorInfo]]:
        """File name -> tensor name -> TensorInfo."""
        return {f"rank{rank}.safetensors": tensors for rank, tensors in enumerate(self.tensors)}

    @property
    def dims(self) -> ModelDims:
        """Dimensions of the model."""
        return self.layout.dims

    @property
    def quant_algo(self) -> str | None:
        """TensorRT-LLM's name of the weight format."""
        algo: str | None = self.config["quantization"]["quant_algo"]
        return algo

    @property
    def kv_cache_quant_algo(self) -> str | None:
        """TensorRT-LLM's name of the KV cache format."""
        return self.layout.kv_format.quant_algo if self.layout.kv_format else None

    @property
    def tokenizer_dir(self) -> Path | None:
        """The folder with the tokenizer, when it was copied."""
        folder = self.path / TOKENIZER_FOLDER
        return folder if folder.is_dir() else None

    def hf_config(self) -> dict[str, Any]:
        """Return a Hugging Face config.json, rebuilt from what was written."""
        return hf_config(self.config)

    def hf_tensors(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield (Hugging Face name, full tensor); memory: one target tensor at a time.

        Weights of quantized linears come back as float32, as the kernels would see them; all else in its stored dtype.
        """
        with TensorReader() as reader:
            for slot in self.layout.slots:
                if slot.target == "lm_head.weight" and self.dims.tie_word_embeddings:
                    continue
                fused: dict[str, NDArray[Any]] = {}
                for number, part in enumerate(slot.parts):
                    rows = self._values(slot, number, reader)
                    if slot.rule.offset:
                        # What was folded into a norm can bring it near zero, where the dtype has no room for one less.
                        dtype = "float32" if self.layout.folded(slot) else rows.dtype
                        rows = (rows.astype("float32") - slot.rule.offset).astype(dtype)
                    if part.view is None:
                        yield part.source, rows
                    else:
                        _put_back(rows, part.view, part.source, fused)
                yield from fused.items()

    def input_roundings(self) -> dict[str, InputRounding]:
        """Return Hugging Face module -> how the kernel rounds its input; empty for schemes that do not."""
        found: dict[str, InputRounding] = {}
        with TensorReader() as reader:
            for slot in self.layout.slots:
                scheme = self.layout.scheme_of(slot)
                if scheme is None or scheme.inputs is None or not self.layout.is_quantized(slot):
                    continue
                constants = self.constants(slot, reader)
                _require_product(slot, constants)
                roundings = {
                    expert: InputRounding.of(scheme.inputs, constants.get(expert, {}))
                    for expert in {part.expert for part in slot.parts}
                }
                found.update({part.module: roundings[part.expert] for part in slot.parts})
        return found

    def kv_scales(self) -> list[float] | None:
        """Return the KV cache factor of each layer, or None when the cache is not quantized."""
        if self.layout.kv_format is None:
            return None
        scales: list[float] = []
        with TensorReader() as reader:
            for pp_rank in range(self.layout.parallel.pp_size):
                header = self.tensors[pp_rank * self.layout.parallel.tp_size]
                for local in range(len(self.layout.parallel.layers(self.dims.num_layers, pp_rank))):
                    scales.append(
                        float(reader.read(header[f"transformer.layers.{local}.attention.kv_cache_scaling_factor"])[0])
                    )
        return scales

    def _ranks(self, slot: Slot) -> list[Rank]:
        return [rank for rank in self.layout.parallel.ranks() if rank.pp_rank == slot.pp_rank]

    def constants(self, slot: Slot, reader: TensorReader) -> dict[int | None, dict[Role, NDArray[Any]]]:
        """Return expert (None outside of experts) -> role -> scale tensor, of those that do not come row by row: [] or [in].

        The multiplier of the input is "pre_quant" even where the file holds what it is divided by. Empty for a slot that is not quantized.
        """
        import numpy as np

        form = self.layout.form_of(slot)
        found: dict[int | None, dict[Role, NDArray[Any]]] = {}
        if form is None or form.codec is None:
            return found
        columns: dict[tuple[int | None, int], NDArray[Any]] = {}
        for rank in self._ranks(slot):
            experts: list[int] | list[None] = self.layout.local_experts(slot, rank.tp_rank) or [None]
            cut = self.layout.pieces(slot, rank.tp_rank)[0].cut
            for scale, name in self.layout.scales(slot):
                if scale.geometry not in ("tensor", "columns"):
                    continue
                values = reader.read(self.tensors[rank.index][name])
                if scale.role == "smoother":
                    values = np.reciprocal(values)
                for index, expert in enumerate(experts):
                    own = values[index] if expert is not None and scale.is_per_expert else values
                    if scale.geometry == "columns":
                        columns[expert, cut.start if cut.axis else 0] = own.reshape(-1)
                    else:
                        found.setdefault(expert, {})[scale.role] = own.reshape(())
        for expert in {expert for expert, _ in columns}:
            pieces = [values for (owner, _), values in sorted(columns.items(), key=_place) if owner == expert]
            found.setdefault(expert, {})["pre_quant"] = np.concatenate(pieces).astype(np.float32)
        return found

    def rows(
        self,
        slot: Slot,
        rank: int,
        first: int,
        count: int,
        constants: Mapping[Role, NDArray[Any]],
        reader: TensorReader,
    ) -> tuple[NDArray[Any], Scales | None]:
        """Return rows of a rank's tensor and their scales.

        Args:
            slot: of the tensor.
            rank: number of the rank.
            first: first row, in weights; a tensor of experts counts the rows of all its experts.
            count: number of rows, in weights.
            constants: of the expert they belong to.
            reader: reads them.

        Returns:
            For a quantized slot the numbers that the codes stand for, float32 [rows, in], and their scales; else what is stored.
        """
        form, tensors = self.layout.form_of(slot), self.tensors[rank]
        if form is None or form.codec is None:
            return reader.read_rows(tensors[slot.target], first, first + count), None
        packed = form.codec.packing[0]
        codes = reader.read_rows(tensors[slot.target], first // packed, (first + count) // packed)
        weight = constants.get("weight")
        for scale, name in self.layout.scales(slot):
            if scale.geometry in ("rows", "groups"):
                weight = reader.read_rows(_flat(tensors[name], scale.geometry), first, first + count)
        scales = Scales(weight, constants.get("second"))
        return form.codec.decode(codes, scales), scales

    def _values(self, slot: Slot, number: int, reader: TensorReader) -> NDArray[Any]:
        """Put one part together from the pieces of all tensor-parallel ranks, as the kernels see it; padding is dropped."""
        import numpy as np

        part, form = slot.parts[number], self.layout.form_of(slot)
        constants = self.constants(slot, reader).get(part.expert, {})
        whole: NDArray[Any] | None = None
        for rank in self._ranks(slot):
            piece = self._pieces(slot, rank.tp_rank).get(number)
            if piece is None or piece.cut.stop == piece.cut.start:
                continue
            cut = piece.cut
            rows = cut.stop - cut.start if cut.axis == 0 else part.shape[0]
            found, _ = self.rows(slot, rank.index, piece.row, rows, constants, reader)
            if whole is None:
                whole = np.empty(part.shape, dtype=found.dtype)
            whole[(slice(None),) * cut.axis + (slice(cut.start, cut.stop),)] = found
            if cut.axis == 0 and rows == part.shape[0]:
                break
        assert whole is not None, slot.target
        if "pre_quant" in constants:
            whole *= constants["pre_quant"]
        return form.loaded(whole) if form and form.loaded else whole

    def _pieces(self, slot: Slot, tp_rank: int) -> dict[int, Piece]:
        """Return part number -> piece; the last answer is kept, since parts are asked for one after the other."""
        key = (slot, tp_rank)
        if key not in self._cache:
            if len(self._cache) > self.layout.parallel.tp_size:
                self._cache.clear()
            self._cache[key] = {piece.number: piece for piece in self.layout.pieces(slot, tp_rank)}
        return self._cache[key]


def _require_product(slot: Slot, constants: Mapping[int | None, Mapping[Role, NDArray[Any]]]) -> None:
    """Raise unless the stored scale of an input and its stored reciprocal are those of one number.

    Kernels read the product of the scales of input and weight alone; other tools split it otherwise, and their codes would be misread.

    Raises:
        TrtbuildError: they are not.
    """
    for found in constants.values():
        if "input" in found and "to_int" in found and abs(float(found["input"] * found["to_int"]) - 1) > _SAME_SCALE:
            raise TrtbuildError(
                f"{slot.module}: its input is multiplied by {float(found['to_int']):.6g} and divided by {1 / float(found['input']):.6g}; the "
                "product of its scales is split in a way that this version does not read",
                hint=_HINT,
            )


def _place(entry: tuple[tuple[int | None, int], Any]) -> int:
    """Return the first column of a slice."""
    return entry[0][1]


def _flat(info: TensorInfo, geometry: Geometry) -> TensorInfo:
    """Return scales per row as a vector, whatever axes stand in front."""
    return replace(info, shape=(math.prod(info.shape),)) if geometry == "rows" else info


def _put_back(rows: NDArray[Any], view: View, source: str, fused: dict[str, NDArray[Any]]) -> None:
    """Write a part's rows to where they lie in its source."""
    import numpy as np

    if source not in fused:
        fused[source] = np.empty(view.source_shape, dtype=rows.dtype)
    whole = fused[source].T if view.is_transposed else fused[source]
    done = 0
    for start, stop in view.ranges(0, len(rows)):
        whole[start:stop] = rows[done : done + stop - start]
        done += stop - start
