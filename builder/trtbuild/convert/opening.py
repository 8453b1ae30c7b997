"""Opens the model of a deployment: plain, already quantized, or with an adapter to merge; reads headers only.

Decides what becomes of weights that are quantized already: kept as they are, dequantized because the user said so, or refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trtbuild.errors import UsageError, Way
from trtbuild.quant.codecs.fp8 import E4M3_MAX
from trtbuild.quant.sources import declared_method, read_quantized
from trtbuild.source import SourceCheckpoint
from trtbuild.spec import Deployment

if TYPE_CHECKING:
    from trtbuild.quant.sources.kept import KeptRecipes
    from trtbuild.quant.sources.result import QuantizedSource
    from trtbuild.quant.stats import CalibrationStats

_INT4 = ("int4_awq", "int4_gptq", "int4_rtn")
#: Algorithm of a quantized source -> schemes whose files hold the very same numbers; the first is named to the user.
KEPT_BY: dict[str, tuple[str, ...]] = {"FP8": ("fp8",), "W4A16_AWQ": _INT4, "W4A16": _INT4, "W4A16_GPTQ": _INT4}


_KEPT = (
    "the source's weights ({what}) are kept; where the layout wants one scale for several (q, k, v; gate and up), those with a smaller "
    "one are rounded again"
)
_KEPT_INT4 = "the source's codes and scales ({what}) are kept; nothing is searched"
_DROPPED = "the source has scales for an FP8 KV cache, which are not written; --kv-cache fp8 keeps them"


@dataclass(frozen=True, slots=True)
class KnownRanges:
    """Ranges that a quantized source brings along.

    Attributes:
        weight_amax: Hugging Face module -> range of its weight.
        input_amax: Hugging Face module -> range of its input.
        kv_amax: attention module ("model.layers.0.self_attn") -> ranges of keys and of values.
        recipes: of INT4 weights, whose codes they give back.
        group_size: of those.
    """

    weight_amax: Mapping[str, float]
    input_amax: Mapping[str, float]
    kv_amax: Mapping[str, tuple[float, float]]
    recipes: KeptRecipes | None = None
    group_size: int | None = None

    def stats(self, modules: Sequence[str], num_layers: int, *, needs_kv: bool) -> CalibrationStats | None:
        """Return the ranges as those of a calibration, None when one that is needed is missing.

        Args:
            modules: linears whose input range is needed.
            num_layers: of the model.
            needs_kv: whether the ranges of keys and values are needed.
        """
        if any(module not in self.input_amax for module in modules):
            return None
        layers = {int(name.split(".")[-2]): amax for name, amax in self.kv_amax.items()}
        if needs_kv and not set(range(num_layers)) <= set(layers):
            return None
        k_amax, v_amax = zip(*(layers[layer] for layer in range(num_layers)), strict=True) if needs_kv else ((), ())
        from trtbuild.quant.stats import CalibrationStats

        return CalibrationStats(dict(self.input_amax), k_amax, v_amax, samples=0, tokens=0, digest="")


@dataclass(frozen=True, slots=True)
class OpenedSource:
    """A model that can be read as plain weights.

    Attributes:
        source: its tensors by their unquantized names.
        known: ranges of a quantized source that is kept as it is, else None.
        notes: what the user must be told.
    """

    source: SourceCheckpoint
    known: KnownRanges | None = None
    notes: tuple[str, ...] = ()


def open_source(deployment: Deployment) -> OpenedSource:
    """Open the model of a deployment.

    Raises:
        UsageError: it is quantized, and neither kept nor to be dequantized.
        TrtbuildError: the model or the adapter is unusable, or they do not fit.
    """
    opened = _open_model(deployment)
    if deployment.model.merge_lora is None:
        return opened
    if opened.known is not None:
        raise UsageError(
            f"{deployment.model.path} is quantized; an adapter cannot be added to weights that are kept as they are",
            hint="use the unquantized model",
            ways=[Way("add --dequantize", {"quantization.dequantize": True})],
        )
    from trtbuild.lora import Adapter, merged

    adapter = Adapter.open(Path(deployment.model.merge_lora))
    return OpenedSource(merged(opened.source, adapter), notes=opened.notes)


def _open_model(deployment: Deployment) -> OpenedSource:
    raw = SourceCheckpoint.open(Path(deployment.model.path))
    if declared_method(raw) is None:
        if deployment.quantization.dequantize:
            raise UsageError(
                f"{raw.path} is not quantized, there is nothing to dequantize", hint="leave out --dequantize"
            )
        return OpenedSource(raw)
    found = read_quantized(raw)
    what = f"{found.method}, {found.algorithm}"
    if deployment.quantization.dequantize:
        return OpenedSource(
            found.source, notes=(f"the source is quantized ({what}) and is dequantized first", *found.notes)
        )
    if found.algorithm == "NONE":  # only its KV cache is
        return OpenedSource(found.source, notes=found.notes)
    keepers = KEPT_BY.get(found.algorithm, ())
    if deployment.quantization.scheme in keepers and keepers is _INT4:
        from trtbuild.quant.sources.kept import NOTES, keep_int4

        asked = deployment.quantization.group_size
        if asked is not None and asked != found.group_size:
            raise UsageError(
                f"--group-size {asked}: {raw.path} has groups of {found.group_size}",
                ways=[
                    Way("leave it out", {"quantization.group_size": None}),
                    Way("add --dequantize to quantize again", {"quantization.dequantize": True}),
                ],
            )
        notes = (_KEPT_INT4.format(what=what), *filter(None, (NOTES[found.algorithm],)), *found.notes)
        ranges = replace(_ranges(found), recipes=keep_int4(found), group_size=found.group_size)
        return OpenedSource(found.source, ranges, notes)
    if deployment.quantization.scheme in keepers:
        dropped = found.kv_scales and deployment.quantization.kv_cache == "auto"
        notes = (_KEPT.format(what=what), *((_DROPPED,) if dropped else ()), *found.notes)
        return OpenedSource(found.source, _ranges(found), notes)
    scheme = deployment.quantization.scheme
    raise UsageError(
        f"{raw.path} is already quantized ({what}), and scheme '{scheme}' does not keep that",
        hint="use the unquantized model",
        ways=[
            *(Way(f"keep it with --quantization {name}", {"quantization.scheme": name}, "keep") for name in keepers),
            Way(
                "copy the folder with --target pytorch" + ("" if scheme == "none" else " and no --quantization"),
                {"target": "pytorch", "quantization.scheme": "none"},
            ),
            Way("add --dequantize to convert the dequantized weights", {"quantization.dequantize": True}),
        ],
    )


def _ranges(found: QuantizedSource) -> KnownRanges:
    return KnownRanges(
        weight_amax=found.weight_amax,
        input_amax=found.input_amax,
        kv_amax={name: (k * E4M3_MAX, v * E4M3_MAX) for name, (k, v) in found.kv_scales.items()},
    )
