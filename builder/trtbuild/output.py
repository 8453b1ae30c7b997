"""Folders that appear whole or not at all: written beside their place, synced, then renamed into it."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trtbuild.errors import TrtbuildError
from trtbuild.manifest import NAME as MANIFEST


def check_output(path: Path, *, force: bool, keep: tuple[Path, ...] = ()) -> None:
    """Refuse an output folder that exists (unless `force`) or whose replacement would destroy something else.

    Args:
        path: the folder to be written.
        force: whether an existing one that trtbuild wrote may be replaced.
        keep: folders that are read and must stay as they are.

    Raises:
        TrtbuildError: it exists, is not a folder, lies inside one of `keep`, or holds one of them, the home or the
            current folder.
    """
    target = path.absolute().resolve()
    for kept in (*keep, Path.home(), Path.cwd()):
        if kept.resolve() == target or target in kept.resolve().parents:
            raise TrtbuildError(f"output {path} would replace {kept}", hint="choose another output folder with -o")
    for kept in keep:
        if kept.resolve() in target.parents:
            raise TrtbuildError(
                f"output {path} lies inside {kept}", hint="choose an output folder outside of it with -o"
            )
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise TrtbuildError(f"output {path} exists and is not a folder", hint="choose another output folder with -o")
    if not path.exists() or not any(path.iterdir()):
        return
    if not force:
        raise TrtbuildError(f"output folder {path} exists", hint="choose another with -o, or replace it with --force")
    if not (path / MANIFEST).is_file():
        raise TrtbuildError(
            f"output folder {path} was not made by trtbuild (it has no {MANIFEST})",
            hint="--force replaces only what trtbuild wrote; remove the folder yourself, or choose another with -o",
        )


def check_space(path: Path, needed: int) -> None:
    """Raise TrtbuildError unless the disk that holds `path` has `needed` bytes free."""
    existing = path.absolute()
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise TrtbuildError(
            f"{path} needs {needed:,} bytes, the disk has {free:,} free: {needed - free:,} bytes are missing",
            hint="free some space or choose another disk with -o",
        )


@contextmanager
def staged_folder(path: Path) -> Iterator[Path]:
    """Yield an empty sibling of `path`; when the block ends well it is synced and takes the place of `path`.

    A block that raises leaves nothing; a killed process leaves only the hidden sibling, which the next run removes.

    Raises:
        TrtbuildError: another process is writing the same output, or the disk refuses.
    """
    path = path.absolute()
    stage = path.parent / f".{path.name}.partial"
    try:
        stage.mkdir(parents=True, exist_ok=True)
        with _locked(stage, path):
            _empty(stage)
            try:
                yield stage
                _sync_tree(stage)
                _replace(stage, path)
            except BaseException:
                _remove(stage)
                raise
    except OSError as error:
        raise TrtbuildError(
            f"cannot write {error.filename or path}: {error.strerror or error}", hint="check free space and permissions"
        ) from error


@contextmanager
def _locked(stage: Path, path: Path) -> Iterator[None]:
    """Hold the folder itself as the lock, so that no lock file is left anywhere."""
    descriptor = os.open(stage, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = stage.exists() and os.path.samestat(stage.stat(), os.fstat(descriptor))
        except BlockingIOError:
            mine = False
        if not mine:
            raise TrtbuildError(
                f"another process is writing {path}", hint="wait for it, or choose another output folder"
            )
        yield
    finally:
        os.close(descriptor)


def _empty(folder: Path) -> None:
    for child in folder.iterdir():
        _remove(child) if child.is_dir() and not child.is_symlink() else child.unlink()


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _sync_tree(folder: Path) -> None:
    for directory, _, files in os.walk(folder):
        for name in files:
            _sync(Path(directory) / name)
        _sync(Path(directory))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace(stage: Path, path: Path) -> None:
    old = path.parent / f".{path.name}.replaced"
    _remove(old)
    if path.exists():
        path.rename(old)
    stage.rename(path)
    _sync(path.parent)
    _remove(old)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that readers see the old or the new content, never a part of it."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        _sync(partial)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise TrtbuildError(
            f"cannot write {path}: {error.strerror}", hint="check free space and permissions"
        ) from error
