"""Reads files that anybody may have put into a repository: no pipes, no folders, nothing larger than such a file ever is."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

#: Most files of one model that are looked at; a model in version folders has some hundred at most.
MOST_FILES = 100_000


class Unreadable(Exception):
    """Why a file cannot be read, for people."""


# pathlib raises for a path that is too long, leads in a circle, or lies in a folder that nobody may look into; here it is no file then.


def is_file(path: Path | str) -> bool:
    """Say whether there is a plain file, or a link to one."""
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: Path) -> bool:
    """Say whether there is a folder, or a link to one."""
    return os.path.isdir(path)  # noqa: PTH112


def exists(path: Path) -> bool:
    """Say whether there is anything."""
    return os.path.exists(path)  # noqa: PTH110


def is_link(path: Path) -> bool:
    """Say whether there is a symbolic link."""
    return os.path.islink(path)  # noqa: PTH114


def read_bytes(file: Path, *, most_bytes: int) -> bytes:
    """Return the content of a plain file.

    Args:
        file: the file; links are followed.
        most_bytes: a larger file is not read.

    Raises:
        FileNotFoundError: there is none.
        Unreadable: it is none, too large, or not ours to read.
    """
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            raise Unreadable("Is a directory" if stat.S_ISDIR(status.st_mode) else "it is no regular file")
        if status.st_size > most_bytes:
            raise Unreadable(f"it has {status.st_size} bytes; more than {most_bytes} are not read")
        return file.read_bytes()
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise Unreadable(getattr(error, "strerror", None) or str(error)) from error


def read_lenient(file: Path, *, most_bytes: int) -> str:
    """Return the text of a file, with replacement characters for what is no UTF-8; empty when it cannot be read."""
    try:
        return read_bytes(file, most_bytes=most_bytes).decode("utf-8", errors="replace")
    except (FileNotFoundError, Unreadable):
        return ""


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the plain files below a folder, however deep; folders that are links, or cannot be read, are passed over."""
    return (Path(path) for path in _below(folder) if is_file(path))


def dead_links_below(folder: Path) -> Iterator[Path]:
    """Yield the symbolic links below a folder that lead nowhere, or in a circle."""
    return (path for path in map(Path, _below(folder)) if is_link(path) and not exists(path))


def _below(folder: Path) -> Iterator[str]:
    """Yield everything below a folder but folders."""
    waiting, found = [str(folder)], 0
    while waiting and found < MOST_FILES:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        found += 1
                        yield entry.path
        except OSError:
            continue
