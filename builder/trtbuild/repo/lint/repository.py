"""A model repository as the rules see it: texts and parsed configurations. Reads files, judges nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild.errors import TrtbuildError
from trtbuild.repo.proto import ConfigSyntaxError, parse_config

CONFIG = "config.pbtxt"


@dataclass(frozen=True, slots=True)
class Model:
    """One folder of a repository.

    Attributes:
        folder: its name.
        text: of config.pbtxt; None when there is none or it is no UTF-8.
        config: the ModelConfig message; None when it cannot be parsed.
        syntax_error: why it cannot be parsed, empty otherwise.
        versions: names of the version folders, numbers above 0.
        files: everything in the version folders, relative to the repository.
    """

    folder: str
    text: str | None
    config: Any
    syntax_error: str
    versions: tuple[str, ...]
    files: tuple[str, ...]

    @property
    def file(self) -> str:
        """Path of config.pbtxt, relative to the repository."""
        return f"{self.folder}/{CONFIG}"

    @property
    def is_ensemble(self) -> bool:
        """Whether it is put together from other models."""
        return bool(self.config.HasField("ensemble_scheduling"))

    def parameters(self) -> dict[str, str]:
        """Return the parameters."""
        return {key: value.string_value for key, value in self.config.parameters.items()}


@dataclass(frozen=True, slots=True)
class Repository:
    """All models of a repository, by folder name."""

    path: Path
    models: dict[str, Model]

    def parsed(self) -> list[Model]:
        """Return the models whose configuration could be read."""
        return [model for model in self.models.values() if model.config is not None]


def read_repository(path: Path) -> Repository:
    """Read a repository.

    Raises:
        TrtbuildError: the folder does not exist or holds no model.
    """
    if not path.is_dir():
        raise TrtbuildError(f"{path} is not a folder", hint="name the folder that holds one folder per model")
    folders = sorted(child for child in path.iterdir() if child.is_dir() and not child.name.startswith("."))
    models = {folder.name: _read_model(path, folder) for folder in folders}
    if not any(model.text is not None or model.versions for model in models.values()):
        raise TrtbuildError(f"{path} holds no model", hint=f"a model is a folder with a {CONFIG} and a version folder")
    return Repository(path, models)


def _read_model(repository: Path, folder: Path) -> Model:
    text, config, syntax_error = None, None, ""
    try:
        text = (folder / CONFIG).read_bytes().decode("utf-8")
        config = parse_config(text)
    except FileNotFoundError:
        syntax_error = "there is no such file"
    except UnicodeDecodeError as error:
        syntax_error = f"it is not UTF-8: {error.reason} at byte {error.start}"
    except ConfigSyntaxError as error:
        syntax_error = str(error)
    versions = tuple(sorted(child.name for child in folder.iterdir() if child.is_dir() and _is_version(child.name)))
    files = tuple(
        file.relative_to(repository).as_posix()
        for version in versions
        for file in sorted((folder / version).rglob("*"))
        if file.is_file()
    )
    return Model(folder.name, text, config, syntax_error, versions, files)


def _is_version(name: str) -> bool:
    return name.isascii() and name.isdigit() and not name.startswith("0")
