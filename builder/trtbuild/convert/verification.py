"""One verification from a folder to a report: digests, padding, and the source if it is there and unchanged."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from trtbuild import manifest
from trtbuild.checkpoint import Checkpoint
from trtbuild.checkpoint_kinds import open_checkpoint
from trtbuild.console import progress
from trtbuild.convert.run import plan_deployment
from trtbuild.errors import TrtbuildError
from trtbuild.integrity import held
from trtbuild.manifest import CHECKPOINT
from trtbuild.names import TARGETS
from trtbuild.safetensors_file import TensorInfo, read_header
from trtbuild.source import read_json
from trtbuild.spec import parse

logger = logging.getLogger(__name__)

#: Folder of the engine in a build folder.
ENGINE = "engine"
#: Of the tensors with an error, the report lists so many, the worst first.
_WORST = 10


def verify_folder(folder: Path, *, with_source: bool, quiet: bool) -> dict[str, Any]:
    """Verify a checkpoint folder, an engine folder, or all of a build folder, and return the report as plain data.

    Args:
        folder: what to verify.
        with_source: compare with the model too.
        quiet: show no progress.

    Raises:
        TrtbuildError: the folder is none of ours, or its source is gone or of another shape.
    """
    if not (folder / CHECKPOINT / "config.json").is_file():
        file = folder / manifest.NAME
        is_engine = file.is_file() and read_json(file, remedy=manifest.REMEDIES["checkpoint"]).get("kind") == "engine"
        return _verify_engine(folder) if is_engine else _verify_checkpoint(folder, with_source=with_source, quiet=quiet)
    report = _verify_checkpoint(folder / CHECKPOINT, with_source=with_source, quiet=quiet)
    read, engine = [CHECKPOINT], folder / ENGINE
    if (engine / manifest.NAME).is_file():
        found = _verify_engine(engine)
        report["bytes"] += found["bytes"]
        report["findings"] += [{**each, "file": f"{ENGINE}/{each['file']}"} for each in found["findings"]]
        read.append(ENGINE)
    report["findings"] += _changed_outputs(folder, without=read)
    return report


def _verify_engine(folder: Path) -> dict[str, Any]:
    """Compare every byte of an engine with the digests that were taken when it was built or taken over."""
    made = manifest.read(folder, kind="engine")
    nbytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    logger.info("reading %s bytes of %s", f"{nbytes:,}", folder)
    return {
        "folder": str(folder),
        "tensors": 0,
        "bytes": nbytes,
        "findings": _changed_files(folder, made, kind="engine"),
    }


def _changed_outputs(build: Path, *, without: Sequence[str]) -> list[dict[str, str]]:
    """Return what is wrong with the files that stages of a build left outside of some folders, such as llm_api.yaml."""
    try:
        stages = held(build)
    except TrtbuildError as error:
        return [{"file": manifest.NAME, "tensor": "", "problem": error.message}]
    found = []
    for stage in stages.values():
        listed = {name: entry for name, entry in stage.files.items() if name.partition("/")[0] not in without}
        found += [(manifest.NAME, problem) for problem in manifest.damage(build, listed)]
        for name, entry in listed.items():
            file = build / name
            if file.is_file() and "sha256" in entry and manifest.file_digest(file) != entry["sha256"]:
                found.append((name, "is not what was written"))
    return [{"file": name, "tensor": "", "problem": problem} for name, problem in found]


def _verify_checkpoint(folder: Path, *, with_source: bool, quiet: bool) -> dict[str, Any]:
    from trtbuild.convert import verify  # numpy is needed from here on only
    from trtbuild.convert.verify_unified import compare_unified

    made = _read_manifest(folder)
    changed = _changed_files(folder, made)
    if changed:  # what cannot be opened is not read any further
        return {"folder": str(folder), "tensors": 0, "bytes": 0, "findings": changed}
    if "kept" in made:
        return _verify_copy(folder, made, with_source=with_source, quiet=quiet)
    checkpoint = open_checkpoint(folder)
    infos = [info for tensors in checkpoint.files.values() for info in tensors.values()]
    total = sum(info.nbytes for info in infos)
    with progress("reading", total, quiet=quiet) as advance:
        findings = verify.check_digests(made["sha256"], checkpoint.files, advance=advance)
    if isinstance(checkpoint, Checkpoint):
        findings += verify.padding_is_zero(checkpoint)
    report: dict[str, Any] = {"folder": str(folder), "tensors": len(infos), "bytes": total}
    if with_source:
        _require_source(folder, made)
        deployment = parse(made["deployment"], origin=str(folder / manifest.NAME))
        plan = plan_deployment(deployment, layers=checkpoint.dims.num_layers)
        with progress("comparing", plan.rows_bytes, quiet=quiet) as advance:
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


def _read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a checkpoint.

    Raises:
        TrtbuildError: there is none, or it is damaged.
    """
    inside = [name for name in TARGETS if (folder / name / manifest.NAME).is_file()]
    if inside and not (folder / manifest.NAME).is_file():
        raise TrtbuildError(
            f"{folder} holds the checkpoints of several targets", hint=f"verify one: {folder / inside[0]}"
        )
    return manifest.read(folder, kind="checkpoint")


