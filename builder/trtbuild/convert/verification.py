"""One verification from a folder to a report: digests, padding, and the source if it is there and unchanged."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from trtbuild import manifest
from trtbuild.building import CHECKPOINT
from trtbuild.checkpoint import Checkpoint
from trtbuild.checkpoint_kinds import open_checkpoint
from trtbuild.console import progress
from trtbuild.convert.run import plan_deployment
from trtbuild.errors import TrtbuildError
from trtbuild.spec import parse

#: Of the tensors with an error, the report lists so many, the worst first.
_WORST = 10


def verify_folder(folder: Path, *, with_source: bool, quiet: bool) -> dict[str, Any]:
    """Verify a checkpoint folder, or the checkpoint of a build folder, and return the report as plain data.

    Args:
        folder: what to verify.
        with_source: compare with the model too.
        quiet: show no progress.

    Raises:
        TrtbuildError: the folder is no checkpoint of ours, or its source is gone or of another shape.
    """
    from trtbuild.convert import verify  # numpy is needed from here on only
    from trtbuild.convert.verify_unified import compare_unified

    if (folder / CHECKPOINT / "config.json").is_file():
        folder = folder / CHECKPOINT
    made = manifest.read(folder, kind="checkpoint")
    if "kept" in made:
        return _verify_copy(folder, made, with_source=with_source)
    checkpoint = open_checkpoint(folder)
    infos = [info for tensors in checkpoint.files.values() for info in tensors.values()]
    total = sum(info.nbytes for info in infos)
    with progress("reading", total, quiet=quiet) as advance:
        findings = verify.check_digests(folder, checkpoint.files, advance=advance)
    if isinstance(checkpoint, Checkpoint):
        findings += verify.padding_is_zero(checkpoint)
    report: dict[str, Any] = {"folder": str(folder), "tensors": len(infos), "bytes": total}
    if with_source:
        _require_source(folder, made)
        deployment = parse(made["deployment"], origin=str(folder / manifest.NAME))
        plan = plan_deployment(deployment, layers=checkpoint.dims.num_layers)
        with progress("comparing", plan.read_bytes, quiet=quiet) as advance:
            if isinstance(checkpoint, Checkpoint):
                wrong, errors = verify.compare_with_source(checkpoint, plan, advance=advance)
            else:
                wrong, errors = compare_unified(checkpoint, plan, advance=advance)
        findings += wrong
        quantized = [each for each in errors if each.max_error > 0]
        worst = sorted(quantized, key=lambda each: -each.relative)
        report |= {
            "source": made["source"]["path"],
            "compared": len(errors),
            "exact": len(errors) - len(quantized),
            "worst": [asdict(each) for each in worst[:_WORST]],
        }
    return {**report, "findings": [asdict(each) for each in findings]}


def _require_source(folder: Path, made: dict[str, Any]) -> Path:
    source = Path(made["source"]["path"])
    if not source.is_dir():
        raise TrtbuildError(
            f"{source}, the source of {folder}, is not there", hint="use --no-source to check digests only"
        )
    return source


def _verify_copy(folder: Path, made: dict[str, Any], *, with_source: bool) -> dict[str, Any]:
    """Verify a folder that was copied: it, and its source, must hold the bytes that were copied."""
    from trtbuild.convert.kept import differences

    expected = made["sha256"]
    found = differences(folder, expected, "written was")
    report: dict[str, Any] = {
        "folder": str(folder),
        "tensors": sum(map(len, expected.values())),
        "bytes": made["write_bytes"],
    }
    if with_source:
        source = _require_source(folder, made)
        found += [
            (file, tensor, f"{source / file} {problem}")
            for file, tensor, problem in differences(source, expected, "copied was")
        ]
        report |= {
            "source": str(source),
            "compared": report["tensors"],
            "exact": report["tensors"] - len(found),
            "worst": [],
        }
    return {
        **report,
        "findings": [{"file": file, "tensor": tensor, "problem": problem} for file, tensor, problem in found],
    }
