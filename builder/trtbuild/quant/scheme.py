"""What a quantization scheme is: a number format of the weights, one of the inputs, and how both lie in the two layouts.

Knows no model names and no files. The schemes themselves are in `schemes.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

from trtbuild.names import QUANTIZATIONS, SMOOTHQUANT_MODES, SmoothQuantMode
from trtbuild.quant.codecs.base import Codec, Geometry
from trtbuild.quant.recipes import SearchSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Modules the loader must leave alone, written out whenever a scheme writes quantized tensors (checkpoint specification 1.4.2).
EXCLUDE_MODULES = (
    "*lm_head",
    "*router",
    "*vocab_embedding",
    "*position_embedding",
    "*block_embedding",
    "*shared_expert_gate",
)
#: Stands for the dtype of the unquantized tensors.
MODEL_DTYPE = "model"
#: What a scale tensor holds: the scales of the weight, its second scale, that of the input, the reciprocal of that, the multiplier of the
#: input, or its reciprocal.
Role = Literal["weight", "second", "input", "to_int", "pre_quant", "smoother"]
#: Whose module a scale tensor is in: the linear's, the one around it (its attention or MLP), or that of the norm in front.
Owner = Literal["linear", "block", "norm"]


@dataclass(frozen=True, slots=True)
class ScaleTensor:
    """A tensor stored beside a quantized weight.

    Attributes:
        role: what it holds.
        suffix: its name beside the weight.
        dtype: safetensors dtype, MODEL_DTYPE for the model's own.
        geometry: what each of its numbers belongs to.
        scalar: shape of a scale of geometry "tensor".
        is_per_expert: whether a weight of stacked experts has one for each, along a leading axis.
        is_row: the numbers of geometry "rows" and "columns" lie in a matrix of one row.
        owner: whose module it is in; one of a norm is stored once, whatever the number of linears behind the norm.
    """

    role: Role
    suffix: str
    dtype: str
    geometry: Geometry
    scalar: tuple[int, ...] = (1,)
    is_per_expert: bool = True
    is_row: bool = False
    owner: Owner = "linear"

    def shape(self, rows: int, columns: int, group: int) -> tuple[int, ...]:
        """Return its shape beside a weight [rows, columns] whose scales belong to `group` inputs."""
        axes = (1,) if self.is_row else ()
        return {
            "tensor": self.scalar,
            "rows": (*axes, rows),
            "columns": (*axes, columns),
            "groups": (rows, columns // group if group else 0),
            "blocks": (-(-rows // group) if group else 0, 1, -(-columns // group) if group else 0, 1),
        }[self.geometry]


@dataclass(frozen=True, slots=True)
class Form:
    """How a scheme lies in a layout.

    Attributes:
        quant_algo: the loader's name, None when nothing is quantized.
        codec: makes the codes; None where the file holds plain weights.
        dtype: safetensors dtype of the codes.
        scales: stored beside each weight.
        config: entries of `quantization` beside the algorithm and the excluded modules.
        writes_exclusions: whether the full list of modules to leave alone is written.
        description: `input_activations` and `weights` of its group in `config_groups` of a unified folder; empty where ModelOpt knows none.
        is_described_alone: whether `config_groups` is written when all linears are alike; with several schemes it always is.
        folds_norms: the multiplier of an input goes into the norm in front of it, where the architecture has one.
        loaded: what the loader makes of a plain weight [out, in] (float32 result), when it quantizes itself.
        unverified: why no loader is known to take it; empty for forms that a loader's source accepts.
        vocab_multiple: the exporter pads embedding, head and vocabulary to a multiple of it.
        shares_range: linears that are read as one have the scale of the largest of them; else each has its own.
        single: for a weight that is a single block; None when it lies like any other.
        linears: of linears that lie otherwise, by the last part of their name in rank files ("qkv").
        replaces_layers: the loader replaces every attention, MLP and norm of the decoder layers, whatever is excluded.
    """

    quant_algo: str | None = None
    codec: Codec | None = None
    dtype: str = ""
    scales: tuple[ScaleTensor, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)
    writes_exclusions: bool = False
    description: Mapping[str, Any] = field(default_factory=dict, hash=False)
    is_described_alone: bool = False
    folds_norms: bool = False
    loaded: Callable[[NDArray[Any]], NDArray[Any]] | None = None
    unverified: str = ""
    vocab_multiple: int = 1
    shares_range: bool = True
    single: Form | None = None
    linears: Mapping[str, Form] = field(default_factory=dict, hash=False)
    replaces_layers: bool = False

    def of_shape(self, rows: int, columns: int) -> Form:
        """Return the form of a weight [rows, columns]."""
        side = self.codec.group_size if self.codec else 0
        return self.single if self.single and max(rows, columns) <= side else self

    def of_linear(self, module: str) -> Form:
        """Return the form of a linear by its name in rank files ("transformer.layers.0.attention.qkv")."""
        return self.linears.get(module.rpartition(".")[2], self)

    def has(self, role: Role) -> bool:
        """Say whether a scale of this role is stored."""
        return any(scale.role == role for scale in self.scales)


@dataclass(frozen=True, slots=True)
class InputFormat:
    """How the inputs of a quantized linear are rounded when the model runs.

    Attributes:
        kind: "fp8" or "int8" (one static scale), "fp8_token" or "int8_token" (a scale per token, made at run time), "fp8_group" (per 128
            inputs of a token) or "nvfp4" (blocks of 16 under a static scale).
        limit: range of the input that its static scale stands for: scale = amax / limit; 0 without one.
    """

    kind: Literal["fp8", "int8", "fp8_token", "int8_token", "fp8_group", "nvfp4"]
    limit: float = 0.0


@dataclass(frozen=True, slots=True)
class QuantScheme:
    """A way to quantize linears.

    Attributes:
        name: what a user types.
        ranks: its form in rank files, None when there is none.
        unified: its form in a unified Hugging Face folder, None when there is none.
        inputs: how inputs are rounded, None when they are not.
        search: how recipes are found on calibration data; None for schemes that need no more than ranges.
        alignment: both sides of a rank's weight should be multiples of it.
        needs_multiple: both sides of every quantized linear must be multiples of it times tp_size: the loader pads others, and then
            wants other shapes than any tool writes.
        has_experts: whether linears of experts can have it in (rank files, unified folder).
        unverified: a doubt about what was asked for; such a choice needs `--allow-unverified`.
        caution: what whoever uses it should be told; empty for most.
    """

    name: str
    ranks: Form | None
    unified: Form | None = None
    inputs: InputFormat | None = None
    search: SearchSettings | None = None
    alignment: int = 1
    needs_multiple: int = 1
    has_experts: tuple[bool, bool] = (True, True)
    unverified: str = ""
    caution: str = ""

    @property
    def quant_algo(self) -> str | None:
        """TensorRT-LLM's name in rank files."""
        return self.ranks.quant_algo if self.ranks else None

    @property
    def group_size(self) -> int:
        """Inputs that share a weight scale; 0 without groups."""
        codec = self.ranks.codec if self.ranks else None
        return codec.group_size if codec and codec.geometry == "groups" else 0

    @property
    def needs_activations(self) -> bool:
        """Whether input ranges must be calibrated."""
        return self.inputs is not None and self.inputs.limit > 0

    @property
    def has_free_codes(self) -> bool:
        """Whether codes are chosen together: then each alone may be any distance from its weight."""
        return self.search is not None and self.search.kind == "gptq"

    def warnings(self, module: str, local_shape: tuple[int, ...]) -> Iterator[str]:
        """Say what the kernels will not like about a rank's weight [out, in]."""
        if any(size % self.alignment for size in local_shape):
            yield f"{module} is {list(local_shape)} on a rank; {self.name} kernels need multiples of {self.alignment}"


