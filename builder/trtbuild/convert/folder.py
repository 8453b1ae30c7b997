"""Puts finished checkpoints where the user asked for them: one folder, or one subfolder per target from one read."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trtbuild import manifest
from trtbuild.convert.plan import ConversionPlan
from trtbuild.convert.run import convert_into, inputs_key, verify_source
from trtbuild.output import check_output, check_space, staged_folder
from trtbuild.source import read_json
from trtbuild.spec import Deployment

logger = logging.getLogger(__name__)


def write_checkpoints(
    plan: ConversionPlan,
    deployments: Sequence[Deployment],
    output: Path,
    *,
    force: bool,
    verify_inputs: bool,
    memory_bytes: int,
    quiet: bool,
) -> dict[str, dict[str, Any]]:
    """Convert once and write a checkpoint folder per deployment; return folder -> manifest.

    Folders of the very same inputs are left as they are; `force` writes them again.

    Args:
        plan: the conversion, the same for all deployments.
        deployments: one per target.
        output: the folder; with several deployments each gets the subfolder of its target's name.
        force: replace an existing folder.
        verify_inputs: compare the digests of the inputs before folders are taken for up to date.
        memory_bytes: what the conversion may use above the interpreter.
        quiet: show no progress.

    Raises:
        TrtbuildError: the output exists and is of other inputs, the disk is too small, or the conversion failed.
    """
    single = len(deployments) == 1
    folders = {each.target: output if single else output / each.target for each in deployments}
    key = inputs_key(plan, deployments, "checkpoint")
    if not force and (found := _finished(folders, key)) is not None:
        if verify_inputs:
            verify_source(plan, next(iter(found.values()))["inputs_sha256"], quiet=quiet)
        logger.info("%s is up to date", output)
        return found
    needed = plan.write_bytes * len(deployments)
    check_output(output, force=force, keep=(plan.source.path,))
    check_space(output, needed)
    manifests: dict[str, dict[str, Any]] = {}
    with staged_folder(output, work=key, needed=needed) as stage:
        first = stage if single else stage / deployments[0].target
        first.mkdir(exist_ok=True)
        written = convert_into(plan, deployments[0], first, key=key, memory_bytes=memory_bytes, quiet=quiet)
        manifests[str(folders[deployments[0].target])] = written
        for deployment in deployments[1:]:
            folder = stage / deployment.target
            shutil.copytree(first, folder, dirs_exist_ok=True)
            copy = {**written, "target": deployment.target, "deployment": deployment.model_dump(mode="json")}
            manifest.write(folder, copy)
            manifests[str(folders[deployment.target])] = copy
    return manifests


def _finished(folders: Mapping[str, Path], key: str) -> dict[str, dict[str, Any]] | None:
    """Return the manifests if all folders are there and of the same inputs."""
    found = {}
    for folder in folders.values():
        if not (folder / manifest.NAME).is_file() or not (folder / "config.json").is_file():
            return None
        written = read_json(folder / manifest.NAME)
        if written.get("inputs_key") != key or written.get("kind") != "checkpoint":
            return None
        found[str(folder)] = written
    return found
