"""manifest.json: what an artifact was made from, by what, and how long it took. Holds no secrets and no environment.

The artifact itself stays byte-identical between runs; times and memory are only here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtbuild import __version__
from trtbuild.errors import TrtbuildError
from trtbuild.source import SourceCheckpoint, read_json

#: Raised when a key changes its meaning or goes away.
SCHEMA_VERSION = 1
NAME = "manifest.json"
#: Folder of the checkpoint in a build folder.
CHECKPOINT = "checkpoint"


def source_identity(source: SourceCheckpoint) -> dict[str, Any]:
    """Return what tells one state of a model folder from another: config digest, and name, size and mtime of each weight file."""
    return {
        "path": str(source.path.resolve()),
        "config_sha256": hashlib.sha256((source.path / "config.json").read_bytes()).hexdigest(),
        "files": [
            {"name": file.name, "bytes": file.stat().st_size, "mtime_ns": file.stat().st_mtime_ns}
            for file in source.files
        ],
    }


def header(kind: str) -> dict[str, Any]:
    """Return the first entries of every manifest."""
    return {"schema_version": SCHEMA_VERSION, "kind": kind, "trtbuild": __version__}


def digest(value: Any) -> str:
    """Return the SHA-256 of a JSON value, independent of the order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def write(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write manifest.json into a folder under construction; that of a checkpoint lists all other files that are there."""
    listed = {**manifest, "files": files_of(folder)} if manifest.get("kind") == "checkpoint" else manifest
    (folder / NAME).write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")


def files_of(folder: Path) -> dict[str, dict[str, Any]]:
    """Return relative name -> size of every file but the manifest and hidden ones, and SHA-256 of those that are no weights.

    Weights have a digest for each tensor instead.
    """
    found = {}
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        if (
            not file.is_file()
            or file.name == NAME
            or any(part.startswith(".") for part in file.relative_to(folder).parts)
        ):
            continue
        entry: dict[str, Any] = {"bytes": file.stat().st_size}
        if file.suffix != ".safetensors":
            entry["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
        found[name] = entry
    return found


def is_complete(folder: Path, manifest: Mapping[str, Any]) -> bool:
    """Say whether every file that a manifest lists is there, in its size; the quick look before work is taken for done."""
    listed = manifest.get("files")
    if not isinstance(listed, Mapping):
        return False
    return all(
        (folder / name).is_file()
        and isinstance(entry, Mapping)
        and (folder / name).stat().st_size == entry.get("bytes")
        for name, entry in listed.items()
    )


def read(folder: Path, *, kind: str) -> dict[str, Any]:
    """Read manifest.json.

    Raises:
        TrtbuildError: missing, of another kind, or of another schema version.
    """
    if not (folder / NAME).is_file():
        raise TrtbuildError(f"{folder} has no {NAME}", hint=f"it is not a {kind} folder made by trtbuild")
    manifest = read_json(folder / NAME)
    found = (manifest.get("kind"), manifest.get("schema_version"))
    if found != (kind, SCHEMA_VERSION):
        raise TrtbuildError(
            f"{folder / NAME} is of kind {found[0]!r}, schema {found[1]!r}",
            hint=f"expected kind {kind!r}, schema {SCHEMA_VERSION}",
        )
    return manifest


def peak_rss_bytes() -> int:
    """Return the peak resident memory of this process since it began; `ru_maxrss` would count what its parent had."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
