"""From the options of `trtbuild bench` to a load test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trtbuild.errors import UsageError
from trtbuild_client.load.datasets import Lengths
from trtbuild_client.load.session import Files, LoadTest
from trtbuild_client.load.settings import Load, Prompts
from trtbuild_client.load.slo import parse
from trtbuild_client.load.target import Target
from trtbuild_client.load.tokens import tokenizer_file
from trtbuild_client.load.validity import Allowed
from trtbuild_client.options import reach
from trtbuild_client.output_file import Named
from trtbuild_client.parameters import PARAMETERS

#: Options that are taken over by their name.
_LOAD = (
    "concurrency", "rates", "ramp", "arrivals", "burstiness", "requests", "duration_s", "processes", "seed", "is_streaming",
    "timeout_s", "first_token_s", "stall_s", "drain_s",
)  # fmt: skip
_PROMPTS = (
    "path",
    "text",
    "tokenizer",
    "prefix_tokens",
    "prefix_groups",
    "turns",
    "speed",
    "number",
    "max_seq_len",
    "seed",
)

_LENGTH, _STREAM, _TEXT = "--output-tokens", "--stream or --no-stream", "--prompt, --dataset or --input-tokens"
#: Parameter, tensor or field of a request, in every API -> the option that sets it. --param must not say otherwise, or say it in vain.
_OWN = {
    "max_tokens": _LENGTH, "request_output_len": _LENGTH, "sampling_param_max_tokens": _LENGTH, "max_completion_tokens": _LENGTH,
    "stream": _STREAM, "streaming": _STREAM,
    "text_input": _TEXT, "prompt": _TEXT, "messages": _TEXT, "input_ids": _TEXT,
    "model": "--model", "timeout": "--timeout",
}  # fmt: skip
#: Those that let answers be shorter, or that --fixed-length sets.
_FREE = ("min_tokens", "min_length", "ignore_eos")


def from_options(given: Mapping[str, Any], *, show: Callable[[str], None] | None) -> tuple[LoadTest, Files]:
    """Return the load test that was asked for, and where its results go.

    Raises:
        UsageError: options that contradict each other.
        ClientError: values that cannot be.
    """
    _check_together(given)
    warmup_requests, warmup_s = given["warmup"]
    allowed = Allowed(given["max_client_cpu"], given["max_send_lag_s"] * 1e9, given["max_loop_lag_s"] * 1e9)
    load = Load(
        **{name: given[name] for name in _LOAD if given[name] is not None},
        warmup_requests=warmup_requests,
        warmup_s=warmup_s,
        ramp_up_s=given["ramp_up_s"] or 0.0,
        allowed=allowed,
    )
    prompts = Prompts(
        **{name: given[name] for name in _PROMPTS},
        input_tokens=Lengths(*given["input_tokens"]),
        output_tokens=Lengths(*given["output_tokens"]),
        think_s=given["think_s"] or 0.0,
    )
    files = Files(given["output"], given["html"], given["csv_path"], given["parquet_path"], given["aiperf_path"])
    files.check(_inputs(given))
    objectives = () if given["slo"] is None else parse(given["slo"])
    return LoadTest(_target(given), load, prompts, objectives, show, given["wait_s"]), files


def _check_together(given: Mapping[str, Any]) -> None:
    """Refuse options that would be ignored.

    Raises:
        UsageError: an option without another that it needs, or two that exclude each other.
    """
    is_open = bool(given["rates"] or given["ramp"] or given["find_capacity"])
    has_turns = given["turns"] > 1 or given["path"] is not None
    for option, is_given, is_used, needed, hint in (
        ("--find-capacity", given["find_capacity"], given["slo"] is not None, "--slo",
            "Say what is to be met: --slo ttft.p95=500ms,itl.p95=40ms."),
        ("--arrivals", given["arrivals"] is not None, is_open, "an open loop", "Give --rate, --ramp or --find-capacity."),
        ("--burstiness", given["burstiness"] is not None, given["arrivals"] == "gamma", "--arrivals gamma",
            "Other arrivals have no shape that could be set."),
        ("--ramp-up", given["ramp_up_s"] is not None, not is_open, "a closed loop", "For an open loop there is --ramp."),
        ("--speed", given["speed"] is not None, given["path"] is not None, "a trace", "Give one with --dataset."),
        ("--think", given["think_s"] is not None, has_turns, "turns to think between", "Give --turns, or conversations as --dataset."),
        ("--prefix-groups", given["prefix_groups"] > 1, given["prefix_tokens"] > 0, "--prefix-tokens",
            "Say how many tokens are shared."),
    ):  # fmt: skip
        if is_given and not is_used:
            raise UsageError(f"{option} without {needed}", hint=hint)
    if given["path"] and given["text"]:
        raise UsageError("--dataset and --prompt at once", hint="Give one of them.")


def _inputs(given: Mapping[str, Any]) -> list[Named]:
    """Return the files that are read, by the option that names them."""
    tokenizer = given["tokenizer"]
    return [
        ("--dataset", given["path"]),
        ("--tokenizer", None if tokenizer is None else tokenizer_file(tokenizer)),
        ("--tls-ca", given["tls_ca"]),
        ("--tls-cert", given["tls_cert"]),
        ("--tls-key", given["tls_key"]),
    ]


def _parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what --param says.

    Raises:
        UsageError: a name that is given twice, or that an option of its own sets.
    """
    parameters: dict[str, Any] = {}
    for name, value in given["parameters"]:
        if name in _OWN:
            raise UsageError(f"--param {name}={value}", hint=f"It is set by {_OWN[name]}: give that.")
        if name in _FREE and given["fixed_length"]:
            raise UsageError(
                f"--param {name}={value} with --fixed-length, which is the default and sets it",
                hint="Give --free-length to set it yourself.",
            )
        if name in parameters:
            raise UsageError(f"--param {name} twice: {parameters[name]} and {value}", hint="Give it once.")
        parameters[name] = value
    return parameters


def _target(given: Mapping[str, Any]) -> Target:
    parameters = _parameters(given)
    target = Target(
        url=given["url"],
        model=given["model"],
        api=given["api"],
        is_streaming=given["is_streaming"],
        headers=dict(given["headers"]),
        **reach(dict(given)),
        has_fixed_length=given["fixed_length"],
        is_cumulative=given["cumulative"],
        streams_per_connection=given["streams_per_connection"],
        timeout_s=given["timeout_s"],
        transport=given["transport"],
    )
    from dataclasses import replace

    if target.kind.startswith("openai"):
        fixed = {"ignore_eos": True} if given["fixed_length"] else {}
        return replace(target, tensors={**fixed, **parameters})
    named = {name: value for name, value in parameters.items() if name in PARAMETERS}
    return replace(
        target, options=named, tensors={name: each for name, each in parameters.items() if name not in PARAMETERS}
    )
