"""What a model repository has to take over from a built TensorRT-LLM engine.

Knows the engine's config.json (`build_config` and `pretrained_config`); reads no weights.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.source import read_json

logger = logging.getLogger(__name__)


def check_engine(engine_dir: Path, checkpoint_config: Mapping[str, Any], *, max_batch_size: int) -> str:
    """Return the dtype of the engine's logits, and check what must fit.

    An engine that is not there yet, since it is built elsewhere, is taken to be built from the checkpoint with the same
    limits.

    Raises:
        UsageError: the repository would promise a larger batch than the engine takes.
        TrtbuildError: the folder holds no engine.
    """
    if not engine_dir.is_dir():
        logger.warning(
            "note: %s does not exist yet; its limits and logits dtype are taken from the checkpoint", engine_dir
        )
        return str(checkpoint_config["logits_dtype"])
    file = engine_dir / "config.json"
    config = read_json(file)
    build, pretrained = config.get("build_config"), config.get("pretrained_config")
    if not isinstance(build, dict) or not isinstance(pretrained, dict):
        raise TrtbuildError(
            f"{file} has no build_config and pretrained_config: {engine_dir} is not an engine folder",
            hint="name the folder that trtllm-build wrote",
        )
    if max_batch_size > build["max_batch_size"]:
        raise UsageError(
            f"limits.max_batch_size={max_batch_size} in trtbuild.yaml exceeds max_batch_size={build['max_batch_size']} in {file}",
            hint=f"use at most {build['max_batch_size']}, or build the engine for {max_batch_size}",
        )
    return str(pretrained.get("logits_dtype", "float32"))
