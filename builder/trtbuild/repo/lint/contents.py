"""Rules about what else lies in a repository: the manifest of what trtbuild rendered, and links that lead nowhere."""

from __future__ import annotations

from collections.abc import Iterator

from trtbuild import manifest
from trtbuild.errors import TrtbuildError
from trtbuild.repo.lint.findings import Problem, Rule
from trtbuild.repo.lint.reading import dead_links_below, exists, is_file
from trtbuild.repo.lint.repository import Repository
from trtbuild.source import read_json

_KIND = "repository"
#: Parts of the path of what Triton itself looks at: entries of the repository, and of the folder of a model.
_SEEN_BY_TRITON = 2


def damaged_manifest(repository: Repository) -> Iterator[Problem]:
    """Find a manifest that cannot be read; a file of that name that says nothing of trtbuild is somebody else's."""
    if not is_file(repository.path / manifest.NAME):
        return
    try:
        if read_json(repository.path / manifest.NAME).get("kind") == _KIND:
            manifest.read(repository.path, kind=_KIND)
    except TrtbuildError as error:
        yield Problem(manifest.NAME, error.message, "render the repository again with --force, or copy it again; remove the file where it is not trtbuild's")  # fmt: skip


def dead_link(repository: Repository) -> Iterator[Problem]:
    """Find symbolic links that lead nowhere, where the server sees them."""
    for link in sorted(dead_links_below(repository.path)):
        target = link.readlink()
        if target.is_absolute() and repository.facts.view.here is not None:
            here = repository.facts.view.find(str(target))
            if here is None or exists(here):
                continue
        name = link.relative_to(repository.path)
        yield Problem(
            name.as_posix(), f"it is a link to {target}, and nothing is there", "remove the link, or copy what it names",
            severity=None if len(name.parts) <= _SEEN_BY_TRITON else "warning",
        )  # fmt: skip


RULES: dict[str, Rule] = {
    "manifest-damaged": Rule(
        "error", damaged_manifest, "a manifest.json that trtbuild wrote and that cannot be read any more",
        "`serve`, `doctor --for` and `render` read it: which release must serve, how many processes, which files were rendered. Triton does not.",
        "`trtbuild render --force` writes it anew, or copy the repository again.",
    ),
    "dead-link": Rule(
        "error", dead_link, "symbolic links that lead nowhere, through `--path-map` where they are absolute",
        "`failed to stat file`, and the server exits, for one in the repository or in the folder of a model; deeper ones are a warning: Triton passes over them "
        "(seen with Triton 2.51), but what opens them fails.",
        "Remove the link, or copy what it names.",
    ),
}  # fmt: skip
