"""Reads a folder of rank files back: checks it against its own config.json and merges the ranks into Hugging Face tensors.

The same layout that wrote the files is run backwards. Opening reads config.json and headers only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtbuild.arch.registry import lookup
from trtbuild.arch.rules import View
from trtbuild.dims import ModelDims
from trtbuild.dtypes import FROM_CONFIG
from trtbuild.errors import TrtbuildError
from trtbuild.layout import Layout, Piece, Slot
from trtbuild.parallel import Parallel, Rank
from trtbuild.quant.kv_cache import KV_CACHE_FORMATS, KvCacheFormat
from trtbuild.quant.scheme import QuantScheme, scheme_of_algo
from trtbuild.safetensors_file import TensorInfo, TensorReader, read_header
from trtbuild.source import read_json

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Name of the folder beside the rank files that holds the tokenizer.
TOKENIZER_FOLDER = "tokenizer"
_HINT = "convert the model again with `trtbuild convert`"


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
            layout = _layout(config, str(path / "config.json"))
        except KeyError as error:
            raise TrtbuildError(f"{path / 'config.json'} has no {error}", hint=_HINT) from error
        tensors = []
        for rank in layout.parallel.ranks():
            file = path / f"rank{rank.index}.safetensors"
            if not file.is_file():
                raise TrtbuildError(f"{file} is missing: mapping says {layout.parallel.world_size} ranks", hint=_HINT)
            header = read_header(file)
            _compare(file, header, layout, rank)
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
        return self.layout.scheme.quant_algo

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
                scales = self.scales(slot, reader)
                fused: dict[str, NDArray[Any]] = {}
                for number, part in enumerate(slot.parts):
                    rows = self._merge(slot, number, reader)
                    if slot.rule.quantizable and self.layout.scheme.quant_algo is not None:
                        rows = self.layout.scheme.decode(rows, scales.get(part.expert, {}))
                    if slot.rule.offset:
                        rows = (rows.astype("float32") - slot.rule.offset).astype(rows.dtype)
                    if part.view is None:
                        yield part.source, rows
                    else:
                        _put_back(rows, part.view, part.source, fused)
                yield from fused.items()

    def activation_scales(self) -> dict[str, float]:
        """Return Hugging Face module -> scale of its input (real = code * scale); empty for schemes without."""
        found: dict[str, float] = {}
        with TensorReader() as reader:
            for slot in self.layout.slots:
                for expert, scales in self.scales(slot, reader).items():
                    if "activation_scaling_factor" in scales:
                        value = float(scales["activation_scaling_factor"][0])
                        found.update({part.module: value for part in slot.parts if part.expert == expert})
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

    def scales(self, slot: Slot, reader: TensorReader) -> dict[int | None, dict[str, NDArray[Any]]]:
        """Return expert (None outside of experts) -> suffix -> scale tensor; empty for a slot that is not quantized."""
        found: dict[int | None, dict[str, NDArray[Any]]] = {}
        for rank in self._ranks(slot) if self.layout.is_quantized(slot) else ():
            experts: list[int] | list[None] = self.layout.local_experts(slot, rank.tp_rank) or [None]
            if experts[0] in found:
                continue  # held by another slice of the same experts
            for scale in self.layout.scheme.scale_tensors:
                values = reader.read(self.tensors[rank.index][f"{slot.module}.{scale.suffix}"])
                for index, expert in enumerate(experts):
                    own = values[index] if expert is not None and scale.is_per_expert else values
                    found.setdefault(expert, {})[scale.suffix] = own
        return found

    def _merge(self, slot: Slot, number: int, reader: TensorReader) -> NDArray[Any]:
        """Put one part together from the pieces of all tensor-parallel ranks; padding is dropped."""
        import numpy as np

        shape = slot.parts[number].shape
        whole: NDArray[Any] | None = None
        for rank in self._ranks(slot):
            piece = self._pieces(slot, rank.tp_rank).get(number)
            if piece is None or piece.cut.stop == piece.cut.start:
                continue
            cut = piece.cut
            rows = cut.stop - cut.start if cut.axis == 0 else shape[0]
            found = reader.read_rows(self.tensors[rank.index][slot.target], piece.row, piece.row + rows)
            if whole is None:
                whole = np.empty(shape, dtype=found.dtype)
            whole[(slice(None),) * cut.axis + (slice(cut.start, cut.stop),)] = found
            if cut.axis == 0 and rows == shape[0]:
                break
        assert whole is not None, slot.target
        return whole

    def _pieces(self, slot: Slot, tp_rank: int) -> dict[int, Piece]:
        """Return part number -> piece; the last answer is kept, since parts are asked for one after the other."""
        key = (slot, tp_rank)
        if key not in self._cache:
            if len(self._cache) > self.layout.parallel.tp_size:
                self._cache.clear()
            self._cache[key] = {piece.number: piece for piece in self.layout.pieces(slot, tp_rank)}
        return self._cache[key]


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


def hf_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Hugging Face config.json for a TensorRT-LLM config.json, in the spelling of both transformers 4 and 5."""
    arch = lookup(config["architecture"], where="config.json")
    rotary: dict[str, Any] = {}
    if "rotary_base" in config:
        theta, scaling = config["rotary_base"], config["rotary_scaling"]
        rotary = {
            "rope_theta": theta,
            "rope_scaling": scaling,
            "rope_parameters": {"rope_theta": theta, **(scaling or {"rope_type": "default"})},
        }
    fields = {
        "architectures": [config["architecture"]],
        "model_type": arch.model_type,
        "dtype": config["dtype"],
        "torch_dtype": config["dtype"],
        "hidden_size": config["hidden_size"],
        "intermediate_size": config["intermediate_size"],
        "num_hidden_layers": config["num_hidden_layers"],
        "num_attention_heads": config["num_attention_heads"],
        "num_key_value_heads": config["num_key_value_heads"],
        "head_dim": config["head_size"],
        "vocab_size": config["vocab_size"],
        "max_position_embeddings": config["max_position_embeddings"],
        "hidden_act": config["hidden_act"],
        "rms_norm_eps": config["norm_epsilon"],
        **rotary,
        "tie_word_embeddings": config["tie_word_embeddings"],
        **arch.hf_fields(config),
    }
    return {key: value for key, value in fields.items() if key not in arch.hf_absent}


