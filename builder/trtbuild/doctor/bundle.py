"""An archive for a bug report: what doctor found, versions, manifests, configs and the ends of logs. No weights, no secrets.

Only files that are listed here go in, only variables that are listed here are named, and everything passes the `Redactor`.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import platform
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild import __version__
from trtbuild.doctor.finding import Finding
from trtbuild.doctor.software import installed_packages
from trtbuild.doctor.survey import Survey
from trtbuild.errors import UsageError
from trtbuild.output import check_file, write_atomically
from trtbuild.redaction import Redactor
from trtbuild.variables import SETUP, pick

#: Files of an artifact that say what it is.
CONFIGS = (
    "trtbuild.yaml", "manifest.json", "config.json", "hf_quant_config.json", "quant_cfg.json", "generation_config.json", "evaluation.json",
    "config.pbtxt", "model.yaml",
)  # fmt: skip
LOGS = "*.log"
#: Larger files are not configs.
_LARGEST_CONFIG_BYTES = 2**20
LOG_LINES = 500
#: Read from the end of a log to find its last lines.
_LOG_BYTES = 2**19
#: Files in one archive; a folder with more is not a deployment.
_MOST_FILES = 200
#: Folders that are looked into, for the same reason: somebody may name the root of a disk.
_MOST_FOLDERS = 20_000


@dataclass(frozen=True, slots=True)
class Bundle:
    """An archive that was written.

    Attributes:
        path: of the archive.
        files: names in it.
        left_out: files of the artifact that did not go in, with the reason.
    """

    path: Path
    files: tuple[str, ...]
    left_out: tuple[str, ...]


def check_bundle(path: Path, *, force: bool = False) -> None:
    """Refuse a name that no archive can be written to; see `write_bundle`."""
    if not path.name.endswith((".tar.gz", ".tgz")):
        raise UsageError(f"--bundle {path} is no .tar.gz", hint="name it e.g. report.tar.gz")
    if os.path.lexists(path) and not force:
        raise UsageError(f"{path} exists", hint="name another file, or remove it")
    check_file(path, force=force)


def write_bundle(
    path: Path,
    findings: Iterable[Finding],
    facts: Survey,
    *,
    artifact: Path | None = None,
    environment: Mapping[str, str] | None = None,
    force: bool = False,
) -> Bundle:
    """Write the archive; it appears whole or not at all.

    Args:
        path: a name that ends in .tar.gz.
        findings: of doctor.
        facts: of this machine.
        artifact: folder whose configs and logs go in; None: none.
        environment: of this process unless given.
        force: replace an existing archive.

    Raises:
        UsageError: the name does not end in .tar.gz or .tgz, or the file exists.
        TrtbuildError: its folder does not exist, or takes no files.
    """
    check_bundle(path, force=force)
    found = os.environ if environment is None else environment
    redactor = Redactor.of_this_machine(found)
    left_out: list[str] = []
    members: dict[str, str] = {}
    for name, value in _facts(list(findings), facts, found).items():
        members[name] = json.dumps(redactor.value(value), indent=2, ensure_ascii=False) + "\n"
    for name, text in _files(artifact, redactor, left_out) if artifact else ():
        members[f"artifact/{redactor.text(name)}"] = text
    write_atomically(path, _archive(members))
    return Bundle(path, tuple(members), tuple(map(redactor.text, left_out)))


def _facts(findings: list[Finding], facts: Survey, environment: Mapping[str, str]) -> dict[str, Any]:
    packages = {copy.name: copy.version for copy in reversed(list(installed_packages(sys.path)))}
    return {
        "doctor.json": {
            "ok": not any(each.status == "fail" for each in findings),
            "has_gpu": bool(facts.gpus.devices),
            "findings": [each.to_json() for each in findings],
        },
        "machine.json": facts.to_json(),
        "versions.json": {
            "trtbuild": __version__,
            "python": sys.version,
            "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
            "libc": " ".join(platform.libc_ver()),
            "packages": dict(sorted(packages.items())),
        },
        "environment.json": pick(environment, SETUP),
    }


def _files(artifact: Path, redactor: Redactor, left_out: list[str]) -> Iterator[tuple[str, str]]:
    """Yield relative name and redacted text of each config, and the end of each log; links that leave the folder are not followed."""
    root = artifact.resolve()
    for number, file in enumerate(_wanted(artifact, left_out)):
        name = file.relative_to(artifact).as_posix()
        try:
            if not file.is_file() or not file.resolve().is_relative_to(root):
                left_out.append(f"{name}: not a file of this folder")
            elif number >= _MOST_FILES:
                left_out.append(f"{name}: more than {_MOST_FILES} files")
            elif file.suffix == ".log":
                yield name, _end_of(file, redactor)
            elif file.stat().st_size > _LARGEST_CONFIG_BYTES:
                left_out.append(f"{name}: {file.stat().st_size} bytes")
            else:
                yield name, redactor.file(name, file.read_text(encoding="utf-8", errors="replace"))
        except OSError as error:
            left_out.append(f"{name}: {error.strerror}")


def _wanted(artifact: Path, left_out: list[str]) -> list[Path]:
    """Return the configs, then the logs; no link to a folder is followed."""
    found: dict[str, list[Path]] = {pattern: [] for pattern in (*CONFIGS, LOGS)}
    for number, (folder, _, names) in enumerate(os.walk(artifact)):
        if number >= _MOST_FOLDERS:
            left_out.append(f"more than {_MOST_FOLDERS} folders: the rest was not looked at")
            break
        for name in names:
            pattern = LOGS if name.endswith(".log") else name
            if pattern in found:
                found[pattern].append(Path(folder, name))
    return [file for files in found.values() for file in sorted(files)]


def _end_of(log: Path, redactor: Redactor) -> str:
    """Return the last lines, redacted before they are chosen: the beginning of a key may lie before them."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _LOG_BYTES))
        text = file.read().decode("utf-8", errors="replace")
    if size > _LOG_BYTES:
        text = text.partition("\n")[2]  # cut in the middle, where half a token would look like none
    lines = redactor.text(text).splitlines()
    return "\n".join(lines[-LOG_LINES:]) + "\n"


def _archive(members: Mapping[str, str]) -> bytes:
    """Return a .tar.gz of texts, without times, owners or the name of the machine's user."""
    raw = io.BytesIO()
    with gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for name, text in members.items():
            content = text.encode("utf-8", errors="replace")
            entry = tarfile.TarInfo(f"trtbuild-report/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return raw.getvalue()
