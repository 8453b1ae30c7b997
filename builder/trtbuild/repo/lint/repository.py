"""A model repository as the rules see it: texts and parsed configurations. Reads files, judges nothing."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from trtbuild.errors import TrtbuildError
from trtbuild.repo.lint import pbtext
from trtbuild.repo.lint.facts import Facts
from trtbuild.repo.lint.pbtext import Node
from trtbuild.repo.proto import ConfigSyntaxError, parse_config

CONFIG = "config.pbtxt"
#: The model of either of NVIDIA's repositories that runs the language model.
CORE = "tensorrt_llm"
#: Backend that runs engines in C++.
ENGINE_BACKEND = "tensorrtllm"


@dataclass(frozen=True)
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

    @property
    def runs_engine(self) -> bool:
        """Whether TensorRT-LLM's C++ backend runs it."""
        return self.config is not None and self.config.backend == ENGINE_BACKEND

    @cached_property
    def values(self) -> dict[str, str]:
        """The parameters; of one that is given twice the last."""
        return {key: value.string_value for key, value in self.config.parameters.items()}

    def parameters(self) -> dict[str, str]:
        """Return the parameters."""
        return self.values

    @property
    def tree(self) -> Node:
        """The fields of config.pbtxt with their places in the text."""
        return pbtext.parse(self.text or "")

    def parameter_nodes(self, key: str | None = None) -> Iterator[tuple[str, Node]]:
        """Yield key and place of every parameter, or of those of one key."""
        for node in self.tree.all("parameters"):
            found = node.first("key")
            name = found.text(self.text or "") if found else ""
            if found is not None and key in (None, name):
                yield name, node

    def line_of(self, node: Node | None) -> int:
        """Return the number of the line that a field begins on, 0 for none."""
        return pbtext.line_of(self.text or "", node.start) if node is not None else 0

    def line(self, *path: str) -> int:
        """Return the line of the first field at a path, 0 when there is none."""
        return self.line_of(self.tree.first(*path))

    def parameter_line(self, key: str) -> int:
        """Return the line of a parameter, 0 when there is none."""
        return self.line_of(next((node for _, node in self.parameter_nodes(key)), None))

    def tensor_line(self, side: str, name: str) -> int:
        """Return the line of the last declaration of a tensor, 0 when there is none."""
        for node in reversed(list(self.tree.all(side))):
            found = node.first("name")
            if found is not None and found.text(self.text or "") == name:
                return self.line_of(found)
        return 0


@dataclass(frozen=True)
class Repository:
    """All models of a repository, by folder name, and what is known from elsewhere."""

    path: Path
    models: dict[str, Model]
    facts: Facts = field(default_factory=Facts)

    def parsed(self) -> list[Model]:
        """Return the models whose configuration could be read."""
        return [model for model in self.models.values() if model.config is not None]

    def engine_models(self) -> list[Model]:
        """Return the models that the C++ backend runs."""
        return [model for model in self.parsed() if model.runs_engine]


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
        text = read_text(folder / CONFIG)
        config = parse_config(text)
    except FileNotFoundError:
        syntax_error = "there is no such file"
    except OSError as error:
        syntax_error = error.strerror or str(error)
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


def read_text(file: Path) -> str:
    """Return the text of a config.pbtxt.

    Raises:
        OSError: it cannot be read, or is a pipe or a device, which may never end.
        UnicodeDecodeError: it is not UTF-8.
    """
    if file.exists() and not file.is_file() and not file.is_dir():
        raise OSError(errno.EINVAL, "it is no regular file", str(file))
    return file.read_bytes().decode("utf-8")


def _is_version(name: str) -> bool:
    return name.isascii() and name.isdigit() and not name.startswith("0")
