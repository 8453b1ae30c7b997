"""`trtbuild init`: write a commented trtbuild.yaml for a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from trtbuild.cli.deployment_options import option_name
from trtbuild.cli.options import common, force, json_output
from trtbuild.console import print_json, print_text
from trtbuild.names import KV_CACHE_DTYPES, QUANTIZATIONS, TARGETS

#: Option -> key of trtbuild.yaml; an option that was not given leaves the key at its default.
_KEYS = {
    "target": "target",
    "quantization": "quantization.scheme",
    "kv_cache": "quantization.kv_cache",
    "tp": "parallel.tp_size",
    "pp": "parallel.pp_size",
}
_PATH = click.Path(path_type=Path)


@click.command(epilog="Example: trtbuild init ./Llama-3.2-1B-Instruct --quantization fp8 --tp 2")
@click.argument("model")
@click.option("-o", "--output", type=_PATH, default="trtbuild.yaml", show_default=True, help="File to write.")
@click.option("--download", is_flag=True, help="Fetch MODEL from the hub; safetensors, config, tokenizer only.")
@click.option("--models-dir", type=_PATH, default="models", show_default=True, help="Where --download puts the model.")
@click.option("--target", type=click.Choice(list(TARGETS)), help="What the model is built for.")
@click.option("--quantization", type=click.Choice(list(QUANTIZATIONS)), help="Number format of the weights.")
@click.option("--kv-cache", type=click.Choice(KV_CACHE_DTYPES), help="Number format of the KV cache.")
@click.option("--tp", type=click.IntRange(min=1), help="Tensor parallel size.")
@click.option("--pp", type=click.IntRange(min=1), help="Pipeline parallel size.")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Set any other key; may be repeated.")
@force
@json_output
@common
def init(
    model: str,
    output: Path,
    download: bool,
    models_dir: Path,
    assignments: tuple[str, ...],
    force: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Write a commented trtbuild.yaml for MODEL: a Hugging Face folder, or owner/name[@revision] with --download.

    A token for gated and private models is taken from HF_TOKEN. Keys for --set: `trtbuild schema`, e.g.
    --set limits.max_batch_size=8.
    """
    from trtbuild.initialize import Typed, initialize, setting, together

    typed = [Typed(f"MODEL {model}", "model.path", model)]
    typed += [Typed(f"{option_name(name)} {value}", _KEYS[name], value) for name, value in options.items() if value is not None]  # fmt: skip
    settings = together([*typed, *(Typed(f"--set {text}", *setting(text)) for text in assignments)])
    written = initialize(
        model, output, settings=settings, fetch=download, models_dir=models_dir, force=force, quiet=quiet
    )
    if as_json:
        print_json(written.to_json())
        return
    size = f"{written.num_layers} layers, {written.weight_bytes / 1e6:.0f} MB of weights"
    print_text(f"{written.path}: {written.architecture}, {size}")
    print_text(f"next: trtbuild plan {written.path}")
