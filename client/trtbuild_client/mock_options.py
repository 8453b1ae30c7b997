"""Command line options of the mock server, by group. Knows click and the fields of `MockOptions`; loads no server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from trtbuild_client.errors import InvalidRequest

F = TypeVar("F", bound=Callable[..., Any])
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _parsed(parse: str) -> Callable[[str], Any]:
    """Return a converter that calls a parser of the mock, and makes its complaint one of the command line."""

    def convert(text: str) -> Any:
        from trtbuild_client.mock import distributions, faults

        parsers: dict[str, Callable[[str], Any]] = {
            "times": distributions.parse_ns,
            "counts": distributions.parse_counts,
            "fault": faults.parse_share,
            "ns": lambda given: round(distributions.parse_ns(given).numbers[0]),
        }
        try:
            return parsers[parse](text)
        except InvalidRequest as error:
            raise click.BadParameter(str(error)) from error

    return convert


def ports(function: F) -> F:
    """Add where to listen and who may ask: `host`, the ports, `token` and the TLS files."""
    for decorate in (
        click.option("--tls-ca", type=_FILE, help="PEM file; clients must show a certificate of this authority."),
        click.option("--tls-key", type=_FILE, help="PEM file with the key of --tls-cert."),
        click.option("--tls-cert", type=_FILE, help="PEM file; TLS on all ports."),
        click.option("--token", envvar="TRTBUILD_MOCK_TOKEN", help="Bearer token that every request must carry."),
        click.option(
            "--metrics-port", type=click.IntRange(0, 65535), default=8002, show_default=True, help="0: a free one."
        ),
        click.option(
            "--http-port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: a free one."
        ),
        click.option(
            "--grpc-port", type=click.IntRange(0, 65535), default=8001, show_default=True, help="0: a free one."
        ),
        click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
    ):
        function = decorate(function)
    return function


def model(function: F) -> F:
    """Add what is served: variant, release, decoupled or not, cumulative text, where the final flag is."""
    for decorate in (
        click.option(
            "--max-seq-len", type=click.IntRange(2),
            help="Words that prompt and answer may have together; longer prompts are refused, answers cut.",
        ),
        click.option("--output-tokens", type=click.IntRange(1), help="No answer is longer, whatever is asked for."),
        click.option(
            "--final-on-data", "has_final_on_data", is_flag=True,
            help="The last tokens carry the final flag, not an empty response.",
        ),
        click.option(
            "--cumulative-bls", "has_cumulative_bls", is_flag=True, help="tensorrt_llm_bls repeats all text so far."
        ),
        click.option(
            "--decoupled/--no-decoupled", "is_decoupled", default=True, show_default=True,
            help="Several responses per request, or one.",
        ),
        click.option("--release", default="1.2", show_default=True, help="TensorRT-LLM release, for the tensors' names."),
        click.option(
            "--variant", type=click.Choice(["engine", "llmapi"]), default="engine", show_default=True,
            help="The five models of an engine, or the one of the LLM API.",
        ),
    ):  # fmt: skip
        function = decorate(function)
    return function


def times(function: F) -> F:
    """Add when tokens come, and how many requests are worked on."""
    for decorate in (
        click.option(
            "--ready-after", "ready_after_ns", type=_parsed("ns"), metavar="TIME", default="0",
            help="For so long the server is live and not ready, as while models load.",
        ),
        click.option("--max-queue", type=click.IntRange(0), help="Requests that may wait for --max-concurrency; more are refused."),
        click.option("--max-concurrency", type=click.IntRange(1), help="Requests worked on at once; others wait."),
        click.option(
            "--prompt-cache", "has_prompt_cache", is_flag=True, help="A prompt that was seen before costs no prefill."
        ),
        click.option(
            "--cold", "cold_ns", type=_parsed("ns"), metavar="TIME", default="0", help="Added to the first request's TTFT."
        ),
        click.option(
            "--prefill-per-token", "prefill_ns_per_token", type=_parsed("ns"), metavar="TIME", default="0",
            help="Added to the TTFT for each word of the prompt.",
        ),
        click.option("--burst", "is_burst", is_flag=True, help="All responses of an answer leave at once."),
        click.option(
            "--tokens-per-response", type=_parsed("counts"), metavar="NUMBERS", default="1", show_default=True,
            help="Tokens in one response: 4, or list:1,1,3 in turn.",
        ),
        click.option(
            "--itl", "itl_ns", type=_parsed("times"), metavar="TIMES", default="0", show_default=True,
            help="Time from token to token, as --ttft.",
        ),
        click.option(
            "--ttft", "ttft_ns", type=_parsed("times"), metavar="TIMES", default="0", show_default=True,
            help="Time to first token: 20ms, exponential:20ms (mean), lognormal:20ms,0.5 (median, sigma), list:10ms,30ms.",
        ),
        click.option("--seed", type=int, default=0, show_default=True, help="Seed of times and faults."),
    ):  # fmt: skip
        function = decorate(function)
    return function


def faults(function: F) -> F:
    """Add faults by share of the requests."""
    return click.option(
        "--fault", "faults", type=_parsed("fault"), metavar="KIND[@TOKENS]=SHARE", multiple=True,
        help="Let a share (0 to 1) of the requests go wrong, after TOKENS tokens (repeatable). Kinds: error, "
        "error_without_id, http_200_error, busy, stall, reset, drop, no_final, duplicate_final, cut_utf8, truncated_utf8, "
        "truncated, slow_accept, broken_event.",
    )(function)  # fmt: skip
