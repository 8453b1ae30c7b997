"""What is known besides the repository: the release that will serve it, where the server sees which folder, and the engines it names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from trtbuild import manifest
from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.integrity import listed_problems
from trtbuild.repo.lint.reading import is_file, is_folder
from trtbuild.source import read_json
from trtbuild.trtllm.artifact import Artifact, read_artifact
from trtbuild.trtllm.engine import Engine
from trtbuild.trtllm.versions import Release, find_release

if TYPE_CHECKING:
    from trtbuild.repo.lint.repository import Model


ROOT = PurePosixPath("/")


@dataclass(frozen=True, slots=True)
class View:
    """Where the server's paths are here.

    Attributes:
        here: a folder of this machine; None when the server sees the same paths.
        there: the same folder as the server sees it.
    """

    here: Path | None = None
    there: PurePosixPath = ROOT

    def find(self, path: str) -> Path | None:
        """Return the place here of a path of the server's, None when it lies outside of what is mapped."""
        if self.here is None:
            return Path(path)
        seen = PurePosixPath(path)
        return self.here / seen.relative_to(self.there) if seen.is_relative_to(self.there) else None


@dataclass(frozen=True, slots=True)
class EngineFolder:
    """The folder that a model's gpt_model_path names.

    Attributes:
        path: of the folder, here.
        artifact: what it says about the versions it is for; None when it cannot be read.
        engine: its configuration; None when it is of another generation, or cannot be read.
        error: why it cannot be read.
        problems: files that are missing or cut, by the manifest beside it.
    """

    path: Path
    artifact: Artifact | None = None
    engine: Engine | None = None
    error: str = ""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that rules ask beyond the repository.

    Attributes:
        release: of TensorRT-LLM; None when nothing says which.
        origin: who says so.
        view: where the server's paths are.
        engines: name of a model -> the engine it runs, where the folder exists.
        rendered: file -> SHA-256 of what trtbuild rendered, as its manifest says; empty when the repository is not ours.
        variant: of the templates that trtbuild rendered it from; empty when it is not ours.
        gpus: how many the server sees; None when not known.
        beside: path -> models of other repositories that are served on the same GPUs.
        load_tokenizers: whether tokenizer.json may be loaded with the library tokenizers.
        notes: what could not be found out, for people.
    """

    release: Release | None = None
    origin: str = ""
    view: View = View()
    engines: Mapping[str, EngineFolder] = field(default_factory=dict)
    rendered: Mapping[str, str] = field(default_factory=dict)
    variant: str = ""
    gpus: int | None = None
    beside: Mapping[str, Sequence[Model]] = field(default_factory=dict)
    load_tokenizers: bool = False
    notes: tuple[str, ...] = ()


def gather(
    path: Path,
    models: Iterable[Model],
    *,
    release: Release | None = None,
    path_map: tuple[str, str] | None = None,
    gpus: int | None = None,
    beside: Mapping[str, Sequence[Model]] | None = None,
    load_tokenizers: bool = False,
) -> Facts:
    """Return what is known about a repository. The release is the one that is given, else an engine's, else our manifest's.

    Args:
        path: of the repository.
        models: of the repository.
        release: given by the user.
        path_map: (folder here, the same folder as the server sees it).
        gpus: how many the server sees.
        beside: path -> models of other repositories that are served on the same GPUs.
        load_tokenizers: whether tokenizers may be loaded.
    """
    view = View(Path(path_map[0]).expanduser().resolve(), PurePosixPath(path_map[1])) if path_map else View()
    engines = {}
    for model in models:
        folder = view.find(model.parameters().get("gpt_model_path", "")) if model.runs_engine else None
        if folder is not None and folder.is_absolute() and is_folder(folder):
            engines[model.folder] = _read(folder)
    ours, rendered = _of_manifest(path)
    origin, notes = "--tensorrt-llm", []
    if release is None:
        stated = [(f"the engine {each.path}", each.artifact.tensorrt_llm) for each in engines.values() if each.artifact]
        stated.append((f"{path / manifest.NAME}", str(ours.get("tensorrt_llm") or "")))
        origin, name = next(((who, name) for who, name in stated if name), ("", ""))
        try:
            release = find_release(name) if name else None
        except UsageError as error:
            notes.append(f"{origin}: {error.message}")
    return Facts(
        release, origin if release else "", view, engines, rendered, str(ours.get("variant") or ""), gpus, beside or {}, load_tokenizers, tuple(notes)
    )  # fmt: skip


def _read(folder: Path) -> EngineFolder:
    try:
        artifact = read_artifact(folder)
    except TrtbuildError as error:
        return EngineFolder(folder, error=error.message)
    except OSError as error:
        return EngineFolder(folder, error=f"{folder} cannot be read: {error.strerror}")
    try:
        return EngineFolder(folder, artifact, Engine.open(folder), problems=tuple(listed_problems(folder)))
    except TrtbuildError as error:
        # Of an old generation there is an artifact, and the rule about generations says so.
        is_old = artifact.generation is not None and artifact.generation.until is not None
        return EngineFolder(folder, artifact, error="" if is_old else error.message)


def _of_manifest(path: Path) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """Return the context and the files of our manifest; both empty when there is none of ours."""
    try:
        data: Any = read_json(path / manifest.NAME) if is_file(path / manifest.NAME) else {}
    except TrtbuildError:
        data = {}
    context, files = data.get("context"), data.get("files")
    return context if isinstance(context, dict) else {}, files if isinstance(files, dict) else {}
