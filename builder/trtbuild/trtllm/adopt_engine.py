"""Taking over an engine that trtllm-build wrote elsewhere, such as in NVIDIA's container: checked like our own, and given a manifest.

What its config.json does not say is left open: which TensorRT and which GPU built it, unless a manifest beside it does, and whether its
weights are the checkpoint's.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from trtbuild import manifest
from trtbuild.errors import ToolFailed, TrtbuildError
from trtbuild.integrity import artifact_problems
from trtbuild.manifest import CHECKPOINT
from trtbuild.output import check_space, link_or_copy, staged_folder
from trtbuild.source import read_json
from trtbuild.targets.base import Job
from trtbuild.trtllm.artifact import read_artifact
from trtbuild.trtllm.build_check import check_engine
from trtbuild.trtllm.build_engine import ENGINE
from trtbuild.trtllm.build_options import requested
from trtbuild.trtllm.engine_fit import different_model

_HINT = (
    "build it again with the command that `trtbuild build` shows where the tool is missing, or correct trtbuild.yaml"
)


def check_foreign(job: Job, source: Path) -> list[str]:
    """Check an engine that was built elsewhere against a deployment; return notes.

    Raises:
        TrtbuildError: it is no engine, a file is missing or cut, or it is not what the deployment asks for: another release, cut, number
            format, limit or plugin; all that differs is named.
    """
    artifact = read_artifact(source)
    if found := artifact_problems(source):
        raise TrtbuildError(
            f"{source} is not whole: {manifest.worded(found)}",
            hint=f"copy the whole folder again; if trtllm-build wrote into it since, remove {source / manifest.NAME}",
        )
    try:
        notes = check_engine(job, source, requested(job))[1]
    except TrtbuildError as error:
        raise TrtbuildError(f"{source} cannot be taken over: {error.message}", hint=_HINT) from error
    if job.gpu is not None and artifact.sm not in (None, job.gpu.sm):
        raise TrtbuildError(
            f"{source} cannot be taken over: it was built for SM{artifact.sm}, and hardware.gpu is {job.gpu}",
            hint=_HINT,
        )
    return notes


def adopt_engine(job: Job, source: Path, folder: Path, *, in_place: bool) -> dict[str, Any]:
    """Take an engine over as folder/engine and return what the manifest records.

    Args:
        job: the resolved deployment.
        source: the engine; it stays as it is.
        folder: of the build, with the checkpoint.
        in_place: it lies where this build will replace it, so that links will do; else whoever owns it may write to it again.

    Raises:
        ToolFailed: it is of another checkpoint, which is good.
        TrtbuildError: see `check_foreign`; or the disk refuses.
    """
    notes = check_foreign(job, source)
    artifact, engine = read_artifact(source), check_engine(job, source, requested(job))[0]
    checkpoint = folder / CHECKPOINT
    if found := list(different_model(engine, read_json(checkpoint / "config.json"))):
        raise ToolFailed(f"{source} is not of this checkpoint: {'; '.join(found)}", hint=_HINT)
    nbytes = 0 if in_place else sum(file.stat().st_size for file in source.rglob("*") if file.is_file())
    check_space(folder / ENGINE, nbytes)
    with staged_folder(folder / ENGINE, needed=nbytes) as stage:
        shutil.copytree(
            source,
            stage,
            copy_function=link_or_copy if in_place else shutil.copy2,
            ignore=lambda _, names: [name for name in names if name.startswith(".") or name == manifest.NAME],
            dirs_exist_ok=True,
        )
        ranks = [stage / f"rank{rank}.engine" for rank in range(job.parallel.world_size)]
        record = {
            "tensorrt_llm": engine.version,
            "tensorrt_llm_asked": job.release.name,
            "tensorrt": artifact.tensorrt or None,
            "sm": artifact.sm,
            "driver": artifact.driver or None,
            "tp_size": job.parallel.tp_size,
            "pp_size": job.parallel.pp_size,
            "world_size": job.parallel.world_size,
            "adopted_from": str(source.resolve()),
            "ranks": [{"rank": rank, "bytes": file.stat().st_size} for rank, file in enumerate(ranks)],
            "engine_bytes": sum(file.stat().st_size for file in stage.iterdir() if file.name.startswith("rank")),
            "notes": notes,
        }
        manifest.write(stage, {**manifest.header("engine"), **record})
    return record
