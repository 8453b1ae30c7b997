"""Puts finished checkpoints where the user asked for them: one folder, or one subfolder per target from one read."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trtbuild import manifest
from trtbuild.convert.plan import ConversionPlan
from trtbuild.convert.run import convert_into
from trtbuild.output import check_output, check_space, staged_folder
from trtbuild.spec import Deployment


def write_checkpoints(
    plan: ConversionPlan, deployments: Sequence[Deployment], output: Path, *, force: bool, quiet: bool
) -> dict[str, dict[str, Any]]:
    """Convert once and write a checkpoint folder per deployment; return folder -> manifest.

    Args:
        plan: the conversion, the same for all deployments.
        deployments: one per target.
        output: the folder; with several deployments each gets the subfolder of its target's name.
        force: replace an existing folder.
        quiet: show no progress.

    Raises:
        TrtbuildError: the output exists, the disk is too small, or the conversion failed; nothing is left then.
    """
    check_output(output, force=force, keep=(plan.source.path,))
    check_space(output, plan.write_bytes * len(deployments))
    single = len(deployments) == 1
    manifests: dict[str, dict[str, Any]] = {}
    with staged_folder(output) as stage:
        first = stage if single else stage / deployments[0].target
        first.mkdir(exist_ok=True)
        written = convert_into(plan, deployments[0], first, quiet=quiet)
        manifests[str(output if single else output / deployments[0].target)] = written
        for deployment in deployments[1:]:
            folder = stage / deployment.target
            shutil.copytree(first, folder)
            copy = {**written, "target": deployment.target, "deployment": deployment.model_dump(mode="json")}
            manifest.write(folder, copy)
            manifests[str(output / deployment.target)] = copy
    return manifests
