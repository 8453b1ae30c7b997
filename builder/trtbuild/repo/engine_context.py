"""What a context needs to know of an engine: the release that serves it, its limits, its parameters and where its instances run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.repo.engine_settings import engine_parameters
from trtbuild.repo.placement import placement
from trtbuild.repo.xgrammar import check_tokenizer_info
from trtbuild.spec import Deployment
from trtbuild.trtllm.engine import Engine
from trtbuild.trtllm.versions import DEFAULT, Feature, Release, find_release

logger = logging.getLogger(__name__)

#: Periods of `tensorrt_llm` that no field sets: the backend's own defaults, written out (Triton specification 1.8).
PERIODS_MS = {"cancellation_check_period_ms": 100, "stats_check_period_ms": 100}


def open_engine(folder: Path | None, *, is_later: bool = False) -> Engine | None:
    """Return the engine, None when it is built, or copied to its folder, later.

    Args:
        folder: of the engine.
        is_later: whether it need not be there yet; what is there counts.

    Raises:
        UsageError: no folder is named.
        TrtbuildError: the folder holds no engine.
    """
    if folder is None:
        raise UsageError("the target tensorrt needs the folder of an engine", hint="name it with --engine")
    if is_later and not (folder / "config.json").is_file():
        logger.warning(
            "note: %s holds no engine yet; its limits and logits dtype are taken from the checkpoint", folder
        )
        return None
    if not folder.is_dir():
        raise TrtbuildError(
            f"{folder} is no engine folder: it {'is a file' if folder.exists() else 'does not exist'}",
            hint="build the engine (`trtbuild build`) or name its folder with --engine; --engine-later renders for one that comes later",
        )
    return Engine.open(folder)


def serving_release(deployment: Deployment, engine: Engine | None) -> Release:
    """Return the release that serves: the one that is stated, else the one that built the engine, else the default.

    Raises:
        UsageError: it is not known, or serves no engines.
    """
    built_by = engine.version if engine is not None else ""
    release = find_release(deployment.tensorrt_llm or built_by or DEFAULT)
    if deployment.target == "tensorrt" and not release.has(Feature.ENGINE):
        raise UsageError(
            f"TensorRT-LLM {release} serves no engines (target tensorrt)",
            hint=f"set tensorrt_llm to {DEFAULT} or an older one, or use --target pytorch",
        )
    return release


def engine_values(
    deployment: Deployment,
    engine: Engine | None,
    release: Release,
    seen: Callable[[Path], str],
    folders: Mapping[str, Path],
) -> dict[str, Any]:
    """Return the fields of an engine's core: its parameters, and where its instances run."""
    info, place = deployment.serving.xgrammar_tokenizer_info, placement(deployment)
    paths = {"engine": seen(folders["engine_dir"]), "tokenizer": seen(folders["tokenizer_dir"])}
    if info is not None:
        check_tokenizer_info(Path(info))
        paths["xgrammar"] = seen(Path(info))
    return {
        "core_instances": place.instances,
        "environment": place.environment,
        "world_size": place.world_size,
        "engine_parameters": engine_parameters(deployment, engine, release, paths=paths, periods_ms=PERIODS_MS),
    }


def batch_and_logits(
    engine: Engine | None, checkpoint_config: Mapping[str, Any], deployment: Deployment, default: int
) -> tuple[str, int]:
    """Return the dtype of the engine's logits and how large a batch may be: what was asked for, or what it was built for.

    An engine that is not there yet is taken to be built from the checkpoint with the same limits.

    Raises:
        UsageError: the repository would promise what the engine does not have.
    """
    if engine is None:
        return deployment.engine.logits_dtype or str(checkpoint_config["logits_dtype"]), default
    asked = deployment.limits.max_batch_size
    if asked is not None and asked > engine.max_batch_size:
        raise UsageError(
            f"limits.max_batch_size={asked} in trtbuild.yaml exceeds max_batch_size={engine.max_batch_size} in "
            f"{engine.path / 'config.json'}",
            hint=f"use at most {engine.max_batch_size}, or build the engine for {asked}",
        )
    return engine.logits_dtype, asked or engine.max_batch_size
