"""Reads a unified Hugging Face folder back: checks it against its own config files and turns codes into numbers.

The same layout that wrote the folder is run backwards. Opening reads JSON and headers only. Quantized folders of ModelOpt itself are
read too, as far as this version writes their algorithm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtbuild.arch.registry import resolve
from trtbuild.dims import ModelDims
from trtbuild.dtypes import FROM_CONFIG
from trtbuild.errors import TrtbuildError
from trtbuild.layout import Layout
from trtbuild.parallel import Parallel
from trtbuild.quant.kv_cache import KV_CACHE_FORMATS
from trtbuild.quant.scheme import load_scheme
from trtbuild.quant.unified import check_kv_cache, format_of_algo
from trtbuild.safetensors_file import TensorInfo, TensorReader
from trtbuild.source import TOKENIZER_ANY, SourceCheckpoint, read_json
from trtbuild.unified_layout import UnifiedLayout, UnifiedWeight

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The file that TensorRT-LLM looks for first (2.10).
QUANT_CONFIG = "hf_quant_config.json"
_HINT = "convert the model again with `trtbuild convert --target pytorch`"
_PROBLEMS = 10


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
        weight_algo, kv_algo = _algorithms(path, source.config)
        layout = Layout(
            arch=arch,
            dims=dims,
            parallel=Parallel(),
            scheme=load_scheme(_scheme_of(weight_algo, path)),
            kv_format=next((kv for kv in KV_CACHE_FORMATS.values() if kv and kv.quant_algo == kv_algo), None),
            dtype=FROM_CONFIG.get(dims.dtype, "F32"),
        )
        tensors = {name: info for name, info in source.tensors.items() if isinstance(info, TensorInfo)}
        checkpoint = cls(path, source.config, UnifiedLayout.of(layout), tensors)
        _compare(path, tensors, checkpoint.unified)
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
        return self.unified.form.quant_algo

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
                values = reader.read(self.tensors[weight.tensor.name])
                if weight.scales:
                    values = self.unified.form.decode(values, self.scales(weight, reader))
                yield weight.tensor.name, values.T if weight.is_transposed else values

    def activation_scales(self) -> dict[str, float]:
        """Return Hugging Face module -> scale of its input (real = code * scale); empty for schemes without."""
        with TensorReader() as reader:
            return {
                weight.part.module: float(reader.read(self.tensors[name]).reshape(-1)[0])
                for weight in self.unified.weights
                if weight.scales and (name := f"{weight.part.module}.input_scale") in self.tensors
            }

    def kv_scales(self) -> list[float] | None:
        """Return per layer the larger of the factors of keys and values, or None when the cache is not quantized."""
        if self.unified.layout.kv_format is None:
            return None
        with TensorReader() as reader:
            return [
                max(float(reader.read(self.tensors[tensor.name]).reshape(-1)[0]) for tensor in pair)
                for pair in self.unified.kv_scales
            ]

    def scales(self, weight: UnifiedWeight, reader: TensorReader) -> dict[str, NDArray[Any]]:
        """Return suffix -> scale tensor; empty for a weight that is not quantized."""
        return {scale.name.rpartition(".")[2]: reader.read(self.tensors[scale.name]) for scale in weight.scales}


def _algorithms(path: Path, config: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return (quant_algo, kv_cache_quant_algo); both None for a folder that is not quantized.

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
        return None, None
    block = read_json(path / QUANT_CONFIG).get("quantization")
    if not isinstance(block, Mapping):
        raise TrtbuildError(f"{path / QUANT_CONFIG} has no object 'quantization'", hint=_HINT)
    found = block.get("quant_algo")
    if isinstance(inline, Mapping) and inline.get("quant_algo") != found:
        raise TrtbuildError(
            f"{path}: {QUANT_CONFIG} says quant_algo {found!r}, config.json {inline.get('quant_algo')!r}", hint=_HINT
        )
    check_kv_cache(block.get("kv_cache_quant_algo"))
    return found, block.get("kv_cache_quant_algo")


def _scheme_of(quant_algo: str | None, path: Path) -> str:
    form = format_of_algo(quant_algo)
    if form is None:
        raise TrtbuildError(
            f"{path / QUANT_CONFIG}: quant_algo {quant_algo!r} cannot be read by this version", hint=_HINT
        )
    return form.scheme


def _compare(path: Path, found: Mapping[str, TensorInfo], unified: UnifiedLayout) -> None:
    expected = {tensor.name: tensor for tensors in unified.files.values() for tensor in tensors}
    problems = [f"missing: {name}" for name in expected if name not in found]
    problems += [f"surplus: {name}" for name in found if name not in expected]
    problems += [
        f"{name} is {found[name].dtype} {list(found[name].shape)}, expected {tensor.dtype} {list(tensor.shape)}"
        for name, tensor in expected.items()
        if name in found and (found[name].dtype, found[name].shape) != (tensor.dtype, tensor.shape)
    ]
    if problems:
        more = f" and {len(problems) - _PROBLEMS} more" if len(problems) > _PROBLEMS else ""
        raise TrtbuildError(
            f"{path} does not fit its config files: {'; '.join(problems[:_PROBLEMS])}{more}", hint=_HINT
        )
