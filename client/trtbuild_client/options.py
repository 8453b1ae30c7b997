"""Command line options that the verbs talking to a server share. Knows click; the rest of the package does not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from trtbuild_client import defaults
from trtbuild_client.durations import FORMS, LONGEST, parse_ns
from trtbuild_client.parameters import PARAMETERS, Options

F = TypeVar("F", bound=Callable[..., Any])


class Number(click.FloatRange):
    """A number within a range. click's own types take nan, which is within every range, and inf where a range has no end."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number.

        Raises:
            click.BadParameter: it is none, not finite, or outside the range.
        """
        number = float(click.FLOAT.convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"'{value}' is no finite number in the range {self._describe_range()}.", param, ctx)
        return float(super().convert(number, param, ctx))


#: A share, from none to all.
SHARE = Number(0, 1)


def duration(text: str) -> float:
    """Return a time in seconds, written as 5, 0.5, 5s, 500ms, 200us, 2m or 1h.

    Raises:
        click.BadParameter: anything but a time above 0, or one that is too long.
    """
    time_ns = parse_ns(text)
    if time_ns is None:
        raise click.BadParameter(f"'{text}' is no time above 0 and at most {LONGEST}: write 5, 0.5, {FORMS}.")
    return time_ns / 1e9


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise click.BadParameter(
            f"'{text}' is no finite number: servers take none else (as a text, write '\"{text}\"')."
        )
    return number


def name_value(text: str) -> tuple[str, Any]:
    """Return (NAME, VALUE) of NAME=VALUE, where VALUE is JSON or else plain text.

    Raises:
        click.BadParameter: there is no name or no value, or a number that is not finite.
    """
    name, _, value = text.partition("=")
    if not (name and value):
        raise click.BadParameter(f"'{text}' is not NAME=VALUE.")
    try:
        return name, json.loads(value, parse_float=_finite, parse_constant=_finite)
    except ValueError:  # not JSON: the text itself is meant
        return name, value


def server(function: F) -> F:
    """Add --url, --model and --timeout; the command receives `url`, `model`, `timeout_s`."""
    for decorate in (
        click.option(
            "--timeout",
            "timeout_s",
            type=duration,
            metavar="TIME",
            default=f"{defaults.TIMEOUT_S:g}s",
            show_default=True,
            help="Time for one whole answer, in seconds or with a unit (500ms, 2m).",
        ),
        click.option("--model", default=defaults.MODEL, show_default=True, help="Model that takes and gives text."),
        click.option(
            "--url",
            default=defaults.URL,
            show_default=True,
            help="HOST:PORT of the server's gRPC endpoint, or http://HOST:PORT of its HTTP endpoint.",
        ),
    ):
        function = decorate(function)
    return function


def access(function: F) -> F:
    """Add how an encrypted or guarded server is reached; the command receives `**access`, for `reach`."""
    file = click.Path(exists=True, dir_okay=False, path_type=Path)
    for decorate in (
        click.option("--tls-key", type=file, help="PEM file with the key of --tls-cert."),
        click.option("--tls-cert", type=file, help="PEM file with which this client shows who it is."),
        click.option("--tls-ca", type=file, help="PEM file of the authority that the server's certificate is from."),
        click.option(
            "--tls", is_flag=True, help="Encrypt, and believe the system's authorities (also grpcs://, https://)."
        ),
        click.option(
            "--token",
            envvar="TRTBUILD_TOKEN",
            metavar="TOKEN",
            help="Bearer token; better in $TRTBUILD_TOKEN than here.",
        ),
    ):
        function = decorate(function)
    return function


def waiting(function: F) -> F:
    """Add --wait; the command receives `wait_s`, for `readiness.wait_until_ready`."""
    return click.option(
        "--wait",
        "wait_s",
        type=duration,
        metavar="TIME",
        help="Wait for so long until the server answers and its model is loaded, instead of failing at once.",
    )(function)


def reach(given: dict[str, Any]) -> dict[str, Any]:
    """Take the options of `access` out of all that a command received; return keyword arguments of `Client`."""
    from trtbuild_client.connection import Tls

    token, tls = given.pop("token"), given.pop("tls")
    ca, cert, key = (given.pop(name) for name in ("tls_ca", "tls_cert", "tls_key"))
    return {"token": token, "tls": Tls(ca=ca, cert=cert, key=key) if tls or ca or cert or key else None}


def sampling(function: F) -> F:
    """Add the sampling options; the command receives `**sampling`, for `split`."""
    for decorate in (
        click.option(
            "--param",
            "parameters",
            type=name_value,
            metavar="NAME=VALUE",
            multiple=True,
            help="Any other input of the model, such as min_tokens=8 (repeatable).",
        ),
        click.option("--seed", type=int, help="Seed of the random numbers."),
        click.option(
            "--top-p",
            type=Number(0, 1, min_open=True),
            help="Sample from the most likely tokens that add up to this probability.",
        ),
        click.option("--top-k", type=int, help="Sample from this many most likely tokens; 1 is greedy."),
        click.option("--temperature", type=Number(0), help="Randomness; has an effect only with --top-k or --top-p."),
        click.option(
            "--max-tokens", type=int, default=defaults.MAX_TOKENS, show_default=True, help="Most tokens to generate."
        ),
    ):
        function = decorate(function)
    return function


def load(function: F) -> F:
    """Add what a probe sends and how: `requests`, `concurrency`, `warmup`, `prompts`, `unique_prompts`."""
    for decorate in (
        click.option(
            "--unique-prompts", is_flag=True, help="Number the prompts, so that none finds its blocks in the KV cache."
        ),
        click.option(
            "--prompt-file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="UTF-8 text with one prompt per line, used in turn, instead of --prompt.",
        ),
        click.option("--prompt", default=defaults.PROMPT, show_default=True, help="Prompt of every request."),
        click.option(
            "--warmup", type=int, default=2, show_default=True, help="Requests sent before; marked, not counted."
        ),
        click.option("--concurrency", type=int, default=1, show_default=True, help="Requests in flight at once."),
        click.option("--requests", type=int, default=16, show_default=True, help="Measured requests."),
    ):
        function = decorate(function)
    return function


def extras(function: F) -> F:
    """Add what a probe finds out besides, and its limits; the command receives them in `**given`, for `beside`."""
    for metric in reversed(("ttft", "itl", "tpot", "e2e")):
        for percentile in (99, 95, 90, 50):
            function = click.option(
                f"--max-{metric}-p{percentile}",
                type=duration,
                metavar="TIME",
                hidden=percentile != 95,
                help=f"Highest p95 of {metric} that is still well (also -p50, -p90, -p99); above it the exit code is 3.",
            )(function)
    for decorate in (
        click.option(
            "--prompt-lengths",
            type=_numbers,
            default="",
            metavar="WORDS,...",
            help="Also send new prompts of these lengths.",
        ),
        click.option(
            "--cache", "has_cache", is_flag=True, help="Also send prompts twice: is the second first token earlier?"
        ),
        click.option("--no-metrics", is_flag=True, help="Do not look for the server's metrics."),
        click.option(
            "--metrics-url",
            default="",
            metavar="HOST:PORT",
            help="The server's metrics; usually port 8002, which is tried.",
        ),
    ):
        function = decorate(function)
    return function


def _numbers(text: str) -> tuple[int, ...]:
    words = [word for word in text.split(",") if word.strip()]
    if not all(word.strip().isdecimal() for word in words):
        raise click.BadParameter(f"'{text}' is no list of numbers: write 128,1024.")
    return tuple(int(word) for word in words)


def beside(given: dict[str, Any]) -> Any:
    """Take the options of `extras` out of all that a command received; return `probing.Extras`."""
    from trtbuild_client.probing import Extras
    from trtbuild_client.stats import PERCENTILES
    from trtbuild_client.thresholds import METRICS, Threshold

    limits = [
        Threshold(metric, percentile, limit_s * 1e9)
        for metric in METRICS
        for percentile in PERCENTILES
        if (limit_s := given.pop(f"max_{metric}_p{percentile}")) is not None
    ]
    address, is_off = given.pop("metrics_url"), given.pop("no_metrics")
    return Extras(None if is_off else address, given.pop("has_cache"), given.pop("prompt_lengths"), limits)


def split(parameters: tuple[tuple[str, Any], ...], **given: Any) -> tuple[Options, dict[str, Any]]:
    """Return (options, tensors): what the client knows by name, and other inputs of the model."""
    named = {**given, **dict(parameters)}
    options = {name: value for name, value in named.items() if name in PARAMETERS}
    # The keys are those of Options by the line above; their values are checked by the client.
    return cast(Options, options), {name: value for name, value in named.items() if name not in PARAMETERS}
