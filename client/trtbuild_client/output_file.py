"""Files that a user names and a command writes: whole or not at all, through links, and never over one that was read."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from trtbuild_client.errors import InvalidRequest

#: What lies here is the system's own, and written to as it is; in shared memory are files like any other (proc(5), shm_overview(7)).
_SYSTEM, _ORDINARY = (Path("/dev"), Path("/proc")), Path("/dev/shm")
#: Links that lead to links: as many as Linux follows (path_resolution(7)).
_MOST_LINKS = 40

#: (what names it, the file) of an option or argument; None where it was not given.
Named = tuple[str, Path | None]


def target_of(path: Path) -> Path:
    """Return what is written when a path is: what its links lead to, or the first on the way that is the system's own (below /dev and /proc).

    Raises:
        OSError: links that lead round in a circle.
    """
    return next(each for each in _way(path) if _is_of_system(each) or not each.is_symlink())


def _way(path: Path) -> Iterator[Path]:
    """Yield a path and what its links lead to, one after the other, each with its folder as it really is."""
    for _ in range(_MOST_LINKS):
        path = Path(os.path.realpath(path.parent), path.name)
        yield path
        if not path.is_symlink():
            return
        path = path.parent / path.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def is_written_as_it_is(target: Path) -> bool:
    """Say whether what `target_of` returned is no file that may be replaced: a device, a pipe, or a descriptor such as /dev/stdout."""
    return _is_of_system(target) or (target.exists() and not target.is_file() and not target.is_dir())


def _is_of_system(path: Path) -> bool:
    return any(each in path.parents for each in _SYSTEM) and _ORDINARY not in path.parents


@contextmanager
def replaced(path: Path, *, ending: str = "") -> Iterator[BinaryIO]:
    """Open a file for writing that takes the place of what is at `path` when the block ends well; until then, and else, that stays.

    A link stays a link: what it leads to is replaced. Devices, pipes and descriptors are written to as they are.

    Args:
        path: the file; its folder must be there.
        ending: of the hidden file beside it, where only one process at a time writes there: the next one takes over what a killed one
            left. Default: one of this process.

    Raises:
        OSError: nothing can be written there, or not all of it.
    """
    target = target_of(path)
    if is_written_as_it_is(target):
        with _opened(target) as file:
            yield file
        return
    temporary = target.with_name(f".{target.name}{ending or f'.{os.getpid()}.part'}")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _opened(target: Path) -> BinaryIO:
    """Open what is written as it is. A descriptor of our own goes on where it is: opened by name, a file would be cut and written over."""
    own = Path("/proc", str(os.getpid()), "fd")
    number = next((each.name for each in _way(target) if each.parent == own and each.name.isdecimal()), None)
    return target.open("wb") if number is None else os.fdopen(os.dup(int(number)), "wb")


def check_apart(outputs: Iterable[Named], inputs: Iterable[Named] = ()) -> None:
    """Refuse outputs that are one file with another or with an input, by whatever names and links; devices may be given twice.

    Raises:
        InvalidRequest: they are; says which.
    """
    taken = [(name, path, "is read") for name, path in inputs if path is not None]
    for name, path in outputs:
        if path is None:
            continue
        if not (path.exists() and not path.is_file()):
            for other, file, why in taken:
                if _is_same(path, file):
                    raise InvalidRequest(
                        f"{name} {path} is the file of {other}, which {why}", hint=f"Give {name} a file of its own."
                    )
        taken.append((name, path, "is written, too"))


def _is_same(a: Path, b: Path) -> bool:
    if a.exists() and b.exists():
        return a.samefile(b)
    return os.path.realpath(a) == os.path.realpath(b)
