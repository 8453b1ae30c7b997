"""Refuses a folder that holds a checkpoint of other inputs, by the names of what changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtbuild import manifest
from trtbuild.errors import TrtbuildError
from trtbuild.spec import Deployment


def refuse_changes(output: Path, folders: Mapping[Path, Deployment], source: Mapping[str, Any], *, key: str) -> None:
    """Refuse checkpoints of other inputs; what changed is named as far as their manifests say it.

    Args:
        output: as it was typed.
        folders: folder of a checkpoint -> what it would be converted for now.
        source: the model folder now, as `manifest.source_identity` returns it.
        key: identifies the inputs now.

    Raises:
        TrtbuildError: one of them is of other inputs, or its manifest cannot be read.
    """
    from trtbuild.stage_changes import changes_of_checkpoint  # needs this package
    from trtbuild.stages import stage_inputs

    why: dict[str, None] = {}
    is_other = False
    for folder, deployment in folders.items():
        if not (folder / manifest.NAME).is_file():
            continue
        written = manifest.read(folder, kind="checkpoint")
        is_other |= written["inputs_key"] != key
        why |= dict.fromkeys(changes_of_checkpoint(written, stage_inputs(deployment)[manifest.CHECKPOINT], source))
    if is_other:
        raise TrtbuildError(
            f"{output} holds a checkpoint of other inputs{': ' * bool(why)}{'; '.join(why)}",
            hint="choose another output folder with -o, or replace it with --force",
        )
