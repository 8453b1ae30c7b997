"""Launch files in a repository's folder and in the one above: their texts, without comments. Reads, judges nothing."""

from __future__ import annotations

import itertools
import os
import re
from dataclasses import dataclass
from pathlib import Path

from trtbuild.repo.lint.reading import read_lenient

#: More files than this in one folder, or larger ones, nobody wrote by hand.
MOST_FILES, MOST_BYTES = 500, 256 * 1024
_LAUNCH = re.compile(
    r"(?i).*\.(?:sh|ya?ml|service|slurm|sbatch)|(?:docker|container)file.*|.*\.dockerfile|makefile|procfile"
)
_COMMENT = re.compile(r"(?m)^[ \t]*#.*$")
_SERVER = re.compile(r"\btritonserver\b|launch_triton_server|--model-(?:repository|store)\b")


@dataclass(frozen=True, slots=True)
class LaunchFile:
    """One file.

    Attributes:
        name: relative to the repository.
        text: with spaces for comments, so that lines and offsets stay what they are.
        names_repository: whether it speaks of the repository's folder; another one may be for something else.
    """

    name: str
    text: str
    names_repository: bool

    @property
    def starts_server(self) -> bool:
        """Whether it starts Triton."""
        return _SERVER.search(self.text) is not None

    def line(self, offset: int) -> int:
        """Return the number of the line that an offset is in, from 1."""
        return self.text.count("\n", 0, offset) + 1


def launch_files(repository: Path) -> tuple[LaunchFile, ...]:
    """Return the launch files of a repository, sorted by folder and name."""
    found, inner = [], repository.absolute()
    name_of_it = re.compile(rf"(?<![\w-]){re.escape(inner.name)}(?![\w-])")  # not the end of --model-repository
    for folder in (inner, inner.parent):
        try:
            with os.scandir(folder) as entries:
                names = [entry.name for entry in itertools.islice(entries, MOST_FILES) if _LAUNCH.fullmatch(entry.name)]
        except OSError:
            continue
        for name in sorted(names):
            text = read_lenient(folder / name, most_bytes=MOST_BYTES)
            if text:
                blank = _COMMENT.sub(lambda match: " " * len(match[0]), text)
                found.append(
                    LaunchFile(name if folder == inner else f"../{name}", blank, name_of_it.search(blank) is not None)
                )
    return tuple(found)
