"""The tensors of quantized linears: collecting them, and comparing them with what an algorithm writes. Knows no algorithm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from trtbuild.errors import TrtbuildError
from trtbuild.quant.sources.grid import require_dtype
from trtbuild.safetensors_file import SourceTensor, TensorInfo, TensorReader

#: Dtypes that unquantized tensors may have; anything else in a quantized folder is a code or a scale.
PLAIN_DTYPES = ("F16", "BF16", "F32", "F64", "I64", "BOOL")
#: How many names a message lists.
SHOWN = 10


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of a quantized linear.

    Attributes:
        name: last word of its name.
        dtypes: safetensors dtypes it may have.
        is_required: whether a linear without it is an error.
    """

    name: str
    dtypes: tuple[str, ...]
    is_required: bool = True


@dataclass(frozen=True, slots=True)
class Linear:
    """A quantized linear: its module and its tensors by the last word of their names."""

    module: str
    parts: Mapping[str, TensorInfo]

    @property
    def weight_name(self) -> str:
        """Name of the plain weight."""
        return f"{self.module}.weight"


@dataclass(frozen=True, slots=True)
class Format:
    """What one algorithm writes for a linear, and how that becomes a plain weight.

    Attributes:
        parts: the tensors.
        build: checks shapes and returns the plain weight; may read the shape that a tensor holds, never a weight.
        amax_per_input_scale: largest |input| = input_scale times this, where inputs have a static scale.
        input_scale: name of that scale.
        is_inverse: whether the scale is stored inverted: largest |input| = this / input_scale.
        has_tensor_scale: whether `weight_scale` is one FP8 scale for the whole tensor.
        weight_scale: its name.
    """

    parts: tuple[Part, ...]
    build: Callable[[Linear, TensorReader], SourceTensor]
    amax_per_input_scale: float | None = None
    input_scale: str = "input_scale"
    is_inverse: bool = False
    has_tensor_scale: bool = False
    weight_scale: str = "weight_scale"

    def missing(self, linear: Linear) -> list[str]:
        """Return names of the tensors that the linear lacks."""
        return [
            f"{linear.module}.{part.name}" for part in self.parts if part.is_required and part.name not in linear.parts
        ]

    def surplus(self, linear: Linear) -> list[str]:
        """Return names of the tensors that the linear should not have."""
        known = {part.name for part in self.parts}
        return [f"{linear.module}.{name}" for name in linear.parts if name not in known]

    def check_dtypes(self, linear: Linear) -> None:
        """Raise TrtbuildError when a tensor has a dtype that the algorithm does not write."""
        for part in self.parts:
            if part.name in linear.parts:
                require_dtype(linear.parts[part.name], part.dtypes)


def collect(tensors: Mapping[str, SourceTensor], marks: frozenset[str]) -> tuple[list[Linear], dict[str, SourceTensor]]:
    """Return the quantized linears and all other tensors.

    A linear is quantized when it has a tensor with one of the marks, or a `weight` of a dtype that no plain weight has. Its bias
    stays with the other tensors, as it is never quantized.

    Args:
        tensors: name -> tensor of the folder.
        marks: last words of names that only quantized linears have.
    """
    modules: dict[str, dict[str, TensorInfo]] = {}
    plain: dict[str, SourceTensor] = {}
    for name, info in tensors.items():
        module, _, part = name.rpartition(".")
        assert isinstance(info, TensorInfo), "the folder has been opened, not read as something else"
        if module and (part == "weight" or part in marks):
            modules.setdefault(module, {})[part] = info
        else:
            plain[name] = info
    linears = []
    for module, parts in modules.items():
        if set(parts) == {"weight"} and parts["weight"].dtype in PLAIN_DTYPES:
            plain[f"{module}.weight"] = parts["weight"]
        else:
            linears.append(Linear(module, parts))
    return linears, {name: plain[name] for name in tensors if name in plain}


def refuse_misfits(
    *, where: str, declared: str, missing: Iterable[str], surplus: Iterable[str], count: int | None = None
) -> None:
    """Raise TrtbuildError when tensors are missing or too many; the message lists the first of both.

    Args:
        where: the folder.
        declared: the method and algorithm that the folder declares.
        missing: names that the algorithm needs.
        surplus: names that the algorithm does not know.
        count: number of quantized linears; zero is an error, None means that it does not matter.
    """
    lists = [("missing", sorted(missing)), ("surplus", sorted(surplus))]
    found = [f"{word}: {_first(names)}" for word, names in lists if names]
    if found:
        raise TrtbuildError(
            f"{where} declares {declared}, but its tensors do not fit: {'; '.join(found)}",
            hint="the declaration and the tensors belong to different exports; download or export the model again",
        )
    if count == 0:
        raise TrtbuildError(
            f"{where} declares {declared}, but none of its linears is quantized",
            hint="remove quantization_config from config.json if the weights are plain, or download the quantized weights",
        )


def _first(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more ({len(names)} in all)" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
