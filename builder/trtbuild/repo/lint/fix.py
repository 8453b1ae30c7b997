"""Applies the safe changes that findings offer: whole files, written beside and renamed into place; nothing else in them changes."""

from __future__ import annotations

import difflib
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trtbuild.errors import TrtbuildError
from trtbuild.repo.lint.findings import Edit, Finding


@dataclass(frozen=True, slots=True)
class Fixed:
    """A file and what becomes of it.

    Attributes:
        name: relative to the repository.
        before: its text.
        after: its text with the edits.
        does: what the edits do.
        rules: the rules whose findings they mend.
    """

    name: str
    before: str
    after: str
    does: tuple[str, ...]
    rules: tuple[str, ...]

    @property
    def diff(self) -> str:
        """The change as a unified diff."""
        before, after = (each.splitlines(keepends=True) for each in (self.before, self.after))
        found = difflib.unified_diff(before, after, f"a/{self.name}", f"b/{self.name}")
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in found)


def plan(repository: Path, findings: Iterable[Finding]) -> list[Fixed]:
    """Return what the edits of findings make of each file; of two that overlap the first is applied.

    Raises:
        TrtbuildError: a file cannot be read any more.
    """
    by_file: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.edit is not None:
            by_file.setdefault(finding.file, []).append(finding)
    fixed = []
    for name, found in by_file.items():
        try:
            before = (repository / name).read_bytes().decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TrtbuildError(f"{repository / name} cannot be read: {error}", hint="run lint again") from error
        applied = _without_overlaps(found)
        edits = [edit for finding in applied if (edit := finding.edit) is not None]
        fixed.append(Fixed(name, before, apply(before, edits), tuple(edit.does for edit in edits), tuple(finding.rule for finding in applied)))  # fmt: skip
    return fixed


def apply(text: str, edits: Iterable[Edit]) -> str:
    """Return a text with edits made that do not overlap; those at one place in the order in which they are given."""
    parts, position = [], 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        parts += [text[position : edit.start], edit.text]
        position = edit.end
    return "".join([*parts, text[position:]])


def write(repository: Path, fixed: Iterable[Fixed]) -> None:
    """Write files, each whole or not at all, with the permissions they had.

    Raises:
        TrtbuildError: a file cannot be written, or changed since it was read.
    """
    for each in fixed:
        file = (repository / each.name).resolve()
        try:
            if file.read_bytes() != each.before.encode("utf-8"):
                raise TrtbuildError(f"{file} changed while it was checked", hint="run lint again")
            _replace(file, each.after.encode("utf-8"))
        except OSError as error:
            raise TrtbuildError(f"{file} cannot be written: {error.strerror}", hint="check its permissions") from error


def _replace(file: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).chmod(file.stat().st_mode & 0o7777)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _without_overlaps(findings: Iterable[Finding]) -> list[Finding]:
    kept: list[Finding] = []
    taken: list[tuple[int, int]] = []
    for finding in findings:
        edit = finding.edit
        if edit is None or any(edit.start < end and start < edit.end for start, end in taken):
            continue
        if edit.start < edit.end:
            taken.append((edit.start, edit.end))
        kept.append(finding)
    return kept
