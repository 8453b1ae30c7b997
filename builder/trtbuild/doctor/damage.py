"""What is wrong with an artifact itself, whatever machine it is on: files that are missing or cut, an engine that is not the one of its build."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from trtbuild import manifest
from trtbuild.errors import TrtbuildError
from trtbuild.integrity import CONFIG, artifact_problems, problems
from trtbuild.repo.proto import ConfigSyntaxError, parse_config
from trtbuild.source import read_json
from trtbuild.spec import load
from trtbuild.trtllm.artifact import read_artifact
from trtbuild.trtllm.engine import Engine
from trtbuild.trtllm.engine_fit import require_fit

#: What only an engine or a checkpoint holds, beside the config.json that may be gone.
_SIGNS = (manifest.NAME, "rank*.engine", "rank*.safetensors")


def damaged(path: Path) -> list[str]:
    """Return what is missing from, or cut in, a folder that doctor takes; empty for one that is whole, or none of these."""
    if (path / CONFIG).is_file():
        own = [(path / name).resolve() for name in ("engine", manifest.CHECKPOINT)]
        served = _of_repository(path / "repository", without=own)
        return list(dict.fromkeys((*problems(path), *_of_build(path), *served)))
    if any(path.glob("*/config.pbtxt")):
        return _of_repository(path)
    try:
        read_artifact(path)
    except TrtbuildError as error:
        return [error.message] if any(any(path.glob(sign)) for sign in _SIGNS) else []
    return artifact_problems(path)


def _of_build(path: Path) -> list[str]:
    """Return how the engine of a build differs from its trtbuild.yaml and its checkpoint."""
    engine, checkpoint = path / "engine", path / manifest.CHECKPOINT / "config.json"
    if not (engine / "config.json").is_file():
        return []
    try:
        deployment = load(path / CONFIG)
        if deployment.target == "tensorrt":
            require_fit(Engine.open(engine), deployment, read_json(checkpoint) if checkpoint.is_file() else {})
    except TrtbuildError as error:
        return [error.message]
    return []


def _of_repository(path: Path, *, without: Collection[Path] = ()) -> list[str]:
    """Return what is wrong with the folders that the models of a repository name as gpt_model_path, as far as they are here."""
    folders: dict[Path, None] = {}
    for file in sorted(path.glob("*/config.pbtxt")):
        try:
            config = parse_config(file.read_text(encoding="utf-8"))
        except (ConfigSyntaxError, UnicodeDecodeError):
            continue  # read_subject says so
        place = Path(config.parameters["gpt_model_path"].string_value)
        if place.is_absolute() and place.is_dir() and place.resolve() not in without:
            folders[place] = None
    return [problem for folder in folders for problem in artifact_problems(folder)]
