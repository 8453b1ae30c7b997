"""A build folder: trtbuild.yaml (resolved), checkpoint/ with the tokenizer inside, what the target makes of it (engine/, or llm_api.yaml and
serve.sh), manifest.json, and evaluation.json and .html where accuracy has limits.

Knows the order of the stages and what is kept between runs; how each is done is the business of `convert`, `evaluate` and `targets`.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild import manifest
from trtbuild.checks import check_deployment, without_effect
from trtbuild.convert.work import Work, work_of
from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.evaluate.gate import check_gate, pass_gate
from trtbuild.init_file import render
from trtbuild.integrity import CONFIG, Held, held
from trtbuild.manifest import CHECKPOINT
from trtbuild.output import (
    check_output,
    check_space,
    drop_unfinished,
    is_unfinished,
    link_or_copy,
    staged_folder,
    write_atomically,
)
from trtbuild.repo.planned import tokenizer_notes
from trtbuild.spec import Deployment
from trtbuild.stage_changes import changes
from trtbuild.stages import EVALUATION, NAMES, STAGES, Stage, has_checkpoint, needed, stage_inputs, stage_keys
from trtbuild.targets.adopted import Adopted
from trtbuild.targets.base import Job, Target, check_job, load_target
from trtbuild.ways import only_ways_that_work

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Build:
    """One run: what is to be built, where, and with what."""

    work: Work
    job: Job
    target: Target
    inputs: dict[str, dict[str, Any]]
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
    engine: Path | None = None,
) -> dict[str, Any]:
    """Build a deployment into a folder and return a summary.

    Stages whose inputs are what they were and whose files are all there are kept, others are done. A stage of other inputs is replaced with
    `force` only.

    Args:
        deployment: what to build.
        output: the folder.
        force: replace stages of other inputs, or another build.
        memory_bytes: what the conversion may use above the interpreter.
        quiet: show no progress.
        first: do this stage and those behind it again, whether or not their inputs changed; those before it must be there.
        until: the last stage that is done.
        engine: folder of an engine that is taken over instead of building one.

    Raises:
        UsageError: the target cannot be built like this, a stage is skipped that was never done, or `first` comes behind `until`.
        TrtbuildError: the inputs are unusable, a tool fails, or the folder exists and is of other inputs.
        CheckFailed: the checkpoint is beyond a limit of the section `accuracy`; it stays in the hidden folder of unfinished work.
    """
    if first is not None and NAMES.index(first) > NAMES.index(until):
        raise UsageError(f"--from {first} comes behind --until {until}", hint=f"the stages are {', '.join(NAMES)}")
    if engine is not None and (deployment.target != "tensorrt" or until != NAMES[-1]):
        what = f"--until {until}" if deployment.target == "tensorrt" else f"target {deployment.target}"
        raise UsageError(f"--engine names an engine, and {what} has none", hint="leave out --engine")
    with only_ways_that_work(deployment):
        wishes = check_deployment(deployment)
        work = work_of(deployment)
        job, target = work.job(), _target(deployment, output, engine)
        notes = [*wishes, *work.notes, *check_job(job), *tokenizer_notes(deployment, work.source.path)]
        notes += without_effect(deployment, calibrates=work.calibrates)
    if isinstance(target, Adopted):
        notes += target.check(job)
    check_gate(work.source, deployment.accuracy)
    inputs = stage_inputs(deployment)
    run = Build(work, job, target, inputs, stage_keys(work.key, inputs), output, memory_bytes, quiet)
    seen = _state(output)
    there = _there(output, force=force)
    kept = _kept(run, there, first, until)
    if isinstance(target, Adopted) and not target.in_place and STAGES[-1].name in kept:
        kept.remove(STAGES[-1].name)
    todo = [stage for stage in needed(deployment, until) if stage.name not in kept]
    stale = [stage.name for stage in needed(deployment, NAMES[-1]) if _is_stale(run, there, stage.name)]
    if not todo and not stale:
        _update_config(run)
        drop_unfinished(output)
        logger.info("%s is up to date", output)
        return _summary(run, todo)
    _check_place(run, todo, there, stale, force=force)
    size = work.nbytes
    if CHECKPOINT not in kept:
        check_space(output, size)
    if STAGES[-1] in todo:
        target.preflight(job, output)
    for note in dict.fromkeys(notes):
        logger.warning("note: %s", note)
    with staged_folder(output, work=run.keys["checkpoint"], needed=size) as folder:
        if _state(output) != seen:
            raise TrtbuildError(
                f"another process wrote {output} in the meantime",
                hint="run the same command again: it keeps what is there",
            )
        _drop_links(folder)
        _take_over(output, folder, _stays(run, there, kept, todo, is_stale=bool(stale)))
        entries = {name: there[name].entry for name in kept}
        for stage in todo:
            entries[stage.name] = _do(run, stage, folder)
        (folder / CONFIG).write_text(render(deployment), encoding="utf-8")
        _write_manifest(run, folder, {name: entries[name] for name in NAMES if name in entries})
    return _summary(run, todo)


def _target(deployment: Deployment, output: Path, engine: Path | None) -> Target:
    """Return what makes the last stage: the target, or the one that takes over an engine."""
    if engine is None:
        return load_target(deployment.target)
    return Adopted(engine, in_place=engine.resolve() == (output / STAGES[-1].leaves(deployment.target)[0]).resolve())


def _state(output: Path) -> tuple[int, int] | None:
    """Return what changes whenever a build folder is replaced; None while there is none."""
    file = output / manifest.NAME
    return (file.stat().st_ino, file.stat().st_mtime_ns) if file.is_file() else None


def _there(output: Path, *, force: bool) -> dict[str, Held]:
    """Return what the folder has of each stage; with `force` a manifest that cannot be read stands for nothing.

    Raises:
        TrtbuildError: the manifest is damaged, or none of a build.
    """
    try:
        return held(output)
    except manifest.DamagedManifest as error:
        if not force:
            raise
        logger.warning("note: %s; everything is built again", error.message)
        return {}


def _is_stale(run: Build, there: Mapping[str, Held], name: str) -> bool:
    return name in there and there[name].key != run.keys[name]


def _kept(run: Build, there: Mapping[str, Held], first: str | None, until: str) -> list[str]:
    """Return the names of the stages that stay: those that are whole and of the same inputs, unless they are to be done again."""
    stages = needed(run.deployment, NAMES[-1])
    whole = [each.name for each in stages if each.name in there and not _is_stale(run, there, each.name)]
    for name in [name for name in whole if there[name].problems]:
        whole.remove(name)
        if NAMES.index(name) <= NAMES.index(until):
            logger.warning("note: stage %s is done again: %s", name, manifest.worded(there[name].problems))
    if first is None:
        return whole
    before = [each.name for each in stages if NAMES.index(each.name) < NAMES.index(first)]
    missing = next((name for name in before if name not in whole), None)
    if missing is not None and NAMES.index(missing) <= NAMES.index(until):
        why = manifest.worded(there[missing].problems) if missing in there else ""
        other = f" for these inputs{': ' * bool(why)}{why}" if missing in there else ""
        raise UsageError(
            f"--from {first} skips {missing}, which {run.output} does not hold{other}",
            hint=f"leave out --from, or use --from {missing}",
        )
    again = [each.name for each in stages if NAMES.index(first) <= NAMES.index(each.name) <= NAMES.index(until)]
    return [name for name in whole if name not in again]


def _check_place(
    run: Build, todo: Sequence[Stage], there: Mapping[str, Held], stale: Sequence[str], *, force: bool
) -> None:
    """Refuse to replace what was made of other inputs, or by somebody else, unless `force` says so.

    Raises:
        TrtbuildError: the folder holds such a thing, or is none that can be replaced.
        UsageError: see `check_output`.
    """
    output = run.output
    adopted = run.target if isinstance(run.target, Adopted) else None
    keep = [run.work.source.path]
    if adopted and output.resolve() not in adopted.engine.resolve().parents:
        keep.append(adopted.engine)
    check_output(output, force=force or bool(there), keep=tuple(keep))
    if stale and not force:
        source = manifest.source_identity(run.work.source)
        why = [each for name in stale for each in changes(there[name].entry, run.inputs[name], source)]
        raise TrtbuildError(
            f"{output} holds {' and '.join(stale)} of other inputs{': ' * bool(why)}{'; '.join(dict.fromkeys(why))}",
            hint="choose another output folder with -o, or replace it with --force",
        )
    foreign = [name for stage in todo if stage.name not in there for name in stage.leaves(run.deployment.target)]
    foreign = [name for name in foreign if there and (output / name).exists()]
    if foreign and not force and not (adopted and adopted.in_place):
        raise TrtbuildError(
            f"{output / foreign[0]} was not made by this build, which would replace it",
            hint="--engine takes an engine over; else move it away, or replace it with --force",
        )


def _stays(
    run: Build, there: Mapping[str, Held], kept: Sequence[str], todo: Sequence[Stage], *, is_stale: bool
) -> list[str]:
    """Return the entries of an existing build that go into the new one: what kept stages left, and when nothing is stale all that is not replaced."""
    if not there:
        return []
    left = [name for stage in kept for name in there[stage].entry["outputs"]]
    replaced = {name for stage in todo for name in stage.leaves(run.deployment.target)}
    replaced |= {name for stage in there if stage not in kept for name in there[stage].entry["outputs"]}
    mine = {*left, *replaced, CONFIG, manifest.NAME}
    others = [entry.name for entry in run.output.iterdir() if entry.name not in mine and not is_unfinished(entry)]
    return left if is_stale else [*left, *others]


def _drop_links(folder: Path) -> None:
    """Remove what an interrupted run took over from the existing build, and what it had only begun.

    What is still kept is linked anew, the rest must not be written to.
    """
    for entry in list(folder.iterdir()):
        files = [file for file in entry.rglob("*") if file.is_file()] if entry.is_dir() else [entry]
        if is_unfinished(entry) or entry.is_symlink() or any(file.stat().st_nlink > 1 for file in files):
            _remove(entry)


def _take_over(output: Path, folder: Path, names: list[str]) -> None:
    """Put entries of the existing build into the new one without copying: as hard links."""
    for name in names:
        source, place = output / name, folder / name
        _remove(place)
        if source.is_symlink():
            place.symlink_to(source.readlink())
        elif source.is_dir():
            shutil.copytree(source, place, copy_function=link_or_copy, symlinks=True)
        else:
            link_or_copy(str(source), str(place))


def _remove(entry: Path) -> None:
    shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink(missing_ok=True)


def _do(run: Build, stage: Stage, folder: Path) -> dict[str, Any]:
    """Do one stage in the folder under construction and return its entry for the manifest."""
    start = time.perf_counter()
    record = _RUN[stage.name](run, folder)
    outputs = [name for name in stage.leaves(run.deployment.target) if (folder / name).exists()]
    return {
        "key": run.keys[stage.name],
        "inputs": run.inputs[stage.name],
        "outputs": outputs,
        "files": manifest.sizes_of(folder, outputs),
        "seconds": round(time.perf_counter() - start, 3),
        **record,
    }


def _checkpoint(run: Build, folder: Path) -> dict[str, Any]:
    place, key = folder / CHECKPOINT, run.keys["checkpoint"]
    place.mkdir(exist_ok=True)
    if has_checkpoint(place, key):
        written = manifest.read(place, kind="checkpoint")
    else:
        (place / manifest.NAME).unlink(
            missing_ok=True
        )  # of a checkpoint that lost a file: what is not finished must not look so
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


def _write_manifest(run: Build, folder: Path, entries: Mapping[str, Mapping[str, Any]]) -> None:
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
    if not file.is_file() or file.read_bytes() != text.encode():
        write_atomically(file, text)


def _summary(run: Build, done: Sequence[Stage]) -> dict[str, Any]:
    written, names = manifest.read(run.output, kind="build"), [stage.name for stage in done]
    return {
        "output": str(run.output),
        "checkpoint": str(run.output / CHECKPOINT),
        "target": run.deployment.target,
        "unchanged": not done,
        "stages": {name: "done" if name in names else "kept" for name in written["stages"]},
        "manifest": written,
    }
