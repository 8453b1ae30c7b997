"""What would make a start fail that can be seen beforehand: an engine that is not here, or missing files of it, backends that the server on this machine lacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from trtbuild import integrity, manifest
from trtbuild.doctor.damage import damaged
from trtbuild.errors import TrtbuildError
from trtbuild.repo.lint.repository import ENGINE_BACKEND, Model, read_repository
from trtbuild.serve.launch.facts import Facts
from trtbuild.serve.launch.paths import absent_paths, named_paths, splits
from trtbuild.serve.locate import ServerInstall

#: Backend of a model that names a platform only (`BackendModel`, `GetBackendNameFromPlatform` in triton core; Triton's model configuration).
_OF_PLATFORM = {"tensorrt_plan": "tensorrt", "onnxruntime_onnx": "onnxruntime", "pytorch_libtorch": "pytorch"}
#: Parameter of a Python model with an environment of its own, which nothing is known about here (Triton's Python backend).
_OWN_ENVIRONMENT = "EXECUTION_ENV_PATH"
#: Package that the model of the LLM API imports.
_PACKAGE = "tensorrt_llm"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One of them.

    Attributes:
        message: what is wrong.
        hint: what helps.
    """

    message: str
    hint: str


def clear(obstacles: Sequence[Obstacle]) -> None:
    """Return when there are none.

    Raises:
        TrtbuildError: with all of them.
    """
    if obstacles:
        raise TrtbuildError(manifest.worded([each.message for each in obstacles]), hint="; ".join(dict.fromkeys(each.hint for each in obstacles)))  # fmt: skip


def damages(facts: Facts, engine: Path | None) -> list[Obstacle]:
    """Return what is missing from, or cut in, the folders that the repository names, as far as they are here.

    Args:
        facts: of the repository.
        engine: folder of the engine here, where the repository names it as a container sees it.
    """
    found: dict[str, None] = {}
    for folder in (*_folders(facts), *([engine] if engine else [])):
        found |= dict.fromkeys((*damaged(folder), *_of_build(facts.root, folder)))
    return [Obstacle(problem, "build it again, or copy it again: `trtbuild doctor --for` lists all that is wrong") for problem in found]  # fmt: skip


def _folders(facts: Facts) -> Iterator[Path]:
    """Yield the folders that the repository names, where they lie here: as it names them, or by their last parts in the build folder."""
    for path in named_paths(facts.repository):
        tails = (facts.root / tail for _, tail in splits(PurePosixPath(path)) if tail.parts)
        here = next((each for each in (Path(path), *tails) if each.is_dir()), None)
        if here is not None:
            yield here


def _of_build(root: Path, folder: Path) -> list[str]:
    """Return what differs in a folder from what the manifest of its build says."""
    real = folder.resolve()  # as the root is
    if not real.is_relative_to(root) or not (root / integrity.CONFIG).is_file():
        return []
    under = f"{real.relative_to(root)}/"
    try:
        stages = integrity.held(root).values()
    except TrtbuildError as error:
        return [error.message]
    return [problem for stage in stages for problem in manifest.damage(root, stage.files, under=under)]


def absent(facts: Facts) -> list[Obstacle]:
    """Return the folders that the repository names and this machine, on which the server is to run, does not have."""
    missing = ", ".join(absent_paths(facts.repository))
    hint = "build it there, or copy it there, before the start; --dry-run and -o work without it"
    return [Obstacle(f"{facts.repository} names {missing}, and nothing is there yet", hint)] if missing else []


def lacking(facts: Facts, install: ServerInstall) -> list[Obstacle]:
    """Return which backends and packages the server on this machine does not have; nothing where its folder of backends is not known."""
    models = list(read_repository(facts.repository).parsed())
    found: dict[str, list[str]] = {}
    for model in models if install.backends is not None else ():
        if (backend := _absent_backend(facts.repository, model, install)) is not None:
            found.setdefault(backend, []).append(model.folder)
    obstacles = [
        Obstacle(
            f"{install.binary} has no backend '{backend}', which {', '.join(names)} {'need' if len(names) > 1 else 'needs'}",
            _image_hint(facts) if backend == ENGINE_BACKEND else "name a tritonserver that has it with --server",
        )
        for backend, names in found.items()
    ]
    if facts.variant == "llmapi" and find_spec(_PACKAGE) is None and not any(_OWN_ENVIRONMENT in model.parameters() for model in models):  # fmt: skip
        obstacles.append(Obstacle(f"this Python has no {_PACKAGE}, which the model of the LLM API imports", _image_hint(facts)))  # fmt: skip
    return obstacles


def _absent_backend(repository: Path, model: Model, install: ServerInstall) -> str | None:
    """Return the backend of a model if it lies nowhere that Triton looks: in the version, in the model, among the server's."""
    assert install.backends is not None  # asked for by the caller
    name = model.config.backend or _OF_PLATFORM.get(model.config.platform, "")
    if not name or (install.backends / name).is_dir():
        return None
    folder = repository / model.folder
    library = model.config.runtime or f"libtriton_{name}.so"
    places = (folder, *(folder / version for version in model.versions))
    return None if any((place / library).is_file() for place in places) else name


def _image_hint(facts: Facts) -> str:
    """Return the image to use: that of the engine's or the stated release."""
    container = facts.release.container if facts.release else None
    image = container.image if container else "an image with the TensorRT-LLM that it was built with"
    return f"serve it in {image}: --with docker"
