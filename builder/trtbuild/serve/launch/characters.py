"""Characters of paths that a way of launching has no spelling for: refused by name, before a file is written that means something else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtbuild.errors import UsageError
from trtbuild.serve.launch.plan import Mount
from trtbuild.serve.run_folder import odd_characters


@dataclass(frozen=True, slots=True)
class Syntax:
    """What the mounts of a way cannot say.

    Attributes:
        option: where they stand.
        source: characters that a folder here may not have.
        target: characters that a folder in the container may not have.
    """

    option: str
    source: str
    target: str


#: Way -> its syntax. pyxis parts mounts at `,` and `:` and makes lines of an fstab of them, in which blanks part and `#` and a backslash mean
#: something (`parse_mount_option` and `add_mount` in its args.c). Kubernetes refuses `:` in mountPath (API reference of VolumeMount); folders
#: here do not occur. The values of `docker run --mount` are CSV, in which all but a carriage return can be quoted.
_SYNTAX = {
    "slurm": Syntax("--container-mounts", ",:#\\ \t\n\r", ",:#\\ \t\n\r"),
    "kubernetes": Syntax("mountPath", "", ":"),
    "docker": Syntax("--mount", "\r", "\r"),
}


def check_mounts(way: str, mounts: Sequence[Mount]) -> None:
    """Refuse folders that the mounts of a way cannot name.

    Raises:
        UsageError: one has such a character.
    """
    if (syntax := _SYNTAX.get(way)) is None:
        return
    for mount in mounts:
        for path, refused, remedy in (
            (mount.target, syntax.target, "render the repository for another place: --path-map HERE=/deployment"),
            (mount.source, syntax.source, "move the folder to another name"),
        ):
            if found := [character for character in refused if character in path]:
                raise UsageError(f"{path} has {_named(found)}, which {syntax.option} of --with {way} cannot say", hint=remedy)  # fmt: skip


def check_repository(path: str, hint: str) -> None:
    """Refuse a place of the repository that Triton's Python backend cannot handle: it starts its processes through a shell, unquoted.

    Args:
        path: as the server sees it.
        hint: what to do.

    Raises:
        UsageError: it has such a character.
    """
    if odd := odd_characters(path):
        raise UsageError(f"the server would see the repository at {path}, and its Python backend cannot handle {_named(odd)} there", hint=hint)  # fmt: skip


def _named(characters: Sequence[str]) -> str:
    return ", ".join(f"'{each}'" if each.isprintable() else ascii(each) for each in characters)