def _layout(config: Mapping[str, Any], where: str) -> Layout:
    arch = lookup(config["architecture"], where=where)
    mapping, quantization = config["mapping"], config["quantization"]
    if mapping.get("cp_size", 1) != 1:
        raise TrtbuildError(
            f"{where}: cp_size = {mapping['cp_size']}: context parallelism is not supported", hint=_HINT
        )
    parallel = Parallel(
        mapping["tp_size"],
        mapping["pp_size"],
        moe_ep_size=mapping.get("moe_ep_size", 1),
        vocab_embedding=config["use_parallel_embedding"],
    )
    dims = arch.read_dims(hf_config(config), config["architecture"], where)
    parallel.check(dims)
    return Layout(
        arch,
        dims,
        parallel,
        _scheme(quantization["quant_algo"], where),
        _kv(quantization, where),
        FROM_CONFIG[config["dtype"]],
    )


def _scheme(quant_algo: str | None, where: str) -> QuantScheme:
    scheme = scheme_of_algo(quant_algo)
    if scheme is None:
        raise TrtbuildError(f"{where}: quant_algo {quant_algo!r} cannot be read by this version", hint=_HINT)
    return scheme


def _kv(quantization: Mapping[str, Any], where: str) -> KvCacheFormat | None:
    algo = quantization["kv_cache_quant_algo"]
    formats = {kv.quant_algo: kv for kv in KV_CACHE_FORMATS.values() if kv}
    if algo is not None and algo not in formats:
        raise TrtbuildError(f"{where}: kv_cache_quant_algo {algo!r} cannot be read by this version", hint=_HINT)
    return formats[algo] if algo else None


def _compare(file: Path, found: Mapping[str, TensorInfo], layout: Layout, rank: Rank) -> None:
    expected = {tensor.name: tensor for tensor in layout.tensors(rank)}
    problems = [f"missing: {name}" for name in expected if name not in found]
    problems += [f"surplus: {name}" for name in found if name not in expected]
    problems += [
        f"{name} is {found[name].dtype} {list(found[name].shape)}, expected {tensor.dtype} {list(tensor.shape)}"
        for name, tensor in expected.items()
        if name in found and (found[name].dtype, found[name].shape) != (tensor.dtype, tensor.shape)
    ]
    if problems:
        more = f" and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise TrtbuildError(f"{file} does not fit its config.json: {'; '.join(problems[:10])}{more}", hint=_HINT)
