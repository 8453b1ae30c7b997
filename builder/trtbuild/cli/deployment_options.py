"""Options that describe a deployment, for every verb that takes a trtbuild.yaml or a model folder plus options.

An option that is given overrides the file; one that is not leaves it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trtbuild.errors import UsageError
from trtbuild.names import (
    CALIBRATION_DTYPES,
    DTYPES,
    EMBEDDINGS,
    FEEDS,
    GROUP_SIZES,
    KV_CACHE_DTYPES,
    QUANTIZATIONS,
    SMOOTHQUANT_MODES,
    TARGETS,
)
from trtbuild_client.options import SHARE

if TYPE_CHECKING:
    from trtbuild.spec import Deployment

F = TypeVar("F", bound=Callable[..., Any])

#: Option -> where its value goes in trtbuild.yaml.
_PLACES: dict[str, tuple[str, ...]] = {
    "target": ("target",),
    "quantization": ("quantization", "scheme"),
    "kv_cache": ("quantization", "kv_cache"),
    "dequantize": ("quantization", "dequantize"),
    "group_size": ("quantization", "group_size"),
    "smoothquant_alpha": ("quantization", "smoothquant_alpha"),
    "smoothquant_mode": ("quantization", "smoothquant_mode"),
    "act_order": ("quantization", "act_order"),
    "exclude": ("quantization", "exclude"),
    "overrides": ("quantization", "overrides"),
    "allow_unverified": ("quantization", "allow_unverified"),
    "dtype": ("model", "dtype"),
    "merge_lora": ("model", "merge_lora"),
    "tp": ("parallel", "tp_size"),
    "pp": ("parallel", "pp_size"),
    "ep": ("parallel", "ep_size"),
    "embedding": ("parallel", "embedding"),
    "gpu": ("hardware", "gpu"),
    "calibration": ("quantization", "calibration", "file"),
    "calibration_field": ("quantization", "calibration", "field"),
    "calibration_seed": ("quantization", "calibration", "seed"),
    "calibration_samples": ("quantization", "calibration", "max_samples"),
    "calibration_length": ("quantization", "calibration", "max_length_tokens"),
    "calibration_dtype": ("quantization", "calibration", "dtype"),
    "calibration_feed": ("quantization", "calibration", "feed"),
}
_OPTIONS = (
    click.option("--quantization", type=click.Choice(list(QUANTIZATIONS)), help="Number format of weights and inputs."),
    click.option("--kv-cache", type=click.Choice(KV_CACHE_DTYPES), help="KV cache dtype; auto keeps the model's."),
    click.option("--dequantize", is_flag=True, default=None, help="Read an already quantized model as plain weights."),
    click.option("--dtype", type=click.Choice(DTYPES), help="dtype of unquantized tensors; auto keeps the source's (float32 becomes float16)."),
    click.option("--merge-lora", type=click.Path(path_type=Path), metavar="ADAPTER", help="Add a LoRA adapter (PEFT folder) to the weights."),
    click.option("--tp", type=click.IntRange(min=1), metavar="N", help="Tensor parallel size."),
    click.option("--pp", type=click.IntRange(min=1), metavar="N", help="Pipeline parallel size."),
    click.option("--ep", type=click.IntRange(min=1), metavar="N", help="Expert parallel size (models with experts only)."),
    click.option("--embedding", type=click.Choice(EMBEDDINGS), help="Keep the embedding whole on each rank, or cut it over the vocabulary or the hidden size."),
    click.option("--gpu", metavar="NAME", help="Refuse what does not run on this GPU (and, in plan, what does not fit), e.g. h100, 'RTX 4090', sm90; default: not checked."),
    click.option("--group-size", type=click.Choice(list(map(str, GROUP_SIZES))), help="Inputs that share an INT4 scale; default: 128 where the model allows it, else 64."),
    click.option("--smoothquant-alpha", type=SHARE, metavar="A", help="int8_smoothquant: share of the range that moves from inputs to weights; default 0.5."),
    click.option("--smoothquant-mode", type=click.Choice(list(SMOOTHQUANT_MODES)), help="int8_smoothquant: what has a scale of its own; all but per_channel are for target tensorrt; default per_channel."),
    click.option("--act-order", is_flag=True, default=None, help="int4_gptq: round the columns of large inputs first."),
    click.option("--exclude", multiple=True, metavar="PATTERN", help="Leave these Hugging Face modules unquantized, e.g. '*.down_proj'; may be given several times."),
    click.option("--override", multiple=True, metavar="PATTERN=SCHEME", help="Give these Hugging Face modules a scheme of their own; may be given several times."),
    click.option("--calibration", type=click.Path(path_type=Path), metavar="FILE", help="Text, JSONL or safetensors (input_ids) to calibrate on; default: built-in texts."),
    click.option("--calibration-field", metavar="KEY", help="Key of JSONL records that holds the text, the messages of a chat or the token ids; default: text, else messages, else input_ids."),
    click.option("--calibration-seed", type=click.IntRange(min=0), metavar="N", help="Shuffle the samples before they are taken; default: their order."),
    click.option("--calibration-samples", type=click.IntRange(min=1), metavar="N", help="Use at most N samples; default 64."),
    click.option("--calibration-length", type=click.IntRange(min=1), metavar="TOKENS", help="Cut samples to this length; default 512."),
    click.option("--calibration-dtype", type=click.Choice(CALIBRATION_DTYPES), help="dtype of the calibration forward; default float32."),
    click.option("--calibration-feed", type=click.Choice(FEEDS), help="Calibrate each layer on the outputs of the layer before as it was, or as it is quantized."),
    click.option("--allow-unverified", is_flag=True, default=None, help="Write layouts that no loader is known to take, or only doubtfully."),
)  # fmt: skip


def deployment_options(function: F) -> F:
    """Add all options of `_OPTIONS`; the command receives them as keywords and hands them to `resolve`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def resolve(source: Path, *, default_target: str | None = None, **given: Any) -> Deployment:
    """Return the deployment of a trtbuild.yaml or model folder with the given options laid over it.

    Args:
        source: trtbuild.yaml, a folder that holds one (a build folder), or a model folder.
        default_target: target for a bare model folder.
        **given: options by name; None means not given.

    Raises:
        UsageError: an option or key is not allowed.
        TrtbuildError: the file cannot be read.
    """
    from trtbuild import spec

    if given.get("group_size") is not None:
        given["group_size"] = int(given["group_size"])
    if not given.get("exclude"):
        given.pop("exclude", None)
    given["overrides"] = _overrides(given.pop("override", None) or ())
    if (source / "trtbuild.yaml").is_file() and not (source / "config.json").is_file():
        source = source / "trtbuild.yaml"
    is_yaml = source.suffix in (".yaml", ".yml")
    if source.is_dir() and not (is_yaml and not (source / "config.json").is_file()):
        data: dict[str, Any] = {"model": {"path": str(source.resolve())}}
        if default_target:
            data["target"] = default_target
    elif is_yaml:
        data = spec.load(source).as_dict()
    else:
        from trtbuild.source import read_config

        read_config(source)  # says what is wrong with it
        raise UsageError(f"{source} is neither a trtbuild.yaml nor a model folder", hint="name one of the two")
    typed: dict[tuple[str, ...], str] = {}
    for option, value in given.items():
        if value is None:
            continue
        *sections, key = _PLACES[option]
        typed[_PLACES[option]] = "--override" if option == "overrides" else option_name(option)
        node = data
        for section in sections:
            node = node.setdefault(section, {})
        node[key] = str(value.resolve()) if isinstance(value, Path) else value
    return spec.parse(data, origin=str(source), given=typed)


def option_name(parameter: str) -> str:
    """Return an option as it is typed."""
    return f"--{parameter.replace('_', '-')}"


def _overrides(given: Iterable[str]) -> dict[str, str] | None:
    """Return pattern -> scheme; None when nothing was given."""
    pairs = [text.rpartition("=") for text in given]
    for pattern, sign, name in pairs:
        if not (pattern and sign and name):
            raise UsageError(
                f"--override {pattern}{sign}{name} is not PATTERN=SCHEME", hint="e.g. --override '*.down_proj=fp8'"
            )
    return {pattern: name for pattern, _, name in pairs} or None


def target_option(*, multiple: bool) -> Callable[[F], F]:
    """Return the decorator for --target."""
    return click.option(
        "--target",
        type=click.Choice(list(TARGETS)),
        multiple=multiple,
        help="What the checkpoint is for.",
    )
