"""The target `tensorrt`: `trtllm-build` makes an engine of the rank files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtbuild.targets.base import Job


class TensorRT:
    """Checks what the builder would refuse or switch off, runs it, and checks what it wrote."""

    def check(self, job: Job) -> list[str]:
        """Return notes about a job; reads the headers of adapters, nothing else.

        Raises:
            UsageError: the release builds no engines, or trtllm-build would refuse the job or build something else.
            TrtbuildError: an adapter cannot be read.
        """
        from trtbuild.trtllm.job_rules import check_job

        return check_job(job)

    def preflight(self, job: Job, folder: Path) -> None:
        """Look for what `finish` needs on this machine, before an hour of conversion.

        Args:
            job: the resolved deployment.
            folder: that the build will be in, for the command that a machine without the tool is given.

        Raises:
            ToolFailed: there is no trtllm-build, it is of another release, or the GPUs are others than the deployment names.
        """
        from trtbuild.trtllm.build_engine import prepare

        prepare(job, folder)

    def finish(self, job: Job, folder: Path, *, quiet: bool) -> dict[str, Any]:
        """Build folder/engine from folder/checkpoint; see `build_engine`.

        Raises:
            ToolFailed: trtllm-build is missing, failed, or wrote something else than was asked for.
        """
        from trtbuild.trtllm.build_engine import build_engine

        return build_engine(job, folder, quiet=quiet)
