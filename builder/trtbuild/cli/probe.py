"""`trtbuild probe`: measure latency and throughput of a server from the client's side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from trtbuild.cli.options import common, json_output
from trtbuild_client.options import SHARE, access, beside, extras, load, reach, sampling, server, split, waiting


@click.command(epilog="Example: trtbuild probe --requests 64 --concurrency 16 --max-ttft-p95 500ms --json > probe.json")
@server
@access
@waiting
@load
@click.option("--stream/--no-stream", default=True, show_default=True, help="Time each token, or only whole answers.")
@extras
@click.option(
    "--max-error-rate",
    type=SHARE,
    default=0.0,
    show_default=True,
    help="Share of failed requests (0 to 1) above which the exit code is 3.",
)
@sampling
@json_output
@common
def probe(
    url: str,
    model: str,
    timeout_s: float,
    requests: int,
    concurrency: int,
    warmup: int,
    prompt: str,
    prompt_file: Path | None,
    unique_prompts: bool,
    stream: bool,
    max_error_rate: float,
    wait_s: float | None,
    parameters: tuple[tuple[str, Any], ...],
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Check health, then measure TTFT, ITL, TPOT, end-to-end latency and output tokens/s; exit 3 beyond a limit."""
    from trtbuild.console import print_json, progress, stdout_console
    from trtbuild.errors import CheckFailed
    from trtbuild_client.client import Client
    from trtbuild_client.probe import Probe
    from trtbuild_client.probing import run
    from trtbuild_client.readiness import wait_until_ready
    from trtbuild_client.report import failure
    from trtbuild_client.text import utf8
    from trtbuild_client.thresholds import complaint

    reached, wanted = reach(given), beside(given)
    options, tensors = split(parameters, **given)
    lines = utf8(prompt_file.read_bytes(), str(prompt_file)).splitlines() if prompt_file else [prompt]
    plan = Probe(
        requests=requests,
        concurrency=concurrency,
        warmup=warmup,
        prompts=tuple(line for line in lines if line.strip()),
        has_unique_prompts=unique_prompts,
        is_streaming=stream,
        options=options,
        tensors=tensors,
    )
    label = f"probing {model} on {url}"
    with Client(url, model, timeout_s=timeout_s, **reached) as client:
        wait_until_ready(client.check_ready, wait_s)
        with progress(label, wanted.number(plan), quiet=quiet, unit="requests") as advance:
            result = run(client, plan, wanted, advance)
    if as_json:
        print_json(result.to_json())
    else:
        console = stdout_console()
        for part in result.show():
            console.print(part, soft_wrap=isinstance(part, str))
    problem = failure(result.report, max_error_rate=max_error_rate) or complaint(result.checks)
    if problem is not None:
        raise CheckFailed(problem[0], hint=problem[1])
