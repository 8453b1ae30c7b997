"""What makes the checkpoint of a deployment: a conversion, or the copy of a folder that is quantized already and loads as it is.

Whoever builds sees no difference: both know their bytes, their key, their notes, and write into a folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild.convert.kept import KeptFolder, copy_into, copy_key, kept_folder
from trtbuild.convert.plan import ConversionPlan
from trtbuild.convert.run import convert_into, inputs_key, plan_deployment, write_bytes
from trtbuild.source import SourceCheckpoint
from trtbuild.spec import Deployment
from trtbuild.targets.base import Job


@dataclass(frozen=True, slots=True)
class Conversion:
    """A model that is converted.

    Attributes:
        plan: the conversion.
        deployment: what it is for.
    """

    plan: ConversionPlan
    deployment: Deployment

    @property
    def source(self) -> SourceCheckpoint:
        """What is read."""
        return self.plan.source

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user must be told."""
        return self.plan.warnings

    @property
    def nbytes(self) -> int:
        """Bytes of the checkpoint and of what is needed on the way to it."""
        return write_bytes(self.plan, self.deployment.target) + self.plan.recipe_bytes

    @property
    def key(self) -> str:
        """What identifies the inputs."""
        return inputs_key(self.plan, [self.deployment], "checkpoint")

    @property
    def calibrates(self) -> bool:
        """Whether the model is run on sample texts."""
        return self.plan.needs_calibration

    def job(self) -> Job:
        """Return the facts for the target."""
        return Job.of(self.deployment, self.plan)

    def write(self, folder: Path, *, key: str, memory_bytes: int, quiet: bool) -> dict[str, Any]:
        """Write the checkpoint into a folder, going on from what is there, and return its manifest."""
        return convert_into(self.plan, self.deployment, folder, key=key, memory_bytes=memory_bytes, quiet=quiet)


@dataclass(frozen=True, slots=True)
class Copy:
    """A quantized folder that loads as it is.

    Attributes:
        kept: the folder.
        deployment: what it is for.
    """

    kept: KeptFolder
    deployment: Deployment

    @property
    def source(self) -> SourceCheckpoint:
        """What is read."""
        return self.kept.raw

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user must be told."""
        return self.kept.notes

    @property
    def nbytes(self) -> int:
        """Bytes of the copy."""
        return self.kept.nbytes

    @property
    def key(self) -> str:
        """What identifies the inputs."""
        return copy_key(self.kept, self.deployment)

    @property
    def calibrates(self) -> bool:
        """Nothing is run."""
        return False

    def job(self) -> Job:
        """Return the facts for the target."""
        return Job.of_kept(self.deployment, self.kept.raw, self.kept.found.algorithm, self.kept.found.kv_algorithm)

    def write(self, folder: Path, *, key: str, memory_bytes: int, quiet: bool) -> dict[str, Any]:
        """Copy into a folder and return the manifest."""
        return copy_into(self.kept, self.deployment, folder, key=key, quiet=quiet)


def work_of(deployment: Deployment) -> Conversion | Copy:
    """Return what makes the checkpoint of a deployment; reads headers only.

    Raises:
        UsageError: an option this version does not have, or that does not go with the model.
        TrtbuildError: the model cannot be converted like this.
    """
    if (kept := kept_folder([deployment], layers=None)) is not None:
        return Copy(kept, deployment)
    return Conversion(plan_deployment(deployment), deployment)
