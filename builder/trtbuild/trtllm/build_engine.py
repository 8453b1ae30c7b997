"""From a checkpoint folder to an engine folder that is checked, complete, and says what it was built from. The folders:

folder/checkpoint/           read
folder/.engine.partial/      while trtllm-build works; gone when it fails
folder/engine/               rank files and config.json of trtllm-build, build.log, timing.cache, manifest.json
folder/engine.failed.log     what a failed build printed
folder/.engine.refused/      an engine of all ranks that is not what was asked for
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtbuild import manifest
from trtbuild.console import progress
from trtbuild.errors import ToolFailed, TrtbuildError, UsageError
from trtbuild.gpus import Gpu
from trtbuild.machine import available_memory_bytes
from trtbuild.manifest import CHECKPOINT
from trtbuild.nvidia import Device
from trtbuild.output import check_space, place_of, staged_folder, write_atomically
from trtbuild.serve.exit_status import describe_status
from trtbuild.targets.base import Job
from trtbuild.trtllm.build_check import check_engine, check_files
from trtbuild.trtllm.build_failures import diagnose
from trtbuild.trtllm.build_log import BuildProgress
from trtbuild.trtllm.build_options import TIMING_CACHE, arguments, requested
from trtbuild.trtllm.build_run import Outcome, run_builder
from trtbuild.trtllm.build_tool import (
    check_gpus,
    check_version,
    driver_notes,
    find_builder,
    installed_versions,
    missing_builder,
    visible_gpus,
    workers_of,
)
from trtbuild.trtllm.engine import Engine
from trtbuild.trtllm.job_rules import check_job

logger = logging.getLogger(__name__)

ENGINE = "engine"
LOG = "build.log"
FAILED_LOG = "engine.failed.log"
REFUSED = ".engine.refused"
#: Host memory of a worker over the file of its rank, at its peak: two to three (checkpoint specification 6.3).
_COPIES_IN_MEMORY = 3


@dataclass(frozen=True, slots=True)
class Tools:
    """What builds, on this machine.

    Attributes:
        job: the deployment, with the GPU of this machine where it names none.
        program: trtllm-build.
        versions: of tensorrt_llm and tensorrt beside it, as far as they can be told.
        gpus: that it will see; None when nobody can tell.
        workers: ranks that are built at a time.
        notes: about the versions.
    """

    job: Job
    program: Path
    versions: Mapping[str, str]
    gpus: tuple[Device, ...] | None
    workers: int
    notes: tuple[str, ...] = ()


def prepare(job: Job, folder: Path) -> Tools:
    """Find what builds on this machine.

    Args:
        job: the resolved deployment.
        folder: of the build, for the command that a machine without the tool is given.

    Raises:
        ToolFailed: there is no trtllm-build, it is of another release, or the GPUs are others than the deployment names or cannot
            run it.
    """
    program = find_builder()
    if program is None:
        place = place_of(folder)
        raise missing_builder(
            job.release,
            arguments(job, place / CHECKPOINT, place / ENGINE, workers=job.parallel.world_size),
            [place, *(Path(adapter) for adapter in job.deployment.lora.adapters)],
        )
    versions = installed_versions(program)
    notes = (
        check_version(versions["tensorrt_llm"], job.release, where=str(program)) if "tensorrt_llm" in versions else []
    )
    gpus = visible_gpus()
    workers = workers_of(job, gpus)
    check_gpus(job, gpus, workers)
    if job.gpu is None and gpus and gpus[0].sm:
        job = replace(job, gpu=Gpu(f"sm{gpus[0].sm}", gpus[0].sm))
        try:
            check_job(job)
        except UsageError as error:
            raise ToolFailed(f"on this machine's {gpus[0].name}: {error.message}", hint=error.hint) from error
    return Tools(job, program, versions, gpus, workers, (*notes, *driver_notes(job.release, gpus)))


def build_engine(job: Job, folder: Path, *, quiet: bool) -> dict[str, Any]:
    """Build folder/engine from folder/checkpoint and return what the manifest records.

    Raises:
        ToolFailed: trtllm-build is missing, of another release, failed, stalled, or wrote something else than was asked for. Nothing that looks like an
            engine is left; what it printed is in folder/engine.failed.log.
        TrtbuildError: the disk has no room, or refuses.
    """
    tools = prepare(job, folder)
    job = tools.job
    for note in tools.notes:
        logger.warning("note: %s", note)
    checkpoint, target = (folder / CHECKPOINT).absolute(), (folder / ENGINE).absolute()
    rank_bytes = [file.stat().st_size for file in checkpoint.glob("rank*.safetensors")]
    needed = sum(rank_bytes)
    check_space(target, needed)
    _warn_of_memory(tools.workers, max(rank_bytes, default=0), available_memory_bytes())
    failed_log, refused = folder / FAILED_LOG, folder / REFUSED
    failed_log.unlink(missing_ok=True)
    shutil.rmtree(refused, ignore_errors=True)
    cache = Path(job.deployment.engine.timing_cache) if job.deployment.engine.timing_cache else target / TIMING_CACHE
    with staged_folder(target, needed=needed) as stage:
        given = arguments(
            job, checkpoint, stage, workers=tools.workers, input_timing_cache=cache if cache.is_file() else None
        )
        began = time.time()
        try:
            outcome, steps = _run(job, tools, given, stage / LOG, quiet=quiet)
            _check_outcome(job, stage, outcome)
            engine, notes = _checked(job, stage, refused)
        except ToolFailed as error:
            if (log := next((each / LOG for each in (stage, refused) if (each / LOG).is_file()), None)) is not None:
                shutil.copyfile(log, failed_log)
                error.hint = f"{error.hint}\n  the whole log: {failed_log.absolute()}".strip()
            raise
        for note in notes:
            logger.warning("note: %s", note)
        record = {
            **_record(job, tools, engine, stage, began, outcome, steps),
            "arguments": _with_places(given, folder, stage),
            "notes": [*tools.notes, *notes],
        }
        manifest.write(stage, {**manifest.header("engine"), **record})
    if job.deployment.engine.timing_cache and (target / TIMING_CACHE).is_file():
        _keep_timing_cache(target / TIMING_CACHE, cache)
    logger.info(
        "engine: %d ranks, %s bytes, %.0f s", job.parallel.world_size, f"{record['engine_bytes']:,}", outcome.seconds
    )
    return record


def _run(job: Job, tools: Tools, given: list[str], log: Path, *, quiet: bool) -> tuple[Outcome, BuildProgress]:
    """Run the builder; one that says in its first line that it is of another release is stopped there, not after hours."""
    steps, ranks = BuildProgress(), job.parallel.world_size
    logger.info("trtllm-build of %d ranks, %d at a time", ranks, tools.workers)
    with progress("building engines", ranks, quiet=quiet, unit="ranks") as advance:

        def on_line(line: str) -> None:
            before, version = len(steps.serialized), steps.version
            if step := steps.feed(line):
                logger.info("  %s", step)
            if steps.version != version:
                check_version(
                    steps.version, job.release, where=str(tools.program)
                )  # raises, and the builder is stopped
            if len(steps.serialized) > before:
                advance(1)

        outcome = run_builder(
            [str(tools.program), *given],
            log=log,
            stall_timeout_s=job.deployment.engine.stall_timeout_s,
            on_line=on_line,
        )
    return outcome, steps


def _check_outcome(job: Job, stage: Path, outcome: Outcome) -> None:
    """Refuse a run that failed, each kind with its own words (field report EB19)."""
    if outcome.status != 0:
        why = diagnose(outcome.status, outcome.lines)
        cause = f": {why[0]}" if why else ""
        raise ToolFailed(
            f"trtllm-build failed with {describe_status(outcome.status)}{cause}{outcome.shown()}",
            hint=why[1] if why else "this failure is not known; the lines above are the tool's own",
        )
    check_files(stage, job.parallel.world_size, how=outcome.shown())


def _checked(job: Job, stage: Path, refused: Path) -> tuple[Engine, list[str]]:
    """Check what was built; what is refused stays under a name that nobody serves, since it may have taken hours."""
    try:
        return check_engine(job, stage, requested(job))
    except ToolFailed as error:
        stage.rename(refused)
        error.hint = f"{error.hint}; what was built is kept in {refused.absolute()}"
        raise


def _record(
    job: Job, tools: Tools, engine: Engine, stage: Path, began: float, outcome: Outcome, steps: BuildProgress
) -> dict[str, Any]:
    """Return what identifies the engine and what it took (field report VC04); holds no environment."""
    files = [stage / f"rank{rank}.engine" for rank in range(job.parallel.world_size)]
    ended = [file.stat().st_mtime for file in files]
    gpu = tools.gpus[0] if tools.gpus else None
    return {
        "tensorrt_llm": engine.version or steps.version,
        "tensorrt_llm_asked": job.release.name,
        "tensorrt": tools.versions.get("tensorrt") or job.release.tensorrt,
        "tensorrt_is_measured": "tensorrt" in tools.versions,
        "sm": job.gpu.sm if job.gpu else None,
        "gpu": gpu.name if gpu else job.gpu.name if job.gpu else None,
        "driver": gpu.driver if gpu else None,
        "tp_size": job.parallel.tp_size,
        "pp_size": job.parallel.pp_size,
        "world_size": job.parallel.world_size,
        "program": str(tools.program),
        "workers": tools.workers,
        "seconds": round(outcome.seconds, 3),
        "ranks": [
            {"rank": rank, "seconds": round(seconds, 3), "bytes": file.stat().st_size}
            for rank, (file, seconds) in enumerate(zip(files, rank_seconds(ended, began, tools.workers), strict=True))
        ],
        "engine_bytes": sum(file.stat().st_size for file in stage.iterdir() if file.name.startswith("rank")),
        "peak_host_bytes": steps.peak_host_bytes,
        "peak_gpu_bytes": steps.peak_gpu_bytes,
        "warnings": steps.level_counts["W"],
    }


def rank_seconds(ended: list[float], began: float, workers: int) -> list[float]:
    """Return how long each rank took, from when the files were finished.

    The builder deals the ranks out in order: with w workers rank r begins when r - w + 1 ranks are finished, the first w at the start.
    """
    in_order = sorted(ended)
    starts = [began if rank < workers else in_order[rank - workers] for rank in range(len(ended))]
    return [max(0.0, end - start) for end, start in zip(ended, starts, strict=True)]


def _warn_of_memory(workers: int, rank_bytes: int, available_bytes: int) -> None:
    """Say when the workers together may need more memory than there is (6.3; field report SH15)."""
    needed = workers * rank_bytes * _COPIES_IN_MEMORY
    if needed > available_bytes:
        logger.warning(
            "note: %d ranks at a time may need %s bytes of host memory (%d times their files), and %s are available; engine.workers: 1 needs least",
            workers,
            f"{needed:,}",
            _COPIES_IN_MEMORY,
            f"{available_bytes:,}",
        )


def _with_places(given: list[str], folder: Path, stage: Path) -> list[str]:
    """Return the arguments with the folders as they will be called."""
    place = place_of(folder)
    names = {str(stage): str(place / ENGINE), str(folder.absolute()): str(place)}
    return [_renamed(word, names) for word in given]


def _renamed(word: str, names: Mapping[str, str]) -> str:
    for old, new in names.items():
        if word == old or word.startswith(old + "/"):
            return new + word[len(old) :]
    return word


def _keep_timing_cache(written: Path, place: Path) -> None:
    """Copy the timing cache to where the deployment wants it; the engine is good without."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, written.read_bytes())
    except (OSError, TrtbuildError) as error:
        logger.warning("note: engine.timing_cache=%s was not written: %s", place, error)
