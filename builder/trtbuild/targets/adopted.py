"""The target `tensorrt` with an engine that is there already: checked and taken over, instead of built."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild.targets.base import Job


@dataclass(frozen=True, slots=True)
class Adopted:
    """Takes over an engine.

    Attributes:
        engine: its folder.
        in_place: it lies where the build will have its own.
    """

    engine: Path
    in_place: bool

    def check(self, job: Job) -> list[str]:
        """Return notes about the engine; what trtllm-build would refuse is the business of `check_job`.

        Raises:
            TrtbuildError: the engine is not whole, or not what the job asks for.
        """
        from trtbuild.trtllm.adopt_engine import check_foreign

        return check_foreign(job, self.engine)

    def preflight(self, job: Job, folder: Path) -> None:
        """Look for nothing: no tool is needed."""

    def finish(self, job: Job, folder: Path, *, quiet: bool) -> dict[str, Any]:
        """Take over the engine as folder/engine; see `adopt_engine`.

        Raises:
            TrtbuildError: it is of another checkpoint, or the disk refuses.
        """
        from trtbuild.trtllm.adopt_engine import adopt_engine

        return adopt_engine(job, self.engine, folder, in_place=self.in_place)
