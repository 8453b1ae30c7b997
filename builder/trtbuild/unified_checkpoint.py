"""Reads a unified Hugging Face folder back: checks it against its own config files and turns codes into numbers.

The same layout that wrote the folder is run backwards. Opening reads JSON and headers only. Quantized folders of ModelOpt itself are
read too, as far as this version writes their algorithm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtbuild.arch.registry import resolve
from trtbuild.dims import ModelDims
from trtbuild.dtypes import FROM_CONFIG
from trtbuild.errors import TrtbuildError
from trtbuild.layout import Layout
from trtbuild.parallel import Parallel
from trtbuild.quant.codecs.base import Scales
from trtbuild.quant.inputs import InputRounding
from trtbuild.quant.kv_cache import KV_CACHE_FORMATS
from trtbuild.quant.scheme import Role, load_scheme
from trtbuild.quant.unified import KV_CACHE_ALGOS
from trtbuild.rank_config import MIXED, read_scheme
from trtbuild.safetensors_file import TensorInfo, TensorReader
from trtbuild.source import TOKENIZER_ANY, SourceCheckpoint, read_json
from trtbuild.stored_check import check_stored
from trtbuild.unified_layout import HEAD, QUANT_CONFIG, UnifiedLayout, UnifiedWeight

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HINT = "convert the model again with `trtbuild convert --target pytorch`"


@dataclass(frozen=True, slots=True)
class UnifiedCheckpoint:
    """An opened unified folder.

    Attributes:
        path: the folder.
        config: its config.json.
        unified: what the files must hold.
        tensors: name -> TensorInfo over all files.
    """

    path: Path
    config: Mapping[str, Any]
    unified: UnifiedLayout
    tensors: Mapping[str, TensorInfo]

    @classmethod
    def open(cls, path: Path) -> UnifiedCheckpoint:
        """Open a unified folder.

        Raises:
            TrtbuildError: it is incomplete, its algorithm is unknown, or the files are not what its config files say.
        """
        source = SourceCheckpoint.open(path)
        where = str(path / "config.json")
        architecture, arch = resolve(source.config, where=where)
        dims = arch.read_dims(source.config, architecture, where)
        declared = _declared(path, source.config)
        layers = (declared.get("quantized_layers") or {}) if declared.get("quant_algo") == MIXED else {}
        layout = Layout(
            arch=arch,
            dims=dims,
            parallel=Parallel(),
            scheme=load_scheme("none") if layers else read_scheme(declared, str(path / QUANT_CONFIG), "unified"),
            kv_format=next(
                (kv for kv in KV_CACHE_FORMATS.values() if kv and kv.quant_algo == declared.get("kv_cache_quant_algo")),
                None,
            ),
            dtype=FROM_CONFIG.get(dims.dtype, "F32"),
        )
        plain = load_scheme("none")
        own = {name: read_scheme(entry, str(path / QUANT_CONFIG), "unified") for name, entry in layers.items()}
        own |= {name: plain for name in declared.get("exclude_modules") or () if name != HEAD}
        layout = replace(layout, overrides=tuple(own.items()))
        tensors = {name: info for name, info in source.tensors.items() if isinstance(info, TensorInfo)}
        checkpoint = cls(path, source.config, UnifiedLayout.of(layout), tensors)
        expected = (tensor for stored in checkpoint.unified.files.values() for tensor in stored)
        check_stored(str(path), tensors, expected, configs="config files", hint=_HINT)
        return checkpoint

    @property
    def files(self) -> dict[str, dict[str, TensorInfo]]:
        """File name -> tensor name -> TensorInfo."""
        found: dict[str, dict[str, TensorInfo]] = {}
        for name, info in self.tensors.items():
            found.setdefault(info.path.name, {})[name] = info
        return found

    @property
    def dims(self) -> ModelDims:
        """Dimensions of the model."""
        return self.unified.layout.dims

    @property
    def quant_algo(self) -> str | None:
        """TensorRT-LLM's name of the weight format."""
        return self.unified.quant_algo

    @property
    def kv_cache_quant_algo(self) -> str | None:
        """TensorRT-LLM's name of the KV cache format."""
        kv_format = self.unified.layout.kv_format
        return kv_format.quant_algo if kv_format else None

    @property
    def tokenizer_dir(self) -> Path | None:
        """The folder itself, when it holds a tokenizer."""
        return self.path if any((self.path / name).is_file() for name in TOKENIZER_ANY) else None

    def hf_config(self) -> dict[str, Any]:
        """Return config.json without its quantization: the tensors come back as plain numbers."""
        return {key: value for key, value in self.config.items() if key != "quantization_config"}

    def hf_tensors(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield (Hugging Face name, tensor as transformers wants it); memory: one tensor and its float32 form.

        Weights of quantized linears come back as float32, all else in its stored dtype.
        """
        with TensorReader() as reader:
            for weight in self.unified.weights:
                info = self.tensors[weight.tensor.name]
                if weight.form is None:
                    yield weight.tensor.name, reader.read(info)
                    continue
                values, _ = self.rows(weight, 0, weight.part.shape[0], self.constants(weight, reader), reader)
                multiplier = self.constants(weight, reader).get("pre_quant")
                if multiplier is not None:
                    values *= multiplier
                yield weight.tensor.name, values.T if weight.is_transposed else values

    def input_roundings(self) -> dict[str, InputRounding]:
        """Return Hugging Face module -> how the kernel rounds its input; empty for schemes that do not."""
        found: dict[str, InputRounding] = {}
        with TensorReader() as reader:
            for slot in self.unified.layout.slots:
                scheme = self.unified.layout.scheme_of(slot)
                for weight in self.unified.by_slot[slot.layer, slot.target]:
                    if weight.form and scheme and scheme.inputs:
                        found[weight.part.module] = InputRounding.of(scheme.inputs, self.constants(weight, reader))
        return found

    def kv_scales(self) -> list[float] | None:
        """Return per layer the larger of the factors of keys and values, or None when the cache is not quantized."""
        if self.unified.layout.kv_format is None:
            return None
        with TensorReader() as reader:
            return [
                max(float(reader.read(self.tensors[tensor.name]).reshape(-1)[0]) for tensor in pair)
                for pair in self.unified.kv_scales
            ]

    def constants(self, weight: UnifiedWeight, reader: TensorReader) -> dict[Role, NDArray[Any]]:
        """Return role -> scale tensor, of those that do not come row by row: [] or [in], float32; empty for a plain weight."""
        import numpy as np

        stored = {tensor.name for tensor in weight.scales}
        return {
            scale.role: reader.read(self.tensors[name]).astype(np.float32)
            for scale in (weight.form.scales if weight.form else ())
            if scale.geometry in ("tensor", "columns") and (name := f"{weight.part.module}.{scale.suffix}") in stored
        }

    def rows(
        self,
        weight: UnifiedWeight,
        first: int,
        count: int,
        constants: Mapping[Role, NDArray[Any]],
        reader: TensorReader,
    ) -> tuple[NDArray[Any], Scales]:
        """Return the numbers that the codes of some rows of a quantized weight stand for, float32 [rows, in], and their scales."""
        assert weight.form is not None
        assert weight.form.codec is not None
        codec = weight.form.codec
        packed = codec.packing[0]
        codes = reader.read_rows(self.tensors[weight.tensor.name], first // packed, (first + count) // packed)
        scale_of = constants.get("weight")
        for scale in weight.form.scales:
            info = self.tensors.get(f"{weight.part.module}.{scale.suffix}")
            if info is None or scale.role != "weight" or scale.geometry == "tensor":
                continue
            if scale.geometry == "blocks":
                whole = reader.read(info)
                side = codec.group_size
                scale_of = whole[first // side : -(-(first + count) // side)]
            else:
                scale_of = reader.read_rows(info, first, first + count)
        scales = Scales(scale_of, constants.get("second"))
        return codec.decode(codes, scales), scales


def _declared(path: Path, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `quantization` object of hf_quant_config.json; empty for a folder that is not quantized.

    Raises:
        TrtbuildError: the two config files disagree, or it was quantized by something else than ModelOpt.
    """
    inline = config.get("quantization_config")
    if not (path / QUANT_CONFIG).is_file():
        if inline:
            method = inline.get("quant_method", "?") if isinstance(inline, Mapping) else inline
            raise TrtbuildError(
                f"{path / 'config.json'} says quant_method {method!r}, and there is no {QUANT_CONFIG}", hint=_HINT
            )
        return {}
    block = read_json(path / QUANT_CONFIG).get("quantization")
    if not isinstance(block, Mapping):
        raise TrtbuildError(f"{path / QUANT_CONFIG} has no object 'quantization'", hint=_HINT)
    found = block.get("quant_algo")
    if isinstance(inline, Mapping) and inline.get("quant_algo") != found:
        raise TrtbuildError(
            f"{path}: {QUANT_CONFIG} says quant_algo {found!r}, config.json {inline.get('quant_algo')!r}", hint=_HINT
        )
    if (kv_algo := block.get("kv_cache_quant_algo")) not in (None, *KV_CACHE_ALGOS):
        raise TrtbuildError(
            f"{path / QUANT_CONFIG}: kv_cache_quant_algo {kv_algo!r} cannot be read by this version", hint=_HINT
        )
    return block
