"""manifest.json: what an artifact was made from, by what, and how long it took. Holds no secrets and no environment.

The artifact itself stays byte-identical between runs; times and memory are only here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from trtbuild import __version__
from trtbuild.errors import TrtbuildError
from trtbuild.manifest_form import FORMS, faults
from trtbuild.source import SourceCheckpoint, read_json

#: Raised when a key changes its meaning or goes away.
SCHEMA_VERSION = 1
NAME = "manifest.json"
#: Folder of the checkpoint in a build folder.
CHECKPOINT = "checkpoint"
#: Kind -> what to do about a folder whose manifest is damaged.
REMEDIES = {
    "build": "`trtbuild build` with --force builds everything again",
    "checkpoint": "convert the model again, with --force",
    "engine": "copy the whole folder again, or build the engine again (`trtbuild build --from engine`)",
    "repository": "`trtbuild render` with --force renders it again",
}
#: Manifests that list all other files of their folder; weights of a checkpoint have a digest for each tensor instead of one for the file.
_LISTS_FILES = {"checkpoint": (".safetensors",), "engine": ()}
#: Files that tell of the work and are not served: who removes them has not damaged anything.
_INCIDENTAL = frozenset({"build.log", "timing.cache"})
_BLOCK_BYTES = 16 * 2**20
#: So many problems are named in one line; a folder that lost its content has one for every file.
_SHOWN = 3


class DamagedManifest(TrtbuildError):
    """A manifest that cannot be read: cut, no JSON, of another schema version, or with values of other types."""


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
    """Write manifest.json into a folder under construction; that of a checkpoint or an engine lists all other files that are there."""
    kind = str(manifest.get("kind"))
    listed = {**manifest, "files": files_of(folder, kind=kind)} if kind in _LISTS_FILES else manifest
    (folder / NAME).write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")


def files_of(folder: Path, *, kind: str = "checkpoint") -> dict[str, dict[str, Any]]:
    """Return relative name -> size of every file but the manifest, logs and hidden ones, and SHA-256 of those whose tensors have none."""
    found = {}
    for file in _visible(folder):
        if file.name == NAME:
            continue
        entry: dict[str, Any] = {"bytes": file.stat().st_size}
        if file.suffix not in _LISTS_FILES[kind]:
            entry["sha256"] = file_digest(file)
        found[file.relative_to(folder).as_posix()] = entry
    return found


def sizes_of(folder: Path, outputs: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return relative name -> size of the files that a stage of a build left.

    Those of a folder have their digests in its manifest; the manifest itself, and what lies in no folder, has one here.

    Args:
        folder: of the build.
        outputs: names of files and folders in it.
    """
    found = {}
    for name in outputs:
        for file in _visible(folder / name) if (folder / name).is_dir() else [folder / name]:
            entry: dict[str, Any] = {"bytes": file.stat().st_size}
            if file.name == NAME or file.parent == folder:
                entry["sha256"] = file_digest(file)
            found[file.relative_to(folder).as_posix()] = entry
    return found


def _visible(folder: Path) -> Iterator[Path]:
    for file in sorted(folder.rglob("*")):
        if (
            file.is_file()
            and file.name not in _INCIDENTAL
            and not any(part.startswith(".") for part in file.relative_to(folder).parts)
        ):
            yield file


def file_digest(file: Path) -> str:
    """Return the SHA-256 of a file, which may be larger than the memory."""
    found = hashlib.sha256()
    with file.open("rb") as opened:
        while block := opened.read(_BLOCK_BYTES):
            found.update(block)
    return found.hexdigest()


def damage(folder: Path, listed: object, *, under: str = "") -> list[str]:
    """Return what is wrong with listed files: which are missing, and which are of another size; contents are read of manifests alone.

    Args:
        folder: that they are in.
        listed: what `files_of` or `sizes_of` returned when they were written.
        under: look only at files whose names begin with it.
    """
    if not is_listing(listed):
        return [f"{folder / NAME} does not list the files"]
    found = []
    for name, entry in listed.items():
        if not name.startswith(under):
            continue
        file = folder / name
        if not file.is_file():
            found.append(f"{file} is missing")
        elif (size := file.stat().st_size) != entry["bytes"]:
            found.append(f"{file} has {size:,} bytes, and {entry['bytes']:,} were written")
        elif file.name == NAME and "sha256" in entry and file_digest(file) != entry["sha256"]:
            found.append(f"{file} is not the one that was written: the folder is of another build")
    return found


def worded(problems: Sequence[str]) -> str:
    """Return problems as one line, the first of them by name."""
    more = f" (and {len(problems) - _SHOWN} more)" if len(problems) > _SHOWN else ""
    return "; ".join(problems[:_SHOWN]) + more


def is_listing(listed: object) -> TypeGuard[Mapping[str, Mapping[str, Any]]]:
    """Say whether a value has the form of what `files_of` and `sizes_of` return."""
    return isinstance(listed, Mapping) and all(
        isinstance(entry, Mapping) and isinstance(entry.get("bytes"), int) for entry in listed.values()
    )


def is_complete(folder: Path, manifest: Mapping[str, Any]) -> bool:
    """Say whether every file that a manifest lists is there, in its size; the quick look before work is taken for done."""
    return not damage(folder, manifest.get("files"))


def read(folder: Path, *, kind: str) -> dict[str, Any]:
    """Read manifest.json, which then has every key of its form (`manifest_form`).

    Raises:
        DamagedManifest: it is not JSON, of another schema version, or of another form.
        TrtbuildError: missing, unreadable, or of another kind.
    """
    if not (folder / NAME).is_file():
        raise TrtbuildError(f"{folder} has no {NAME}", hint=f"it is not a {kind} folder made by trtbuild")
    try:
        manifest = read_json(folder / NAME, remedy=REMEDIES[kind])
    except TrtbuildError as error:
        if isinstance(error.__cause__, OSError):
            raise
        raise DamagedManifest(error.message, hint=error.hint) from error
    found, schema = manifest.get("kind"), manifest.get("schema_version")
    if found in REMEDIES and found != kind:
        raise TrtbuildError(
            f"{folder / NAME} is of kind {found!r}: {folder} is no {kind} folder", hint=f"name a {kind} folder"
        )
    if (found, schema) != (kind, SCHEMA_VERSION):
        raise DamagedManifest(
            f"{folder / NAME} is of kind {found!r}, schema {schema!r}; this trtbuild ({__version__}) reads kind {kind!r}, "
            f"schema {SCHEMA_VERSION}",
            hint=REMEDIES[kind],
        )
    if wrong := list(faults(manifest, FORMS[kind])):
        raise DamagedManifest(
            f"{folder / NAME} is damaged, or of an older version: {worded(wrong)}", hint=REMEDIES[kind]
        )
    return manifest


def peak_rss_bytes() -> int:
    """Return the peak resident memory of this process since it began; `ru_maxrss` would count what its parent had."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
