"""`trtbuild generate`: send one prompt to a server and print the answer."""

from __future__ import annotations

import sys
from threading import Event
from typing import Any

import click

from trtbuild.cli.options import common, json_output
from trtbuild_client.options import access, reach, sampling, server, split, waiting


@click.command(epilog='Example: trtbuild generate "The capital of France is" --max-tokens 16 --stop "."')
@click.argument("prompt")
@server
@access
@waiting
@sampling
@click.option(
    "--stop",
    "stop_words",
    metavar="WORD",
    multiple=True,
    help="End the answer before this text (repeatable); for a line break, $'\\n' in a shell.",
)
@click.option(
    "--stream/--no-stream", default=True, show_default=True, help="Print text as it comes, or all at the end."
)
@json_output
@common
def generate(
    prompt: str,
    url: str,
    model: str,
    timeout_s: float,
    wait_s: float | None,
    parameters: tuple[tuple[str, Any], ...],
    stop_words: tuple[str, ...],
    stream: bool,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Send PROMPT to a server and print the answer as it comes; "-" reads the prompt from standard input."""
    from trtbuild.console import print_json
    from trtbuild_client import Client
    from trtbuild_client.readiness import wait_until_ready
    from trtbuild_client.text import utf8
    from trtbuild_client.workers import run_interruptibly

    reached = reach(given)
    options, tensors = split(parameters, stop_words=stop_words, **given)
    if prompt == "-":
        prompt = utf8(sys.stdin.buffer.read(), "standard input")
    with Client(url, model, timeout_s=timeout_s, **reached) as client:
        if wait_s is not None:
            wait_until_ready(client.check_ready, wait_s)
        answer = client.request(prompt, is_streaming=stream, tensors=tensors, **options)

        printed = ""

        def read(is_interrupted: Event) -> None:
            nonlocal printed
            for chunk in () if is_interrupted.is_set() else answer:
                if not as_json:
                    click.echo(chunk.text, nl=False)
                    printed = chunk.text or printed

        try:
            run_interruptibly(read, 1, cancel=client.cancel_all)
        except BaseException:  # what is said of it gets a line of its own
            if printed and not printed.endswith("\n"):
                click.echo()
            raise
    if as_json:
        print_json(answer.generation.to_json())
    else:
        click.echo()