@dataclass(frozen=True, slots=True)
class SchemeOptions:
    """What can be chosen within a scheme; each scheme takes what concerns it.

    Attributes:
        group_size: inputs that share an INT4 scale, 64 or 128.
        smoothquant_alpha: share of the difficulty that moves from inputs to weights.
        smoothquant_mode: a name of `names.SMOOTHQUANT_MODES`.
        act_order: GPTQ rounds the columns of large inputs first.
    """

    group_size: int = 128
    smoothquant_alpha: float = 0.5
    smoothquant_mode: SmoothQuantMode = "per_channel"
    act_order: bool = False


#: Searches that do better on the outputs of quantized layers: their errors make up for those in front of them.
_FED_QUANTIZED = ("gptq",)


def default_feed(schemes: Iterable[QuantScheme]) -> Literal["original", "quantized"]:
    """Return what the next layer is calibrated on unless the user says otherwise."""
    kinds = {scheme.search.kind for scheme in schemes if scheme.search}
    return "quantized" if kinds & set(_FED_QUANTIZED) else "original"


def load_scheme(name: str, options: SchemeOptions | None = None) -> QuantScheme:
    """Return the scheme of a name (`spec` refuses unknown ones)."""
    module, _, attribute = QUANTIZATIONS[name].partition(":")
    scheme: QuantScheme = getattr(import_module(module), attribute)(options or SchemeOptions())
    return scheme


def scheme_of_algo(
    quant_algo: str | None, *, layout: Literal["ranks", "unified"], group_size: int
) -> QuantScheme | None:
    """Return a scheme whose checkpoints say `quant_algo`, or None when no scheme writes it.

    Several may (GPTQ and AWQ lie alike): the first is as good as any for reading.
    """
    for name, mode in product(QUANTIZATIONS, SMOOTHQUANT_MODES):
        scheme = load_scheme(name, SchemeOptions(group_size=group_size, smoothquant_mode=mode))
        form = getattr(scheme, layout)
        if form is not None and form.quant_algo == quant_algo:
            return scheme
    return None
