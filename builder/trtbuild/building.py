"""A build folder: trtbuild.yaml (resolved), checkpoint/ with the tokenizer inside, what the target makes of it (engine/, or llm_api.yaml and
serve.sh), manifest.json, and evaluation.json and .html where accuracy has limits.

Knows the order of the stages and what is kept between runs; how each is done is the business of `convert`, `evaluate` and `targets`.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild import manifest
from trtbuild.checks import check_deployment, without_effect
from trtbuild.convert.work import Work, work_of
from trtbuild.errors import UsageError
from trtbuild.evaluate.gate import check_gate, pass_gate
from trtbuild.init_file import render
from trtbuild.manifest import CHECKPOINT
from trtbuild.output import check_output, check_space, staged_folder, write_atomically
from trtbuild.spec import Deployment
from trtbuild.stages import EVALUATION, NAMES, STAGES, Stage, has_checkpoint, held, needed, stage_keys
from trtbuild.targets.base import Job, Target, check_job, load_target
from trtbuild.ways import only_ways_that_work

logger = logging.getLogger(__name__)

CONFIG = "trtbuild.yaml"


@dataclass(frozen=True, slots=True)
class Build:
    """One run: what is to be built, where, and with what."""

    work: Work
    job: Job
    target: Target
    keys: dict[str, str]
    output: Path
    memory_bytes: int
    quiet: bool

    @property
    def deployment(self) -> Deployment:
        """The resolved trtbuild.yaml."""
        return self.job.deployment


def build(
    deployment: Deployment,
    output: Path,
    *,
    force: bool,
    memory_bytes: int,
    quiet: bool,
    first: str | None = None,
    until: str = NAMES[-1],
) -> dict[str, Any]:
    """Build a deployment into a folder and return a summary.

    Stages whose inputs are what they were are kept, those that are missing are done. A stage of other inputs is replaced with `force` only.

    Args:
        deployment: what to build.
        output: the folder.
        force: replace stages of other inputs, or another build.
        memory_bytes: what the conversion may use above the interpreter.
        quiet: show no progress.
        first: do this stage and those behind it again; those before it must be there.
        until: the last stage that is done.

    Raises:
        UsageError: the target cannot be built like this, or a stage is skipped that was never done.
        TrtbuildError: the inputs are unusable, a tool fails, or the folder exists and is of other inputs.
        CheckFailed: the checkpoint is beyond a limit of the section `accuracy`; it stays in the hidden folder of unfinished work.
    """
    with only_ways_that_work(deployment):
        wishes = check_deployment(deployment)
        work = work_of(deployment)
        job, target = work.job(), load_target(deployment.target)
        notes = [*wishes, *work.notes, *check_job(job), *without_effect(deployment, calibrates=work.calibrates)]
    check_gate(work.source, deployment.accuracy)
    run = Build(work, job, target, stage_keys(work.key, deployment), output, memory_bytes, quiet)
    stages, there = needed(deployment, until), held(output)
    kept = _kept(run, stages, there, first)
    if [stage.name for stage in stages] == kept:
        _update_config(run)
        logger.info("%s is up to date", output)
        return _summary(run, kept)
    stale = [name for name in there if name not in kept and (there[name]["key"] != run.keys[name] or first)]
    if stale or not there:
        check_output(output, force=force, keep=(work.source.path,))
    size = work.nbytes
    if CHECKPOINT not in kept:
        check_space(output, size)
    if STAGES[-1] in stages and STAGES[-1].name not in kept:
        target.preflight(job, output)
    for note in dict.fromkeys(notes):
        logger.warning("note: %s", note)
    with staged_folder(output, work=run.keys["checkpoint"], needed=size) as stage_folder:
        _take_over(
            output, stage_folder, [] if not there else _stays(output, kept, deployment.target, is_stale=bool(stale))
        )
        entries = {name: there[name] for name in kept}
        for stage in stages:
            if stage.name not in kept:
                entries[stage.name] = _do(run, stage, stage_folder)
        (stage_folder / CONFIG).write_text(render(deployment), encoding="utf-8")
        _write_manifest(run, stage_folder, entries)
    return _summary(run, kept)


def _kept(run: Build, stages: tuple[Stage, ...], there: dict[str, dict[str, Any]], first: str | None) -> list[str]:
    """Return the names of the stages that need not be done: as long as they are whole and of the same inputs."""
    before = [stage.name for stage in stages if first is not None and NAMES.index(stage.name) < NAMES.index(first)]
    missing = [name for name in before if name not in there or there[name]["key"] != run.keys[name]]
    if missing:
        raise UsageError(
            f"--from {first} skips {missing[0]}, which {run.output} does not hold"
            + ("" if missing[0] not in there else " for these inputs"),
            hint=f"leave out --from, or use --from {missing[0]}",
        )
    if first is not None:
        return before
    return [stage.name for stage in stages if stage.name in there and there[stage.name]["key"] == run.keys[stage.name]]


def _stays(output: Path, kept: list[str], target: str, *, is_stale: bool) -> list[str]:
    """Return the entries of an existing build that go into the new one: what kept stages left, and when nothing is replaced all the rest."""
    mine = {name for stage in STAGES for name in stage.leaves(target)} | {CONFIG, manifest.NAME}
    left = [name for stage in STAGES if stage.name in kept for name in stage.leaves(target)]
    others = [] if is_stale else [entry.name for entry in output.iterdir() if entry.name not in mine]
    return [name for name in (*left, *others) if (output / name).exists()]


def _take_over(output: Path, folder: Path, names: list[str]) -> None:
    """Put entries of the existing build into the new one without copying: as hard links."""
    for name in names:
        source, place = output / name, folder / name
        if place.exists():
            shutil.rmtree(place) if place.is_dir() else place.unlink()
        if source.is_dir():
            shutil.copytree(source, place, copy_function=_link, symlinks=True)
        else:
            _link(str(source), str(place))


def _link(source: str, place: str) -> None:
    try:
        os.link(source, place)
    except OSError:
        shutil.copy2(source, place)


def _do(run: Build, stage: Stage, folder: Path) -> dict[str, Any]:
    """Do one stage in the folder under construction and return its entry for the manifest."""
    start = time.perf_counter()
    record = _RUN[stage.name](run, folder)
    return {
        "key": run.keys[stage.name],
        "outputs": [name for name in stage.leaves(run.deployment.target) if (folder / name).exists()],
        "seconds": round(time.perf_counter() - start, 3),
        **record,
    }


def _checkpoint(run: Build, folder: Path) -> dict[str, Any]:
    place, key = folder / CHECKPOINT, run.keys["checkpoint"]
    place.mkdir(exist_ok=True)
    if has_checkpoint(place, key):
        written = manifest.read(place, kind="checkpoint")
    else:
        written = run.work.write(place, key=key, memory_bytes=run.memory_bytes, quiet=run.quiet)
    return {"source": written["source"], "stages": written["seconds"], "peak_rss_bytes": written["peak_rss_bytes"]}


def _accuracy(run: Build, folder: Path) -> dict[str, Any]:
    pass_gate(
        folder / CHECKPOINT,
        run.deployment.accuracy,
        called=run.output / CHECKPOINT,
        report=folder / EVALUATION,
        quiet=run.quiet,
    )
    return {}


def _engine(run: Build, folder: Path) -> dict[str, Any]:
    return run.target.finish(run.job, folder, quiet=run.quiet)


_RUN = {"checkpoint": _checkpoint, "accuracy": _accuracy, "engine": _engine}


def _write_manifest(run: Build, folder: Path, entries: dict[str, dict[str, Any]]) -> None:
    manifest.write(
        folder,
        {
            **manifest.header("build"),
            "target": run.deployment.target,
            "tensorrt_llm": run.job.release.name if run.deployment.target != "reference" else None,
            "stages": entries,
        },
    )


def _update_config(run: Build) -> None:
    """Write the resolved trtbuild.yaml again when something changed that no stage depends on."""
    file, text = run.output / CONFIG, render(run.deployment)
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        write_atomically(file, text)


def _summary(run: Build, kept: list[str]) -> dict[str, Any]:
    written = manifest.read(run.output, kind="build")
    return {
        "output": str(run.output),
        "checkpoint": str(run.output / CHECKPOINT),
        "target": run.deployment.target,
        "unchanged": list(written["stages"]) == kept,
        "stages": {name: "kept" if name in kept else "done" for name in written["stages"]},
        "manifest": written,
    }
