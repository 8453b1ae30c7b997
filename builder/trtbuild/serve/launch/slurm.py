"""An sbatch script of a plan: one task for each rank, in a container (pyxis), all of them together or none.

Source: Triton specification 4.6; enroot's form of image names is REGISTRY#IMAGE. Checked with bash, not on a cluster.
"""

from __future__ import annotations

import shlex

from trtbuild.serve.launch.plan import LaunchPlan


def script(plan: LaunchPlan) -> str:
    """Return the text of the script; ranks above 0 open no ports."""
    tasks = max(1, len(plan.ranks) // plan.nodes)
    registry, _, rest = plan.image.partition("/")
    image = f"{registry}#{rest}" if "." in registry and rest else plan.image
    mounts = ",".join(f"{mount.source}:{mount.target}:ro" for mount in plan.files)
    head = [
        f"--job-name={plan.name}", f"--nodes={plan.nodes}", f"--ntasks-per-node={tasks}",
        *([f"--gpus-per-node={plan.gpus_per_node}"] if plan.world_size else []),
        f"--output={plan.name}-%j.log", "--open-mode=append",
        f"--signal=B:TERM@{plan.grace_s + 30}",
    ]  # fmt: skip
    lines = [
        "#!/bin/bash", *(f"#SBATCH {each}" for each in head), "set -euo pipefail", "",
        *(f"export {name}={shlex.quote(value)}" for name, value in plan.environment.items()),
        "# Cures errors of MPI_Init_thread under PMIx.", "export PMIX_MCA_gds=hash", "",
        "# When the job is ended or its time is up, requests in flight are finished first; srun passes SIGTERM on, not SIGINT.",
        "trap 'kill -TERM \"${step}\" 2>/dev/null || true; wait \"${step}\" || true; exit 0' TERM INT", "",
        f"srun --mpi=pmix --kill-on-bad-exit=1 --container-image={shlex.quote(image)} \\",
        f"  --container-mounts={shlex.quote(mounts)} --no-container-mount-home \\",
        f"  bash -c {shlex.quote(_task(plan))} &", "step=$!", 'wait "${step}"',
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _task(plan: LaunchPlan) -> str:
    """Return what each task runs, by its rank."""
    if len(plan.ranks) == 1:
        return f"exec {shlex.join(plan.ranks[0].command)}"
    cases = "\n".join(f"{rank.number}) exec {shlex.join(rank.command)} ;;" for rank in plan.ranks)
    return f'case "${{SLURM_PROCID}}" in\n{cases}\nesac'
