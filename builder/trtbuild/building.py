"""A build folder: trtbuild.yaml (resolved), checkpoint/ with the tokenizer inside, what the target makes of it, manifest.json, and evaluation.json
and .html where accuracy has limits.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from trtbuild import manifest
from trtbuild.convert.run import convert_into, inputs_key, plan_deployment
from trtbuild.errors import UsageError
from trtbuild.evaluate.gate import check_gate, pass_gate
from trtbuild.init_file import render
from trtbuild.output import check_output, check_space, staged_folder
from trtbuild.spec import Accuracy, Deployment
from trtbuild.targets.base import CHECKPOINT, Job, load_target

logger = logging.getLogger(__name__)

CONFIG = "trtbuild.yaml"
#: The report of the accuracy gate; only in builds that have one.
EVALUATION = "evaluation.json"
#: Targets whose artifact this version can build to the end.
BUILDS = ("pytorch", "reference")
#: For the others: what would be built, and how to go on from what `convert` writes.
_ELSEWHERE = {
    "tensorrt": (
        "engines",
        "`trtllm-build --checkpoint_dir ckpt --output_dir engine` where TensorRT-LLM 0.17 to 1.2 is installed",
    ),
}


def build(deployment: Deployment, output: Path, *, force: bool, memory_bytes: int, quiet: bool) -> dict[str, Any]:
    """Build a deployment into a folder and return a summary.

    An existing build of the very same inputs is left as it is; `force` builds it again.

    Raises:
        UsageError: the target cannot be built by this version.
        TrtbuildError: the inputs are unusable, or the folder exists and is of other inputs.
        CheckFailed: the checkpoint is beyond a limit of the section `accuracy`; it stays in the hidden folder of unfinished work.
    """
    if deployment.target not in BUILDS:
        what, then = _ELSEWHERE[deployment.target]
        raise UsageError(
            f"this version does not build {what} (target '{deployment.target}')",
            hint=f"run `trtbuild convert {deployment.model.path} --target {deployment.target} -o ckpt` here, then {then}; "
            "or build with --target reference",
        )
    plan = plan_deployment(deployment)
    job, target = Job.of(deployment, plan), load_target(deployment.target)
    notes = target.check(job)
    check_gate(plan.source, deployment.accuracy)
    key = inputs_key(plan, [deployment], "build")
    # What the conversion depends on: a checkpoint that was refused is taken up again when the limits are others.
    work = inputs_key(plan, [deployment.model_copy(update={"accuracy": Accuracy()})], "build")
    if not force and _is_build_of(output, key):
        logger.info("%s is up to date", output)
        return _summary(output, deployment, unchanged=True)
    check_output(output, force=force, keep=(plan.source.path,))
    check_space(output, plan.write_bytes + plan.recipe_bytes)
    for warning in (*plan.warnings, *notes):
        logger.warning("note: %s", warning)
    with staged_folder(output, work=work, needed=plan.write_bytes) as stage:
        (stage / CHECKPOINT).mkdir(exist_ok=True)
        checkpoint = _finished_checkpoint(stage / CHECKPOINT, work)
        if checkpoint is None:
            checkpoint = convert_into(
                plan, deployment, stage / CHECKPOINT, key=work, memory_bytes=memory_bytes, quiet=quiet
            )
        pass_gate(
            stage / CHECKPOINT,
            deployment.accuracy,
            called=output / CHECKPOINT,
            report=stage / EVALUATION,
            quiet=quiet,
        )
        artifact = target.finish(job, stage, quiet=quiet)
        (stage / CONFIG).write_text(render(deployment), encoding="utf-8")
        manifest.write(
            stage,
            {
                **manifest.header("build"),
                "inputs_key": key,
                "target": deployment.target,
                **({"artifact": artifact} if artifact else {}),
                "source": checkpoint["source"],
                "seconds": checkpoint["seconds"],
                "peak_rss_bytes": checkpoint["peak_rss_bytes"],
            },
        )
    return _summary(output, deployment, unchanged=False)


def _finished_checkpoint(folder: Path, work: str) -> dict[str, Any] | None:
    """Return the manifest of a checkpoint that an earlier run of the same work finished, None when there is none."""
    if not (folder / manifest.NAME).is_file():
        return None
    found = manifest.read(folder, kind="checkpoint")
    return found if found.get("inputs_key") == work and manifest.is_complete(folder, found) else None


def _is_build_of(output: Path, key: str) -> bool:
    if not (output / manifest.NAME).is_file() or not (output / CHECKPOINT / "config.json").is_file():
        return False
    checkpoint = output / CHECKPOINT
    if manifest.read(output, kind="build").get("inputs_key") != key or not (checkpoint / manifest.NAME).is_file():
        return False
    return manifest.is_complete(checkpoint, manifest.read(checkpoint, kind="checkpoint"))


def _summary(output: Path, deployment: Deployment, *, unchanged: bool) -> dict[str, Any]:
    return {
        "output": str(output),
        "checkpoint": str(output / CHECKPOINT),
        "target": deployment.target,
        "unchanged": unchanged,
        "manifest": manifest.read(output, kind="build"),
    }
