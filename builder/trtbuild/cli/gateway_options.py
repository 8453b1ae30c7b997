"""Options of `trtbuild gateway`, by group; the names are those of `gateway.settings.Settings`, the defaults its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from trtbuild.cli.options import F, size
from trtbuild_client import defaults
from trtbuild_client.options import duration

_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _add(function: F, *options: Any) -> F:
    for option in reversed(options):
        function = option(function)
    return function


def _time(name: str, field: str, default: str | None, help_text: str) -> Any:
    return click.option(
        name, field, type=duration, metavar="TIME", default=default, show_default=default is not None, help=help_text
    )


def model(function: F) -> F:
    """Add what is behind: `url`, `model`, `served_names`, `tokenizer_dir`, `guided`."""
    return _add(
        function,
        click.option(
            "--url", default=defaults.URL, show_default=True, help="Triton: HOST:PORT of gRPC, or http://HOST:PORT."
        ),
        click.option("--model", default=defaults.MODEL, show_default=True, help="Triton's model that takes and gives text."),
        click.option(
            "--served-name", "served_names", metavar="NAME", multiple=True,
            help="Name by which requests ask for it (repeatable). [default: that of --model]",
        ),
        click.option(
            "--tokenizer", "tokenizer_dir", type=_FOLDER,
            help="Folder with the model's tokenizer and chat template: makes prompts of chats, counts tokens.",
        ),
        click.option(
            "--guided/--no-guided", "guided", default=None,
            help="Whether the server has guided decoding for response_format. [default: what its configuration says]",
        ),
    )  # fmt: skip


def listening(function: F) -> F:
    """Add where to listen and who may ask: `host`, `port`, `token_file`, `allows_anyone`."""
    return _add(
        function,
        click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
        click.option("--port", type=click.IntRange(0, 65535), default=9000, show_default=True, help="0 takes a free one."),
        click.option(
            "--token-file", type=_FILE, metavar="FILE",
            help="Tokens that may ask, one per line. [default: that of TRTBUILD_GATEWAY_TOKEN, else anyone]",
        ),
        click.option(
            "--allow-anyone", "allows_anyone", is_flag=True, help="Listen beyond loopback without any token."
        ),
    )  # fmt: skip


def limits(function: F) -> F:
    """Add limits of sizes, numbers and times."""
    return _add(
        function,
        click.option(
            "--max-body", "max_body_bytes", default="8MiB", show_default=True, metavar="SIZE", callback=size,
            help="Longest body of a request (413).",
        ),
        click.option(
            "--max-in-flight", type=click.IntRange(min=1), default=256, show_default=True,
            help="Answers made at once; more get 429 with Retry-After.",
        ),
        click.option(
            "--max-choices", type=click.IntRange(1, 128), default=8, show_default=True, help="Largest n of a request."
        ),
        click.option(
            "--default-max-tokens", type=click.IntRange(min=1), default=1024, show_default=True,
            help="Tokens of a chat's answer whose request names no number.",
        ),
        _time("--timeout", "timeout_s", "600s", "Time for a whole request (504)."),
        _time("--first-token-timeout", "first_token_timeout_s", None, "Time until the first token (504)."),
        _time("--between-tokens-timeout", "between_tokens_timeout_s", None, "Time from one token to the next."),
        _time("--body-timeout", "body_timeout_s", "30s", "Time for a request's body to arrive (408)."),
        _time("--drain-timeout", "drain_timeout_s", "30s", "Time that running requests get after SIGTERM."),
    )  # fmt: skip
