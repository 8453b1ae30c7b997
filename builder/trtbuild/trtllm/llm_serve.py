"""The YAML file of the LLM API as text, and the `trtllm-serve` command that takes it.

Flags: LLM API specification 1.2. Which of file and flag wins changed between releases (0.3, fact 3), so a flag that has an argument in
the file is never given.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from trtbuild.trtllm.llm_arg_types import EVER, NEWEST, SINCE_1_2, Life
from trtbuild.trtllm.versions import Feature, Release

YAML_NAME = "llm_api.yaml"
SCRIPT_NAME = "serve.sh"
#: Port of trtllm-serve when none is said; it cannot pick a free one.
_DEFAULT_PORT = 8000


@dataclass(frozen=True, slots=True)
class Flag:
    """One option of `trtllm-serve`.

    Attributes:
        argument: the argument of the YAML file that means the same; empty: none.
        life: the releases that have it.
        default: what counts without it.
    """

    argument: str = ""
    life: Life = EVER
    default: str = ""


FLAGS: dict[str, Flag] = {
    "--config": Flag(life=SINCE_1_2),
    "--extra_llm_api_options": Flag(),
    "--backend": Flag(default="pytorch"),
    "--host": Flag(default="localhost"),
    "--port": Flag(default="8000"),
    "--max_batch_size": Flag("max_batch_size", default="2048"),
    "--max_num_tokens": Flag("max_num_tokens", default="8192"),
    "--max_seq_len": Flag("max_seq_len"),
    "--max_beam_width": Flag("max_beam_width", default="1"),
    "--tp_size": Flag("tensor_parallel_size", default="1"),
    "--pp_size": Flag("pipeline_parallel_size", default="1"),
    "--cp_size": Flag("context_parallel_size", life=SINCE_1_2, default="1"),
    "--ep_size": Flag("moe_expert_parallel_size"),
    "--cluster_size": Flag("moe_cluster_parallel_size"),
    "--gpus_per_node": Flag("gpus_per_node"),
    "--kv_cache_free_gpu_memory_fraction": Flag("kv_cache_config.free_gpu_memory_fraction", default="0.9"),
    "--kv_cache_dtype": Flag("kv_cache_config.dtype", life=SINCE_1_2, default="auto"),
    "--enable_attention_dp": Flag("enable_attention_dp", life=NEWEST),
    "--enable_chunked_prefill": Flag("enable_chunked_prefill", life=NEWEST),
    "--num_postprocess_workers": Flag("num_postprocess_workers", default="0"),
    "--reasoning_parser": Flag("reasoning_parser"),
    "--tool_parser": Flag(life=SINCE_1_2),
    "--tokenizer": Flag("tokenizer"),
    "--trust_remote_code": Flag("trust_remote_code"),
    "--served_model_name": Flag(life=NEWEST),
    "--chat_template": Flag(life=NEWEST),
    "--log_level": Flag(default="info"),
}


def yaml_text(arguments: Mapping[str, Any], release: Release) -> str:
    """Return the file for `trtllm-serve --config`, with a comment that says where it comes from."""
    head = (
        f"# Arguments of the LLM API of TensorRT-LLM {release}, made by trtbuild from trtbuild.yaml.\n"
        "# Another release may know other keys, and refuses to start on one that it does not know.\n"
    )
    return head + dump(arguments)


def dump(arguments: Mapping[str, Any]) -> str:
    """Return arguments as YAML, one value on one line, in the order given."""
    text: str = yaml.dump(dict(arguments), Dumper=_OneLine, sort_keys=False, width=float("inf"), allow_unicode=True)
    return text


class _OneLine(yaml.SafeDumper):
    """The safe dumper, except that a text of several lines is written on one, with escapes."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = '"' if "".join(value.splitlines()) != value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_OneLine.add_representer(str, _text)


def config_flag(release: Release) -> str:
    """Return the option that names the YAML file; both are the same where both exist."""
    return "--config" if release.has(Feature.CONFIG_FLAG) else "--extra_llm_api_options"


def serve_command(
    release: Release, arguments: Mapping[str, Any], *, model: str, config: str, host: str, port: int, nodes: int = 1
) -> list[str]:
    """Return the command line of `trtllm-serve`.

    Args:
        release: that will run it.
        arguments: what the YAML file holds.
        model: folder of the checkpoint.
        config: the YAML file.
        host: address to listen on.
        port: 0 means trtllm-serve's own default, since it picks no free one.
        nodes: machines that serve one model; several need its launcher.
    """
    flags = {config_flag(release): config, "--host": host, "--port": str(port or _DEFAULT_PORT)}
    for name in flags:
        assert FLAGS[name].life.state(release) != "absent", name
        assert FLAGS[name].argument.partition(".")[0] not in arguments, name
    launcher = ["trtllm-llmapi-launch"] if nodes > 1 else []
    return [*launcher, "trtllm-serve", model, *(part for flag in flags.items() for part in flag)]


def serve_script(command: list[str], release: Release) -> str:
    """Return a shell script that runs the command in the folder it lies in; further options are passed on."""
    words = " ".join(shlex.quote(word) for word in command)
    return (
        f"#!/bin/sh\n# Serve checkpoint/ with TensorRT-LLM {release} through the LLM API.\n"
        f'set -eu\ncd -- "$(dirname -- "$0")"\nexec {words} "$@"\n'
    )
