"""`trtbuild lora`: an adapter in the layout of TensorRT-LLM's LoRA cache."""

from __future__ import annotations

from pathlib import Path

import click

from trtbuild.cli.options import common, force, json_output
from trtbuild.lora.names import MAX_TASK_ID

_PATH = click.Path(path_type=Path)


@click.command(epilog="Example: trtbuild lora ./my-adapter -o ./lora --base ./Llama-3.1-8B-Instruct --task-id 1")
@click.argument("adapter", type=_PATH)
@click.option("-o", "--output", type=_PATH, required=True, help="Folder to write.")
@click.option(
    "--base", type=_PATH, help="Model folder the adapter belongs to; without it no shape is checked against it."
)
@click.option(
    "--task-id",
    type=click.IntRange(min=0, max=MAX_TASK_ID),
    help="Write the subfolder of this name, so that the output serves as lora_prefetch_dir.",
)
@force
@json_output
@common
def lora(
    adapter: Path, output: Path, base: Path | None, task_id: int | None, force: bool, as_json: bool, quiet: bool
) -> None:
    """Write ADAPTER (a PEFT folder) as model.lora_weights.npy and model.lora_config.npy, float16 and int32.

    They are the request tensors lora_weights and lora_config of TensorRT-LLM's Triton backend.
    """
    from trtbuild.console import print_json, print_text
    from trtbuild.lora.adapter import Adapter
    from trtbuild.lora.serving import write_serving
    from trtbuild.source import SourceCheckpoint

    opened = Adapter.open(adapter)
    source = None if base is None else SourceCheckpoint.open(base)
    written = write_serving(opened, output, base=source, task_id=task_id, force=force)
    if as_json:
        print_json(written)
        return
    _, count, width = written["lora_weights"]["shape"]
    print_text(f"{written['output']}: {count} modules, rank {written['max_lora_rank']}, rows of {width} float16")
    targets = " ".join(written["lora_target_modules"])
    print_text(
        f"next: trtllm-build ... --lora_plugin float16 --max_lora_rank {written['max_lora_rank']} --lora_target_modules {targets}"
    )
