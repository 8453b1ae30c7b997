"""Puts finished checkpoints where the user asked for them: one folder, or one subfolder per target from one read."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trtbuild import manifest
from trtbuild.convert.changed import refuse_changes
from trtbuild.convert.plan import ConversionPlan
from trtbuild.convert.run import convert_all, inputs_key, source_identity, verify_source, write_bytes
from trtbuild.names import LAYOUTS
from trtbuild.output import check_output, check_space, drop_unfinished, staged_folder
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
            for target in _one_per_layout(deployments):
                verify_source(plan, target, found[str(folders[target])]["inputs_sha256"], quiet=quiet)
        drop_unfinished(output)
        logger.info("%s is up to date", output)
        return found
    needed = sum(write_bytes(plan, each.target) for each in deployments)
    check_output(output, force=True, keep=(plan.source.path,))  # before --force is suggested
    if not force:
        refuse_changes(
            output, {folders[each.target]: each for each in deployments}, source_identity(plan, deployments[0]), key=key
        )
    check_output(output, force=force, keep=(plan.source.path,))
    check_space(output, needed + plan.recipe_bytes)
    manifests: dict[str, dict[str, Any]] = {}
    with staged_folder(output, work=key, needed=needed) as stage:
        stages = {each.target: stage if single else stage / each.target for each in deployments}
        for each in stages.values():
            each.mkdir(exist_ok=True)
        firsts = _one_per_layout(deployments)
        places = [(each, stages[each.target]) for each in deployments if each.target in firsts]
        results = convert_all(plan, places, key=key, memory_bytes=memory_bytes, quiet=quiet)
        written = {LAYOUTS[each.target]: result for (each, _), result in zip(places, results, strict=True)}
        for deployment in deployments:
            result, folder = written[LAYOUTS[deployment.target]], stages[deployment.target]
            if deployment.target not in firsts:
                shutil.copytree(stages[result["target"]], folder, dirs_exist_ok=True)
                result = {**result, "target": deployment.target, "deployment": deployment.as_dict()}
                manifest.write(folder, result)
            manifests[str(folders[deployment.target])] = result
    return manifests


def _one_per_layout(deployments: Sequence[Deployment]) -> list[str]:
    """Return the targets that are written; another one of the same layout is a copy of it."""
    firsts: dict[str, str] = {}
    for deployment in deployments:
        firsts.setdefault(LAYOUTS[deployment.target], deployment.target)
    return list(firsts.values())


def _finished(folders: Mapping[str, Path], key: str) -> dict[str, dict[str, Any]] | None:
    """Return the manifests if all folders are there and of the same inputs."""
    found = {}
    for folder in folders.values():
        if not (folder / manifest.NAME).is_file() or not (folder / "config.json").is_file():
            return None
        written = manifest.read(folder, kind="checkpoint")
        if written["inputs_key"] != key:
            return None
        if problems := manifest.damage(folder, written.get("files")):
            logger.warning("%s is damaged: %s", folder, manifest.worded(problems))
            return None
        found[str(folder)] = written
    return found
