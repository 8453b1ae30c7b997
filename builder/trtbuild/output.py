"""Folders that appear whole or not at all: written beside their place, synced, then renamed into it."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trtbuild.errors import CheckFailed, ToolFailed, TrtbuildError, UsageError
from trtbuild.manifest import NAME as MANIFEST
from trtbuild.termination import terminated_like_interrupted
from trtbuild_client.output_file import is_written_as_it_is, replaced, target_of

logger = logging.getLogger(__name__)

#: Says, in a folder under construction, what it is the work of.
_WORK = ".work"


def check_output(path: Path, *, force: bool, keep: tuple[Path, ...] = ()) -> None:
    """Refuse an output folder that exists (unless `force`) or whose replacement would destroy something else.

    Args:
        path: the folder to be written.
        force: whether an existing one that trtbuild wrote may be replaced.
        keep: folders that are read and must stay as they are.

    Raises:
        UsageError: it lies inside one of `keep`, or holds one of them, the home or the current folder; or it is "-".
        TrtbuildError: it exists, is not a folder, or nothing can be written there.
    """
    refuse_dash(path)
    target = path.absolute().resolve()
    for kept in (*keep, Path.home(), Path.cwd()):
        if kept.resolve() == target or target in kept.resolve().parents:
            raise UsageError(f"output {path} would replace {kept}", hint="choose another output folder with -o")
    for kept in keep:
        if kept.resolve() in target.parents:
            raise UsageError(f"output {path} lies inside {kept}", hint="choose an output folder outside of it with -o")
    if path.is_symlink():
        raise TrtbuildError(
            f"output {path} is a symbolic link, which would be replaced by a folder",
            hint=f"name what it leads to with -o {target}",
        )
    if path.exists() and not path.is_dir():
        raise TrtbuildError(f"output {path} exists and is not a folder", hint="choose another output folder with -o")
    check_writable(path)
    if not path.exists() or not any(path.iterdir()):
        return
    if not (path / MANIFEST).is_file():
        raise TrtbuildError(
            f"output folder {path} exists and was not made by trtbuild (it has no {MANIFEST})",
            hint="choose another with -o, or remove the folder yourself; --force replaces only what trtbuild wrote",
        )
    if not force:
        raise TrtbuildError(f"output folder {path} exists", hint="choose another with -o, or replace it with --force")


def check_writable(path: Path) -> None:
    """Refuse a place that takes no files: below a file, read-only, without permission, or no disk, as /proc; a file without a name is made to see.

    Raises:
        TrtbuildError: it takes none.
    """
    folder = path.absolute().parent
    while not os.path.lexists(folder):
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise TrtbuildError(
            f"{path} cannot be written: {folder} takes no files ({error.strerror})",
            hint="name a place on a disk, in a folder that you may write to",
        ) from error


def check_space(path: Path, needed: int) -> None:
    """Raise TrtbuildError unless the disk that holds `path` has room for `needed` bytes, less what an unfinished run left there."""
    existing = path.absolute()
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    missing = needed - _allocated(_stage_of(path)) - free
    if missing > 0:
        raise TrtbuildError(
            f"{path} needs {needed:,} bytes, the disk has {free:,} free: {missing:,} bytes are missing",
            hint="free some space or choose another disk with -o",
        )


def _stage_of(path: Path) -> Path:
    path = path.absolute()
    return path.parent / f".{path.name}.partial"


def is_unfinished(path: Path) -> bool:
    """Say whether a name is of a folder under construction."""
    return path.name.startswith(".") and path.name.endswith(".partial")


def place_of(folder: Path) -> Path:
    """Return where a folder under construction will be; any other folder is where it is."""
    path = folder.absolute()
    return path.with_name(path.name[1:].removesuffix(".partial")) if is_unfinished(path) else path


def _allocated(folder: Path) -> int:
    """Return the bytes a folder takes on disk; files under construction may have holes."""
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())


@contextmanager
def staged_folder(path: Path, *, work: str | None = None, needed: int = 0) -> Iterator[Path]:
    """Yield a sibling of `path`; when the block ends well it is synced and takes the place of `path`.

    Without `work` the sibling is empty, and a block that raises leaves nothing. With it, a block that is interrupted, stopped by the
    disk or refused by a check leaves the sibling, and the next run of the same work gets it back; other work empties it first.

    Args:
        path: the folder to be.
        work: what identifies the work, for work that can be resumed.
        needed: bytes of the finished folder, to say how much room was missing.

    Raises:
        TrtbuildError: another process is writing the same output, or the disk refuses.
    """
    path = path.absolute()
    stage = _stage_of(path)
    try:
        stage.mkdir(parents=True, exist_ok=True)
        with terminated_like_interrupted(), _locked(stage, path):
            _put_back(path)
            if work is None or not _is_of(stage, work):
                _empty(stage)
            if work is not None:
                (stage / _WORK).write_text(work, encoding="utf-8")
            try:
                yield stage
                (stage / _WORK).unlink(missing_ok=True)
                _sync_tree(stage)
                _replace(stage, path)
            except BaseException as error:
                if work is None or not _is_passing(error):
                    _remove(stage)
                else:
                    logger.warning("what is finished is kept in %s; the same command goes on from there", stage)
                raise
    except OSError as error:
        raise TrtbuildError(
            f"cannot write {_shown(error.filename or path, stage, path)}: {error.strerror or error}{_missing(error, stage, needed)}",
            hint="check free space and permissions",
        ) from error


def drop_unfinished(path: Path) -> None:
    """Remove what a killed run left beside a folder that is finished, unless somebody works on it; say so, and also where it cannot be removed."""
    stage = _stage_of(path)
    if not (stage / _WORK).is_file():
        return
    descriptor = os.open(stage, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(stage)
        logger.info("removed %s, which an interrupted run left", stage)
    except BlockingIOError:
        return
    except OSError as error:
        logger.warning("note: an interrupted run left %s, which cannot be removed: %s", stage, error.strerror)
    finally:
        os.close(descriptor)


def _shown(name: object, stage: Path, path: Path) -> str:
    """Return the name of a file as it will be: nobody asked for the hidden folder."""
    return str(name).replace(str(stage), str(path))


def _is_of(stage: Path, work: str) -> bool:
    file = stage / _WORK
    return file.is_file() and file.read_text(encoding="utf-8", errors="replace") == work


def _is_passing(error: BaseException) -> bool:
    """Say whether the same work may succeed the next time: it was interrupted, a disk or a program failed, or a check refused what was made."""
    return isinstance(error, (KeyboardInterrupt, OSError, CheckFailed, ToolFailed)) or isinstance(
        error.__cause__, OSError
    )


def _missing(error: OSError, stage: Path, needed: int) -> str:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not needed:
        return ""
    missing = needed - _allocated(stage) - shutil.disk_usage(stage.parent).free
    return f" ({missing:,} bytes are missing)" if missing > 0 else ""


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
            if not (file := Path(directory) / name).is_symlink():
                _sync(file)
        _sync(Path(directory))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace(stage: Path, path: Path) -> None:
    old = _replaced_of(path)
    _remove(old)
    try:
        if path.exists():
            path.rename(old)
        stage.rename(path)
    except BaseException:
        _put_back(path)
        raise
    _sync(path.parent)
    try:
        _remove(old)
    except OSError as error:
        logger.warning("note: what was replaced could not be removed: %s: %s", error.filename or old, error.strerror)


def _replaced_of(path: Path) -> Path:
    return path.parent / f".{path.name}.replaced"


def _put_back(path: Path) -> None:
    """Undo the first of the two renames of `_replace`, where a run ended between them."""
    old = _replaced_of(path)
    if old.is_dir() and not path.exists():
        old.rename(path)


def link_or_copy(source: str, place: str) -> None:
    """Give a file a second name, or copy it where there can be none; what a symbolic link leads to is copied."""
    if Path(source).is_symlink():
        shutil.copy2(source, place)
        return
    try:
        os.link(source, place)
    except OSError:  # another disk, or a file of another user
        shutil.copy2(source, place)


def write_atomically(path: Path, content: str | bytes | Iterable[bytes | memoryview]) -> None:
    """Write a file (text as UTF-8, or piece by piece) so that readers see the old or the new content, never a part of it.

    What a link leads to is written, and devices and pipes as they are: see `trtbuild_client.output_file.replaced`.

    Raises:
        TrtbuildError: it cannot be written.
    """
    if isinstance(content, str):
        content = content.encode()
    try:
        with replaced(path, ending=".partial") as file:
            file.writelines([content] if isinstance(content, bytes) else content)
    except OSError as error:
        raise TrtbuildError(
            f"cannot write {path}: {error.strerror}", hint="check free space and permissions"
        ) from error


def check_file(output: Path, *, force: bool) -> None:
    """Refuse a file that cannot be written: a folder, one that is there (unless `force`), or in a folder that is not or that takes no files.

    Links are followed; devices, pipes and descriptors such as /dev/stdout are written to as they are, so that nothing of them is replaced.

    Raises:
        TrtbuildError: any of them.
        UsageError: it is "-".
    """
    refuse_dash(output)
    if output.is_dir():
        raise TrtbuildError(f"{output} is a folder", hint=f"name a file, for example -o {output / 'trtbuild.yaml'}")
    target = target_of(output)
    if is_written_as_it_is(target) and target.exists():
        return
    if output.exists() and not force:
        raise TrtbuildError(f"{output} exists", hint="--force replaces it; -o FILE writes another one")
    if not target.parent.is_dir():
        raise TrtbuildError(f"the folder {target.parent} does not exist", hint="create it first")
    check_writable(target)


def refuse_dash(output: Path) -> None:
    """Refuse "-", which elsewhere is stdout, and would be a file or a folder of that name here.

    Raises:
        UsageError: it is.
    """
    if output.parts[:1] == ("-",):  # "-/1" is that of a command which makes subfolders
        raise UsageError(
            "an output named '-'",
            hint="/dev/stdout is the standard output; for a file of that name give its whole path",
        )
