"""The options of `trtbuild bench`, in groups. Knows click; what they mean is said by `trtbuild_client.load.settings`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from trtbuild.cli.options import OUTPUT_FILE
from trtbuild_client import defaults
from trtbuild_client.options import SHARE, Number, duration, name_value

F = TypeVar("F", bound=Callable[..., Any])

#: More than any model takes; prompts of so many words are still made in seconds.
_MOST_TOKENS = 10_000_000
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def numbers(kind: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """Return a reader of numbers above 0, separated by commas."""

    def read(text: str) -> tuple[Any, ...]:
        try:
            found = tuple(kind(part) for part in text.split(","))
        except ValueError:
            found = ()
        if not found or not all(0 < each < float("inf") for each in found):
            raise click.BadParameter(f"'{text}': write one number above 0, or several: 1,2,4,8.")
        return found

    return read


def span(text: str) -> tuple[float, float]:
    """Return (from, to) of FROM:TO."""
    match = re.fullmatch(r"([0-9]*\.?[0-9]+):([0-9]*\.?[0-9]+)", text)
    if match is None or not all(0 < float(each) < float("inf") for each in match.groups()):
        raise click.BadParameter(f"'{text}' is not FROM:TO, two rates above 0 such as 1:50.")
    return float(match[1]), float(match[2])


def length(text: str) -> tuple[int, float]:
    """Return (mean, deviation) of MEAN or MEAN:DEVIATION."""
    match = re.fullmatch(r"([0-9]{1,12})(?::([0-9]*\.?[0-9]+))?", text)
    if match is None or not 1 <= int(match[1]) <= _MOST_TOKENS or float(match[2] or 0) > _MOST_TOKENS:
        raise click.BadParameter(
            f"'{text}' is no number of tokens from 1 to {_MOST_TOKENS:,}: write 256, or 256:32 for a standard deviation of 32."
        )
    return int(match[1]), float(match[2] or 0)


def count_or_time(text: str) -> tuple[int, float]:
    """Return (requests, seconds): a plain number counts requests, one with a unit is a time."""
    return (int(text), 0.0) if text.isdecimal() else (0, duration(text))


def header(text: str) -> tuple[str, str]:
    """Return (name, value) of NAME: VALUE."""
    name, colon, value = text.partition(":")
    if not (name.strip() and colon) or any(each in text for each in "\r\n"):
        raise click.BadParameter(f"'{text}' is not NAME: VALUE.")
    return name.strip(), value.strip()


def _add(options: tuple[Callable[[F], F], ...]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


server = _add((
    click.option("--url", default=defaults.URL, show_default=True, help="HOST:PORT or grpcs://HOST:PORT of Triton's gRPC, or http(s)://HOST:PORT of an HTTP endpoint."),
    click.option("--model", default=defaults.MODEL, show_default=True, help="Model to ask."),
    click.option("--api", type=click.Choice(["triton-grpc", "triton-http", "openai-chat", "openai-completions"]), help="How to ask; by default triton-grpc, and openai-chat for http URLs."),
    click.option("--header", "headers", type=header, multiple=True, metavar="'NAME: VALUE'", help="Further header (HTTP) or metadata (gRPC) of every request (repeatable)."),
    click.option("--param", "parameters", type=name_value, multiple=True, metavar="NAME=VALUE", help="Sampling parameter, input of the model or field of the request that has no option of its own (repeatable)."),
    click.option("--stream/--no-stream", "is_streaming", default=True, show_default=True, help="Time each token, or only whole answers."),
    click.option("--fixed-length/--free-length", default=True, show_default=True, help="Ask for answers of exactly --output-tokens where the server can."),
    click.option("--cumulative", is_flag=True, help="Each response of Triton holds all text so far (llmapi, accumulate_tokens)."),
    click.option("--transport", type=click.Choice(["auto", "lean", "grpcio"]), default="auto", show_default=True, help="gRPC of our own, or grpcio; auto takes grpcio for grpcs:// and proxies."),
    click.option("--streams-per-connection", type=click.IntRange(min=1), default=1, show_default=True, help="gRPC requests that share a connection."),
))  # fmt: skip

load = _add((
    click.option("--concurrency", type=numbers(int), metavar="N[,N...]", help="Closed loop: requests in flight; one run for each number. Default: 1."),
    click.option("--rate", "rates", type=numbers(float), metavar="R[,R...]", help="Open loop: requests per second, or conversations where they have several turns; one run for each number."),
    click.option("--ramp", type=span, metavar="FROM:TO", help="Open loop whose rate changes evenly over --duration."),
    click.option("--arrivals", type=click.Choice(["poisson", "constant", "gamma"]), help="Times between arrivals of an open loop. [default: poisson]"),
    click.option("--burstiness", type=Number(0, min_open=True), help="Shape of --arrivals gamma: below 1 they come in bursts, above 1 evenly. [default: 1]"),
    click.option("--requests", type=click.IntRange(min=1), help="Measured requests per run. Default: 400 without --duration."),
    click.option("--duration", "duration_s", type=duration, metavar="TIME", help="Time in which requests are sent (30s, 2m)."),
    click.option("--warmup", type=count_or_time, default="0", show_default=True, metavar="N|TIME", help="First requests, or first time, that are marked and not counted."),
    click.option("--ramp-up", "ramp_up_s", type=duration, metavar="TIME", help="Closed loop: begin the requests evenly within this time."),
    click.option("--processes", type=click.IntRange(min=1), default=1, show_default=True, help="Processes that share the work, for more than one core can do."),
    click.option("--seed", type=int, default=0, show_default=True, help="Seed of arrivals and prompts."),
    click.option("--timeout", "timeout_s", type=duration, default=f"{defaults.TIMEOUT_S:g}s", show_default=True, metavar="TIME", help="For one whole answer."),
    click.option("--first-token-timeout", "first_token_s", type=duration, metavar="TIME", help="Until the first token."),
    click.option("--stall-timeout", "stall_s", type=duration, metavar="TIME", help="From one token to the next."),
    click.option("--drain", "drain_s", type=duration, metavar="TIME", help="What still runs so long after the last request was sent is given up, and has failed."),
))  # fmt: skip

prompts = _add((
    click.option("--dataset", "path", type=_FILE, help="Prompts: text, JSONL, ShareGPT JSON, or a trace (JSONL with timestamps). Default: made up."),
    click.option("--prompt", "text", help="One prompt for all requests."),
    click.option("--tokenizer", type=click.Path(exists=True, path_type=Path), help="Folder with the model's tokenizer.json, for exact lengths; without it words are counted."),
    click.option("--input-tokens", type=length, default="128", show_default=True, metavar="N[:DEV]", help="Length of made-up prompts."),
    click.option("--output-tokens", type=length, default="64", show_default=True, metavar="N[:DEV]", help="Tokens to ask for."),
    click.option("--prefix-tokens", type=click.IntRange(min=0), default=0, show_default=True, help="Beginning that made-up prompts share."),
    click.option("--prefix-groups", type=click.IntRange(min=1), default=1, show_default=True, help="Different shared beginnings."),
    click.option("--turns", type=click.IntRange(min=1), default=1, show_default=True, help="Requests of each made-up conversation."),
    click.option("--think", "think_s", type=duration, metavar="TIME", help="Between the turns of a conversation."),
    click.option("--speed", type=Number(0, min_open=True), help="Replay a trace so many times as fast. [default: 1]"),
    click.option("--prompts", "number", type=click.IntRange(min=1), help="Different made-up conversations. Default: as many as requests, at most 1000."),
    click.option("--max-seq-len", type=click.IntRange(min=2), help="Refuse prompts that are longer with their answer. Default: what the server says, where it does."),
))  # fmt: skip

verdict = _add((
    click.option("--slo", help="Objectives for goodput and capacity: ttft.p95=500ms,itl.p95=40ms (metrics ttft, itl, tpot, e2e; without streaming e2e only)."),
    click.option("--find-capacity", is_flag=True, help="Search the highest rate that meets --slo, from --rate or that of single requests on."),
    click.option("--max-error-rate", type=SHARE, default=0.0, show_default=True, help="Share of failed requests above which the exit code is 3."),
    click.option("--allow-invalid", is_flag=True, help="Exit with 0 even if the client was the bottleneck, or ended the search."),
    click.option("--max-client-cpu", type=SHARE, default=0.8, show_default=True, help="Share of a core per process above which the run is invalid."),
    click.option("--max-send-lag", "max_send_lag_s", type=duration, default="2ms", show_default=True, metavar="TIME", help="99th percentile above which the run is invalid."),
    click.option("--max-loop-lag", "max_loop_lag_s", type=duration, default="2ms", show_default=True, metavar="TIME", help="Likewise, of the time in which no socket is looked at."),
))  # fmt: skip

output = _add((
    click.option("-o", "--output", type=OUTPUT_FILE, help="Write the result with every request as JSON."),
    click.option("--html", type=OUTPUT_FILE, help="Write a report as one HTML page."),
    click.option("--csv", "csv_path", type=OUTPUT_FILE, help="Write one line per request."),
    click.option("--parquet", "parquet_path", type=OUTPUT_FILE, help="Write one row per request (extra: parquet)."),
    click.option("--aiperf", "aiperf_path", type=OUTPUT_FILE, help="Write a summary in the form of AIPerf's profile_export_aiperf.json."),
))  # fmt: skip
