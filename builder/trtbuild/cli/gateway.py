"""`trtbuild gateway`: OpenAI's HTTP API in front of a Triton server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from trtbuild.cli.gateway_options import limits, listening, model
from trtbuild.cli.options import common, json_output
from trtbuild_client.options import access, reach


@click.command(
    epilog="Example: trtbuild gateway --url 127.0.0.1:8001 --model tensorrt_llm_bls --tokenizer model/ --served-name qwen"
)
@model
@access
@listening
@limits
@json_output
@common
def gateway(token_file: Path | None, as_json: bool, quiet: bool, **fields: Any) -> None:
    """Answer OpenAI's /v1/chat/completions, /v1/completions and /v1/models from a Triton server, until SIGTERM.

    The URL for clients (base_url is it with /v1) is printed on stdout as soon as requests are taken; --json prints one line of JSON.
    Needs the extra `gateway`. What may be asked and what is refused: docs/gateway.md.
    """
    import json
    import os
    import sys

    from trtbuild.console import print_text
    from trtbuild.errors import TrtbuildError
    from trtbuild.gateway.settings import TOKEN_VARIABLE, Settings, read_tokens

    tokens = read_tokens(token_file, os.environ.get(TOKEN_VARIABLE))
    settings = Settings(tokens=tokens, reach=reach(fields), **fields)
    try:
        from trtbuild.gateway.serve import serve
    except ImportError as error:
        raise TrtbuildError(
            f"the gateway needs {error.name}, which is not installed", hint="pip install 'trtbuild[gateway]'"
        ) from error

    def announce(url: str) -> None:
        print_text(json.dumps({"url": url, "base_url": f"{url}/v1", "models": settings.names}) if as_json else url)
        sys.stdout.flush()

    serve(settings, on_ready=announce)