def _changed_files(folder: Path, made: dict[str, Any], *, kind: str = "checkpoint") -> list[dict[str, str]]:
    """Return what is wrong with the files themselves: missing, surplus, of another size, or, for small ones, of other content."""
    expected, found = made["files"], manifest.files_of(folder, kind=kind)
    problems = [(name, "is missing") for name in expected if name not in found]
    problems += [(name, "is not one of the files that were written") for name in found if name not in expected]
    problems += [
        (name, f"is not what was written: {_difference(found[name], expected[name])}")
        for name in expected
        if name in found and found[name] != expected[name]
    ]
    return [{"file": name, "tensor": "", "problem": problem} for name, problem in sorted(problems)]


def _difference(found: dict[str, Any], written: dict[str, Any]) -> str:
    if found["bytes"] != written["bytes"]:
        return f"it has {found['bytes']:,} bytes, and {written['bytes']:,} were written"
    return (
        f"as long as then, but its SHA-256 is {found.get('sha256')}, that of what was written {written.get('sha256')}"
    )


def _require_source(folder: Path, made: dict[str, Any]) -> Path:
    source = Path(made["source"]["path"])
    if not source.is_dir():
        raise TrtbuildError(
            f"{source}, the source of {folder}, is not there", hint="use --no-source to check digests only"
        )
    return source


def _verify_copy(folder: Path, made: dict[str, Any], *, with_source: bool, quiet: bool) -> dict[str, Any]:
    """Verify a folder that was copied: it, and its source, must hold the bytes that were copied."""
    from trtbuild.convert.verify import check_digests

    expected, total = made["sha256"], made["write_bytes"]
    report: dict[str, Any] = {"folder": str(folder), "tensors": sum(map(len, expected.values())), "bytes": total}
    with progress("reading", total, quiet=quiet) as advance:
        found = check_digests(expected, _headers(folder, expected), advance=advance)
    if with_source:
        source = _require_source(folder, made)
        with progress("comparing", total, quiet=quiet) as advance:
            changed = check_digests(expected, _headers(source, expected), advance=advance)
        found += [replace(each, file=str(source / each.file)) for each in changed]
        report |= {
            "source": str(source),
            "compared": report["tensors"],
            "exact": report["tensors"] - len(changed),
            "worst": [],
        }
    return {**report, "findings": [asdict(each) for each in found]}


def _headers(folder: Path, files: Iterable[str]) -> dict[str, dict[str, TensorInfo]]:
    """Return where the tensors of some files lie; a file that is missing has none."""
    return {name: read_header(folder / name) if (folder / name).is_file() else {} for name in files}
