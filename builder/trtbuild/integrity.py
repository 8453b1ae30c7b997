"""Whether what was built is still all there: a build folder with its stages, an engine, a checkpoint. Looks at names and sizes only.

That bytes are what was written is the business of `trtbuild verify`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild import manifest
from trtbuild.errors import TrtbuildError
from trtbuild.source import read_json
from trtbuild.trtllm.artifact import Artifact, read_artifact

#: The file that makes a folder a build folder.
CONFIG = "trtbuild.yaml"
#: Folders of a build, by the stage that leaves them.
_FOLDERS = (manifest.CHECKPOINT, "engine")
#: Kind of artifact -> file of a rank. Those of the generation before `build_config` are called otherwise.
_RANK_FILES = {"engine": "rank{}.engine", "checkpoint": "rank{}.safetensors"}


@dataclass(frozen=True, slots=True)
class Held:
    """What a build folder has of a stage.

    Attributes:
        key: digest of what the stage depends on.
        entry: of the stage in the manifest.
        problems: files that are missing or of another size; empty when it is whole.
    """

    key: str
    entry: Mapping[str, Any]
    problems: tuple[str, ...]

    @property
    def files(self) -> Mapping[str, Mapping[str, Any]]:
        """The files that it left, as `manifest.sizes_of` lists them; empty where the manifest does not."""
        files = self.entry.get("files")
        return files if manifest.is_listing(files) else {}


def held(folder: Path) -> dict[str, Held]:
    """Return stage -> what a build folder has of it; empty for a folder without a manifest.

    Raises:
        DamagedManifest: the manifest cannot be read.
        TrtbuildError: it is none of a build.
    """
    if not (folder / manifest.NAME).is_file():
        return {}
    stages = manifest.read(folder, kind="build")["stages"]
    return {
        name: Held(entry["key"], entry, tuple(manifest.damage(folder, entry.get("files"))))
        for name, entry in stages.items()
    }


def problems(folder: Path) -> list[str]:
    """Return what is missing from, or cut in, a folder: of a build every stage, of an engine or a checkpoint every rank.

    A Hugging Face folder without a manifest is taken as it is: whoever opens it reads every header.
    """
    if not (folder / CONFIG).is_file() or (folder / "config.json").is_file():
        return artifact_problems(folder)
    try:
        stages = held(folder)
    except TrtbuildError as error:
        return [error.message]
    found = [problem for stage in stages.values() for problem in stage.problems]
    # What was put beside the manifest by hand, such as an engine from a container.
    unlisted = [folder / name for name in _FOLDERS if name not in stages and (folder / name).is_dir()]
    return [*found, *(problem for each in unlisted for problem in artifact_problems(each))]


def artifact_problems(folder: Path, *, under: str = "") -> list[str]:
    """Return what is missing from, or cut in, an engine or checkpoint folder: by its manifest if it has one, and by the ranks of config.json.

    Args:
        folder: the folder.
        under: look only at files whose names begin with it, instead of at all.
    """
    try:
        by_manifest = listed_problems(folder, under=under)
        by_config = () if under else _rank_problems(folder, read_artifact(folder))
        return list(dict.fromkeys((*by_manifest, *by_config)))
    except TrtbuildError as error:
        return [error.message]


def listed_problems(folder: Path, *, under: str = "") -> list[str]:
    """Return what is wrong with the files that the manifest of an engine or a checkpoint lists; nothing where none is listed.

    Raises:
        TrtbuildError: there is a manifest that cannot be read.
    """
    file = folder / manifest.NAME
    listed = read_json(file, remedy=manifest.REMEDIES["engine"]).get("files") if file.is_file() else None
    return manifest.damage(folder, listed, under=under) if listed is not None else []


def _rank_problems(folder: Path, artifact: Artifact) -> Iterator[str]:
    pattern = _RANK_FILES.get(artifact.kind)
    if pattern is None or (artifact.generation is not None and artifact.generation.until is not None):
        return
    ranks = artifact.world_size
    for rank in range(ranks):
        file = folder / pattern.format(rank)
        if not file.is_file():
            yield f"{file} is missing"
        elif not file.stat().st_size:
            yield f"{file} is empty"
    wanted = {pattern.format(rank) for rank in range(ranks)}
    surplus = sorted(file.name for file in folder.glob(pattern.format("*")) if file.name not in wanted)
    surplus = [name for name in surplus if name.removeprefix("rank").partition(".")[0].isdecimal()]
    if surplus:
        yield f"{folder} has {', '.join(surplus)} beyond the {ranks} rank{'s' * (ranks > 1)} of its config.json"
