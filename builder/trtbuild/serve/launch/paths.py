"""Paths that a repository names, and the folders that a container must see so that they exist there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from trtbuild.errors import UsageError
from trtbuild.repo.lint.repository import read_repository
from trtbuild.serve.launch.plan import Mount
from trtbuild.yaml_text import parse_document

#: Endings of names of parameters, and keys of model.yaml, whose values are paths.
PATH_ENDINGS = ("_path", "_dir")
_KEYS = ("model", "tokenizer", "speculative_model", "speculative_model_dir")
#: What NVIDIA's images bring along.
_OF_THE_IMAGE = "/opt/tritonserver"
#: Where a build folder is mounted when nothing in it says another place.
DEFAULT_TARGET = "/deployment"


def named_paths(repository: Path) -> list[str]:
    """Return the absolute paths that configurations and model.yaml files name, each once."""
    found: dict[str, None] = {}
    for model in read_repository(repository).parsed():
        values = [value for name, value in model.parameters().items() if name.endswith(PATH_ENDINGS)]
        for name in model.files:
            if name.endswith("/model.yaml"):
                said: Any = parse_document(
                    (repository / name).read_text(encoding="utf-8", errors="replace"),
                    origin=str(repository / name),
                    hint="render the repository again",
                ).data
                values += [str(value) for key, value in said.items() if key in _KEYS] if isinstance(said, dict) else []
        found |= dict.fromkeys(each for each in values if each.startswith("/") and not each.startswith(_OF_THE_IMAGE))
    return list(found)


def absent_paths(repository: Path) -> list[str]:
    """Return those of the named paths at which there is nothing on this machine."""
    return [path for path in named_paths(repository) if not Path(path).exists()]


def here_as(path: str, root: Path) -> Mount | None:
    """Return the mount of a build folder that makes a path exist, by the longest tail of it that the folder has; None when it has none."""
    fronts = (front for front, tail in splits(PurePosixPath(path)) if tail.parts and (root / tail).exists())
    return next((Mount(str(root), str(front)) for front in fronts), None)


def mounts_for(root: Path, repository: Path, given: Sequence[tuple[str, str]]) -> tuple[Mount, ...]:
    """Return the folders to mount so that every path the repository names exists in the container.

    Args:
        root: the build folder, or the repository where there is none; the first mount is the one that holds it.
        repository: inside the root.
        given: (folder here, the same folder in the container), as typed.

    Raises:
        UsageError: a path exists neither here nor, by its last parts, in the build folder.
    """
    mounts = [Mount(str(Path(here).resolve()), there.rstrip("/") or "/") for here, there in given]
    for path in named_paths(repository):
        if not any(_is_under(path, mount.target) for mount in mounts):
            mounts.append(_infer(path, root))
    if not any(_is_under(str(root), mount.source) for mount in mounts):
        mounts.append(Mount(str(root), DEFAULT_TARGET))
    unique = list(dict.fromkeys(mounts))
    return tuple(sorted(unique, key=lambda mount: not _is_under(str(root), mount.source)))


def seen_as(path: Path, mounts: Sequence[Mount]) -> str:
    """Return a path here as the container sees it; one of the mounts must hold it."""
    mount = next(mount for mount in mounts if _is_under(str(path), mount.source))
    return str(PurePosixPath(mount.target, path.relative_to(mount.source)))


def _infer(path: str, root: Path) -> Mount:
    if (mount := here_as(path, root)) is not None:
        return mount
    if Path(path).exists():
        folder = path if Path(path).is_dir() else str(Path(path).parent)
        return Mount(folder, folder)
    raise UsageError(
        f"the repository names {path}, which is neither here nor in {root}",
        hint="say which folder it is with --mount FOLDER_HERE=FOLDER_IN_THE_CONTAINER, or render the repository again",
    )


def splits(path: PurePosixPath) -> Iterator[tuple[PurePosixPath, PurePosixPath]]:
    """Yield (front, tail) of a path, the longest tail first; the front is never the root folder."""
    for front in reversed(path.parents):
        if len(front.parts) > 1:
            yield front, path.relative_to(front)


def _is_under(path: str, folder: str) -> bool:
    return PurePosixPath(path).is_relative_to(folder)
