"""Sections of trtbuild.yaml: number formats, what is calibrated on, and what accuracy must be kept."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from trtbuild.names import GROUPED, QUANTIZATIONS, SmoothQuantMode
from trtbuild.spec.section import Positive, Section

#: What SmoothQuant's authors recommend.
_ALPHA = 0.5
#: The field of a JSONL record that is read unless another is named.
_FIELD = "text"


class Calibration(Section, frozen=True):
    """What is fed through the model to find activation ranges."""

    file: Annotated[
        str | None, Meta(description="Text, JSONL or safetensors (input_ids); empty: the built-in texts.")
    ] = None
    field: Annotated[
        str,
        Meta(
            min_length=1, description="Key of JSONL records that holds a text, a chat (role and content) or token ids."
        ),
    ] = _FIELD
    seed: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="Samples are shuffled with this seed before max_samples are taken; empty: in their order."),
    ] = None
    dtype: Annotated[
        Literal["float32", "float16", "bfloat16"], Meta(description="dtype of the calibration forward.")
    ] = "float32"
    feed: Annotated[
        Literal["auto", "original", "quantized"],
        Meta(description="Which layer's outputs the next layer is calibrated on; auto is what suits the scheme."),
    ] = "auto"
    max_samples: Annotated[Positive | None, Meta(description="At most this many samples are used; empty: 64.")] = None
    max_length_tokens: Annotated[
        Positive | None, Meta(description="Longer samples are cut to this many tokens; empty: 512.")
    ] = None

    def __post_init__(self) -> None:
        """Refuse a field of records where there are none."""
        if self.field != _FIELD and (self.file is None or Path(self.file).suffix != ".jsonl"):
            raise ValueError(
                f"field '{self.field}' applies to the records of a JSONL file, not to {self.file or 'the built-in texts'}"
            )


class Quantization(Section, frozen=True):
    """Number formats of weights, activations and KV cache."""

    scheme: Annotated[str, Meta(description=f"One of: {', '.join(QUANTIZATIONS)}.")] = "none"
    kv_cache: Annotated[
        Literal["auto", "fp8", "int8"], Meta(description="KV cache dtype; auto is the model's dtype.")
    ] = "auto"
    group_size: Annotated[
        Literal[64, 128] | None,
        Meta(description="Inputs that share an INT4 scale; empty: 128 where the model allows it, else 64."),
    ] = None
    smoothquant_alpha: Annotated[
        float,
        Meta(ge=0, le=1, description="int8_smoothquant: how much of the range moves from inputs to weights."),
    ] = _ALPHA
    smoothquant_mode: Annotated[
        SmoothQuantMode,
        Meta(description="int8_smoothquant: what has a scale; all but per_channel are for target tensorrt."),
    ] = "per_channel"
    act_order: Annotated[bool, Meta(description="int4_gptq: round the columns of large inputs first.")] = False
    exclude: Annotated[
        tuple[str, ...],
        Meta(
            description="Patterns of Hugging Face modules that stay unquantized, e.g. '*.down_proj' or 'model.layers.1.*'."
        ),
    ] = ()
    overrides: Annotated[
        dict[str, str],
        Meta(
            description="Pattern of Hugging Face modules -> scheme of their own; the first that matches counts, after exclude."
        ),
    ] = msgspec.field(default_factory=dict)
    allow_unverified: Annotated[
        bool, Meta(description="Write layouts that no loader is known to take, or only doubtfully.")
    ] = False
    dequantize: Annotated[
        bool, Meta(description="Read a model that is quantized already as plain weights, with the error they have.")
    ] = False
    calibration: Calibration = Calibration()

    def __post_init__(self) -> None:
        """Refuse schemes that there are not, and options of schemes that are not used."""
        for pattern, name in self.overrides.items():
            _require_scheme(name, f" for {pattern}", key="overrides: ")
        _require_scheme(self.scheme)
        used = {self.scheme, *self.overrides.values()}
        if self.act_order and "int4_gptq" not in used:
            raise ValueError(f"act_order applies to int4_gptq, not to '{self.scheme}'")
        chosen = {"alpha": self.smoothquant_alpha != _ALPHA, "mode": self.smoothquant_mode != "per_channel"}
        for key in (key for key, is_chosen in chosen.items() if is_chosen and "int8_smoothquant" not in used):
            raise ValueError(f"smoothquant_{key} applies to int8_smoothquant, not to '{self.scheme}'")
        if self.group_size is not None and not used & set(GROUPED):
            raise ValueError(
                f"group_size: scheme '{self.scheme}' has no groups of a chosen size; it applies to {', '.join(GROUPED)}"
            )


def _require_scheme(name: str, where: str = "", *, key: str = "") -> None:
    if name not in QUANTIZATIONS:
        near = get_close_matches(name, QUANTIZATIONS, n=1)
        raise ValueError(
            f"{key}unknown scheme '{name}'{where}"
            + (f", did you mean '{near[0]}'?" if near else f"; known: {', '.join(QUANTIZATIONS)}")
        )


Ratio = Annotated[float, Meta(ge=1.0)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Distance = Annotated[float, Meta(ge=0.0)]


class Accuracy(Section, frozen=True):
    """Limits that a quantized checkpoint must keep, or nothing is built; without any it is not evaluated."""

    max_perplexity_ratio: Annotated[
        Ratio | None, Meta(description="Perplexity over that of the source, or the source's over it, at most.")
    ] = None
    max_mean_kl: Annotated[
        Distance | None,
        Meta(description="Mean KL divergence of the next token's distribution from the source's, nats, at most."),
    ] = None
    max_p99_kl: Annotated[Distance | None, Meta(description="99th percentile of the KL divergence, nats, at most.")] = (
        None
    )
    min_top1_agreement: Annotated[
        Share | None, Meta(description="Share of tokens for which both find the same token most likely, at least.")
    ] = None
    max_layer_error: Annotated[
        Distance | None,
        Meta(description="Error of any layer's output, relative to what the layer adds to its input (RMS), at most."),
    ] = None
    file: Annotated[
        str | None,
        Meta(description="Held-out text, JSONL or safetensors (input_ids); empty: built-in texts in many languages."),
    ] = None
    max_samples: Annotated[Positive, Meta(description="At most this many samples are used.")] = 32
    max_length_tokens: Annotated[Positive, Meta(description="Longer samples are cut to this many tokens.")] = 512
