"""What makes the checkpoint of a deployment: a conversion, or the copy of a folder that is quantized already and loads as it is.

Whoever builds sees no difference: both know their bytes, their key, their notes, and write into a folder.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild.convert.kept import RUNS_AS, KeptFolder, copy_into, copy_key, kept_folder
from trtbuild.convert.plan import ConversionPlan
from trtbuild.convert.run import check_calibration, convert_into, inputs_key, plan_deployment, write_bytes
from trtbuild.convert.unified_plan import describe
from trtbuild.errors import UsageError
from trtbuild.names import GROUP_SIZES, GROUPED
from trtbuild.quant.scheme import load_scheme
from trtbuild.source import SourceCheckpoint
from trtbuild.spec import Deployment, replaced
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
    def read_bytes(self) -> int:
        """Bytes of the source that are read."""
        return self.plan.read_bytes

    @property
    def key(self) -> str:
        """What identifies the inputs."""
        return inputs_key(self.plan, [self.deployment], "checkpoint")

    @property
    def calibrates(self) -> bool:
        """Whether the model is run on sample texts."""
        return self.plan.needs_calibration

    def check_ready(self) -> None:
        """Refuse what would fail when the calibration begins; see `check_calibration`."""
        check_calibration(self.plan, self.deployment)

    def job(self) -> Job:
        """Return the facts for the target."""
        return Job.of(self.deployment, self.plan)

    def describe(self) -> dict[str, Any]:
        """Return what will be written as plain data."""
        return describe(self.plan, [self.deployment.target], tensors=False)

    @property
    def in_memory(self) -> tuple[Deployment, ConversionPlan]:
        """The deployment and the conversion whose tensors a server holds."""
        return self.deployment, self.plan

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
    def read_bytes(self) -> int:
        """Bytes of the folder."""
        return self.kept.nbytes

    @property
    def key(self) -> str:
        """What identifies the inputs."""
        return copy_key(self.kept, self.deployment)

    @property
    def calibrates(self) -> bool:
        """Nothing is run."""
        return False

    def check_ready(self) -> None:
        """Need nothing."""

    def job(self) -> Job:
        """Return the facts for the target."""
        found = self.kept.found
        form = load_scheme(RUNS_AS[found.algorithm]).unified
        algo = form.quant_algo if form is not None and form.quant_algo is not None else found.algorithm
        return Job.of_kept(self.deployment, self.kept.raw, algo, found.kv_algorithm)

    def describe(self) -> dict[str, Any]:
        """Return what will be copied as plain data, under the keys of a conversion to a unified folder."""
        job, found = self.job(), self.kept.found
        tensors = Counter(info.path for info in self.kept.raw.tensors.values())
        return {
            "source": str(self.kept.raw.path),
            "architecture": job.dims.architecture,
            "quantization": RUNS_AS[found.algorithm],
            "kv_cache": (found.kv_algorithm or "auto").lower(),
            "dtype": job.dtype,
            "is_copy": True,
            "method": found.method,
            "algorithm": found.algorithm,
            "calibration_needed": False,
            "read_bytes": self.nbytes,
            "write_bytes": self.nbytes,
            "files": [
                {"file": file.name, "num_tensors": tensors[file], "bytes": file.stat().st_size}
                for file in self.kept.raw.files
            ],
            "warnings": list(self.notes),
        }

    @property
    def in_memory(self) -> tuple[Deployment, ConversionPlan]:
        """A deployment and a conversion that would make what the folder holds: the same formats, cut by the same rules.

        Raises:
            UsageError: the folder is of mixed precision, whose layers have no one format.
        """
        found, quantization = self.kept.found, self.deployment.quantization
        if found.algorithm == "MIXED_PRECISION":
            raise UsageError(
                f"{self.kept.raw.path} mixes number formats and is copied as it is ({self.kept.nbytes:,} bytes); its memory cannot be planned",
                hint="`trtbuild build` and `convert` copy it",
            )
        scheme = RUNS_AS[found.algorithm]
        formats = replaced(
            quantization,
            scheme=scheme,
            group_size=found.group_size if scheme in GROUPED and found.group_size in GROUP_SIZES else None,
            dequantize=True,
            kv_cache=(found.kv_algorithm or "auto").lower(),
            allow_unverified=True,
        )
        same = replaced(self.deployment, quantization=formats)
        return same, plan_deployment(same, is_done=False)

    def write(self, folder: Path, *, key: str, memory_bytes: int, quiet: bool) -> dict[str, Any]:
        """Copy into a folder and return the manifest."""
        return copy_into(self.kept, self.deployment, folder, key=key, quiet=quiet)


#: What makes a checkpoint.
Work = Conversion | Copy


def work_of(deployment: Deployment, *, is_done: bool = True) -> Work:
    """Return what makes the checkpoint of a deployment; reads headers only.

    Args:
        deployment: what to make.
        is_done: it will be carried out, so what a calibration needs must be there.

    Raises:
        UsageError: an option this version does not have, or that does not go with the model.
        TrtbuildError: the model cannot be converted like this.
    """
    if (kept := kept_folder([deployment], layers=None)) is not None:
        return Copy(kept, deployment)
    return Conversion(plan_deployment(deployment, is_done=is_done), deployment)
