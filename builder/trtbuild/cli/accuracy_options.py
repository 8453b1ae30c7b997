"""Options of the section `accuracy` of trtbuild.yaml; an option that is given overrides the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trtbuild.cli.deployment_options import option_name
from trtbuild_client.options import SHARE, Number

if TYPE_CHECKING:
    from trtbuild.spec import Accuracy

F = TypeVar("F", bound=Callable[..., Any])

#: Option -> field of the section.
_FIELDS = {
    "texts": "file",
    "max_samples": "max_samples",
    "max_length": "max_length_tokens",
    "max_perplexity_ratio": "max_perplexity_ratio",
    "max_mean_kl": "max_mean_kl",
    "max_p99_kl": "max_p99_kl",
    "min_top1_agreement": "min_top1_agreement",
    "max_layer_error": "max_layer_error",
}
_OPTIONS = (
    click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="A trtbuild.yaml: its section accuracy holds samples and limits."),
    click.option("--texts", type=click.Path(path_type=Path), metavar="FILE", help="Held-out text, JSONL or safetensors (input_ids); default: built-in texts."),
    click.option("--max-samples", type=click.IntRange(min=1), metavar="N", help="Samples used at most; default 32."),
    click.option("--max-length", type=click.IntRange(min=1), metavar="TOKENS", help="Longer samples are cut; default 512."),
    click.option("--max-perplexity-ratio", type=Number(1), metavar="X", help="Fail above this perplexity over the source's."),
    click.option("--max-mean-kl", type=Number(0), metavar="NATS", help="Fail above this mean KL divergence."),
    click.option("--max-p99-kl", type=Number(0), metavar="NATS", help="Fail above this 99th percentile of the KL divergence."),
    click.option("--min-top1-agreement", type=SHARE, metavar="SHARE", help="Fail below this share (0 to 1) of equal top tokens."),
    click.option("--max-layer-error", type=Number(0), metavar="X", help="Fail above this relative error of any layer."),
)  # fmt: skip


def accuracy_options(function: F) -> F:
    """Add `--config` and the options of `_OPTIONS`; the command receives `config` and hands the others to `resolve_accuracy`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def resolve_accuracy(config: Path | None, given: Mapping[str, Any]) -> Accuracy:
    """Return the section of a trtbuild.yaml (or the defaults) with the given options laid over it.

    Raises:
        UsageError: a value is not allowed.
        TrtbuildError: the file cannot be read.
    """
    from trtbuild import spec

    base = spec.load(config).accuracy if config is not None else spec.Accuracy()
    values = {
        _FIELDS[name]: str(value) if isinstance(value, Path) else value
        for name, value in given.items()
        if value is not None
    }
    whole = {"model": {"path": "."}, "accuracy": {**base.as_dict(), **values}}
    typed: dict[tuple[str, ...], str] = {
        ("accuracy", _FIELDS[name]): option_name(name) for name, value in given.items() if value is not None
    }
    return spec.parse(whole, origin="options", given=typed).accuracy
