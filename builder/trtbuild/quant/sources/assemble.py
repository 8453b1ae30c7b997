"""From linears and their formats to a `QuantizedSource`. Knows no method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trtbuild.errors import TrtbuildError
from trtbuild.quant.codecs.fp8 import E4M3_MAX
from trtbuild.quant.sources.grid import require_length
from trtbuild.quant.sources.parts import PLAIN_DTYPES, Format, Linear, collect, refuse_misfits
from trtbuild.quant.sources.result import QuantizedSource
from trtbuild.safetensors_file import SourceTensor, TensorInfo, TensorReader
from trtbuild.source import SourceCheckpoint

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Models whose linears are stored transposed ([in, out]) when they are plain, but not when they are quantized.
TRANSPOSED = ("gpt2", "openai-gpt")
#: Where the scales of a KV cache lie, under the attention module: key and value.
#: Source: ModelOpt's unified export; compressed-tensors and vLLM.
KV_PARTS = {"k_proj.k_scale": 0, "v_proj.v_scale": 1, "k_scale": 0, "v_scale": 1}


@dataclass(frozen=True, slots=True)
class Declaration:
    """What the folder says about its quantization, and the formats that this names.

    Attributes:
        method: `quant_method`.
        algorithm: name of what the weights are.
        group_size: inputs per scale, if all quantized modules share it.
        marks: last words of names that only quantized linears have.
        format_of: the format of one linear.
        kv_algorithm: "FP8" when a KV cache in FP8 is asked for.
        must_quantize: whether a folder without any quantized linear contradicts this.
        notes: what the user must be told.
    """

    method: str
    algorithm: str
    group_size: int | None
    marks: frozenset[str]
    format_of: Callable[[Linear], Format]
    kv_algorithm: str | None = None
    must_quantize: bool = True
    notes: tuple[str, ...] = ()


def assemble(source: SourceCheckpoint, declaration: Declaration) -> QuantizedSource:
    """Return the folder as plain weights: first every check that headers allow, then the few scales that are reported.

    Raises:
        TrtbuildError: tensors that do not fit the declaration.
    """
    where = str(source.path)
    declared = f"{declaration.method} {declaration.algorithm}"
    if source.config.get("model_type") in TRANSPOSED:
        raise TrtbuildError(
            f"{where} is a quantized {source.config['model_type']} model, whose plain weights are stored the other way round",
            hint="convert the unquantized model",
        )
    kv_tensors, others = _split_kv(source.tensors)
    linears, plain = collect(others, declaration.marks)
    formats = [(linear, declaration.format_of(linear)) for linear in linears]
    refuse_misfits(
        where=where,
        declared=declared,
        missing=[*(name for linear, form in formats for name in form.missing(linear)), *_missing_kv(kv_tensors)],
        surplus=[
            *(name for linear, form in formats for name in form.surplus(linear)),
            *(name for name, tensor in plain.items() if tensor.dtype not in PLAIN_DTYPES),
        ],
        count=len(linears) if declaration.must_quantize else None,
    )
    for linear, form in formats:
        form.check_dtypes(linear)
    with TensorReader() as reader:
        weights = {linear.weight_name: form.build(linear, reader) for linear, form in formats}
        for pair in kv_tensors.values():
            for info in pair.values():
                require_length(info, 1)
        input_amax = dict(_input_amax(formats, reader))
        weight_amax = {
            linear.module: _number(reader, linear.parts[form.weight_scale], allows_zero=True) * E4M3_MAX
            for linear, form in formats
            if form.has_tensor_scale
        }
        kv_scales = {
            module: (_number(reader, pair[0]), _number(reader, pair[1])) for module, pair in sorted(kv_tensors.items())
        }
    config = {key: value for key, value in source.config.items() if key != "quantization_config"}
    return QuantizedSource(
        source=replace(source, config=config, tensors={**plain, **weights}),
        method=declaration.method,
        algorithm=declaration.algorithm,
        group_size=declaration.group_size,
        input_amax=input_amax,
        weight_amax=weight_amax,
        kv_scales=kv_scales,
        kv_algorithm="FP8" if kv_scales else declaration.kv_algorithm,
        notes=declaration.notes,
    )


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return the value when it is a JSON object, else an empty one: what is missing is then found missing."""
    return value if isinstance(value, Mapping) else {}


def kv_algorithm(asked: object, where: str) -> tuple[str | None, tuple[str, ...]]:
    """Return "FP8" or None for a KV cache that a folder asks for, and a note when that is none of both.

    Args:
        asked: an algorithm's name, a description with `type` and `num_bits`, or nothing.
        where: the folder.
    """
    described = as_mapping(asked)
    if not asked:
        return None, ()
    if asked == "FP8" or (described.get("type"), described.get("num_bits")) == ("float", 8):
        return "FP8", ()
    return None, (f"{where} asks for a KV cache in {asked}, which is not converted; only its weights are read",)


def _split_kv(
    tensors: Mapping[str, SourceTensor],
) -> tuple[dict[str, dict[int, TensorInfo]], dict[str, SourceTensor]]:
    """Return attention module -> {0: key scale, 1: value scale}, and all other tensors."""
    scales: dict[str, dict[int, TensorInfo]] = {}
    others: dict[str, SourceTensor] = {}
    for name, info in tensors.items():
        part = next((part for part in KV_PARTS if name.endswith(f".{part}")), None)
        if part is None:
            others[name] = info
        else:
            assert isinstance(info, TensorInfo), "the folder has been opened, not read as something else"
            scales.setdefault(name[: -len(part) - 1], {})[KV_PARTS[part]] = info
    return scales, others


def _missing_kv(scales: Mapping[str, Mapping[int, TensorInfo]]) -> list[str]:
    """Return the names that keys or values lack, spelled like the half that is there."""
    swap = str.maketrans("kv", "vk")
    return [
        f"{module}.{info.name[len(module) + 1 :].translate(swap)}"
        for module, pair in scales.items()
        if len(pair) == 1
        for info in pair.values()
    ]


def _input_amax(formats: list[tuple[Linear, Format]], reader: TensorReader) -> list[tuple[str, float]]:
    """Return the modules whose input scale is about the input of the plain weight, with the range it stands for."""
    found = []
    for linear, form in formats:
        info = linear.parts.get(form.input_scale)
        if info is None or form.amax_per_input_scale is None or "pre_quant_scale" in linear.parts:
            continue
        require_length(info, 1)
        number = _number(reader, info)
        factor = form.amax_per_input_scale
        found.append((linear.module, factor / number if form.is_inverse else factor * number))
    return found


def _number(reader: TensorReader, info: TensorInfo, *, allows_zero: bool = False) -> float:
    """Return the one number of a scale; zero is allowed for a weight, which is then read as all zero or refused.

    Raises:
        TrtbuildError: it is not finite and positive.
    """
    import numpy as np

    values: NDArray[np.float32] = reader.read(info).astype(np.float32).reshape(-1)
    number = float(values[0])
    if not np.isfinite(number) or number < 0 or (number == 0 and not allows_zero):
        raise TrtbuildError(
            f"{info.path}: {info.name} holds the scale {number}",
            hint="scales have to be finite and positive; the file is damaged",
        )
    return number
