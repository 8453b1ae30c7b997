"""model.yaml: the arguments of the LLM API, and what Triton's configuration must agree with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

#: Keys that are not arguments of the LLM API.
RESERVED = "triton_config"


@dataclass(frozen=True)
class Settings:
    """What model.yaml says.

    Attributes:
        arguments: keyword arguments of `tensorrt_llm.LLM`.
        cancellation_check_period_ms: how often to look for clients that have gone.
    """

    arguments: dict[str, Any]
    cancellation_check_period_ms: int


def read_settings(file: Path, config: Mapping[str, Any]) -> Settings:
    """Read model.yaml and compare it with Triton's configuration of the model.

    Args:
        file: model.yaml.
        config: the configuration, as Triton hands it to `initialize`.

    Raises:
        ValueError: it is no mapping, names no model, or says something else than config.pbtxt. A server that takes the one for the other
            would let streams hang until their clients give up.
    """
    data = yaml.safe_load(file.read_text(encoding="utf-8"))
    if not isinstance(data, dict) or not data.get("model"):
        raise ValueError(f"{file} must be a mapping with the key 'model'")
    ours = data.pop(RESERVED, None)
    if not isinstance(ours, dict) or "decoupled" not in ours:
        raise ValueError(f"{file} has no {RESERVED} with the key 'decoupled'")
    theirs = {
        "decoupled": bool(config.get("model_transaction_policy", {}).get("decoupled", False)),
        "max_batch_size": int(config.get("max_batch_size", 0)),
    }
    for key, value in theirs.items():
        if ours.get(key, 0) != value:
            raise ValueError(
                f"{RESERVED}.{key} is {ours.get(key, 0)} in {file}, and config.pbtxt says {value}: set both to the same value"
            )
    if theirs["max_batch_size"] != 0:
        raise ValueError(f"max_batch_size is {theirs['max_batch_size']}, need 0: the LLM API makes the batches itself")
    return Settings(data, int(ours.get("cancellation_check_period_ms", 100)))


def check_processes(environment: Mapping[str, str]) -> None:
    """Refuse a server that mpirun has started several times.

    Each copy would load the whole model. `trtllm-llmapi-launch` starts one copy and makes workers of the other processes.

    Raises:
        ValueError: there are several copies.
    """
    copies = environment.get("OMPI_COMM_WORLD_SIZE", "1")
    if copies not in ("", "1") and "TLLM_SPAWN_PROXY_PROCESS" not in environment:
        raise ValueError(
            f"mpirun started this server {copies} times, and each would load the model: start one server, which starts its own workers "
            "(launch_triton_server.py --no-mpi), or put trtllm-llmapi-launch before tritonserver"
        )
