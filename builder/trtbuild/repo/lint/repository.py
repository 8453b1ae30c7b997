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
from trtbuild.repo.lint.launch_files import LaunchFile, launch_files
from trtbuild.repo.lint.pbtext import Node
from trtbuild.repo.lint.reading import Unreadable, files_below, is_file, is_folder, read_bytes
from trtbuild.repo.proto import ConfigSyntaxError, parse_config

CONFIG = "config.pbtxt"
#: Settings of a model of the LLM API, in its version folder.
SETTINGS = "model.yaml"
#: The model of either of NVIDIA's repositories that runs the language model.
CORE = "tensorrt_llm"
#: Backend that runs engines in C++.
ENGINE_BACKEND = "tensorrtllm"
#: Backends that know nothing about a model but what its configuration says.
_INCOMPLETE = frozenset(["pytorch", "dali", "fil"])
#: Why a configuration that does not exist cannot be parsed.
ABSENT = "there is no such file"
#: Largest config.pbtxt that is read; those of NVIDIA's repositories have some kilobytes.
MOST_CONFIG_BYTES = 64 * 2**20
#: Model beside the core -> the input by which it is told from other people's model of that name (Triton specification 1.1, 1.3, 1.5).
SIGNS = {"preprocessing": "QUERY", "postprocessing": "TOKENS_BATCH", "tensorrt_llm_bls": "text_input"}


@dataclass(frozen=True)
class Model:
    """One folder of a repository.

    Attributes:
        folder: its name.
        text: of config.pbtxt; None when there is none or it is no UTF-8.
        config: the ModelConfig message; None when it cannot be parsed.
        syntax_error: why it cannot be parsed, empty otherwise.
        versions: names of the version folders: numbers without leading zeros.
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
    def role(self) -> str:
        """Its name if it is one of the Python models of a repository for language models, beside the core; empty otherwise."""
        sign = SIGNS.get(self.folder)
        is_one = sign is not None and self.config is not None and self.config.backend in ("", "python")
        return self.folder if is_one and any(tensor.name == sign for tensor in self.config.input) else ""

    @property
    def is_stray(self) -> bool:
        """Whether it is no model: a folder without a configuration and without a version."""
        return self.text is None and not self.versions and self.syntax_error == ABSENT

    @property
    def is_completed(self) -> bool:
        """Whether the server finds out its tensors and its batch size by itself: it declares no tensor."""
        return not (self.is_ensemble or self.config.input or self.config.output)

    @property
    def may_complete(self) -> bool:
        """Whether its backend may find out what a tensor's declaration leaves out: from a model file, or by code of its own."""
        named = self.config.backend or self.config.platform.partition("_")[0]
        return not (self.is_ensemble or self.runs_engine or self.role or self.folder == CORE or named in _INCOMPLETE)

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

    @cached_property
    def settings(self) -> tuple[tuple[Model, str, Any, str], ...]:
        """Model, file, data and error of every model.yaml in a version folder."""
        files = [(model, name) for model in self.parsed() for name in model.files if name.endswith(f"/{SETTINGS}")]
        if not files:
            return ()
        from trtbuild.repo.lint.settings import read_settings  # needs yaml

        return tuple((model, name, *read_settings(self.path / name)) for model, name in files)

    @cached_property
    def launch_files(self) -> tuple[LaunchFile, ...]:
        """The launch files in its folder and in the one above."""
        return launch_files(self.path)

    def engine_models(self) -> list[Model]:
        """Return the models that the C++ backend runs."""
        return [model for model in self.parsed() if model.runs_engine]


def read_repository(path: Path) -> Repository:
    """Read a repository.

    Raises:
        TrtbuildError: the folder does not exist or holds no model.
    """
    if not is_folder(path):
        raise TrtbuildError(f"{path} is not a folder", hint="name the folder that holds one folder per model")
    try:
        folders = sorted(child for child in path.iterdir() if is_folder(child))
    except OSError as error:
        raise TrtbuildError(f"{path} cannot be read: {error.strerror}", hint="check its permissions") from error
    models = {folder.name: _read_model(path, folder) for folder in folders}
    if not any(model.text is not None or model.versions for model in models.values()):
        raise TrtbuildError(f"{path} holds no model", hint=_near(path, folders))
    return Repository(path, models)


def _near(path: Path, folders: list[Path]) -> str:
    """Return what to do about a folder without models: its parent or a folder in it may be the repository."""
    if (path / CONFIG).is_file() or any(_is_version(folder.name) for folder in folders):
        return f"it is a model itself: name the folder that it lies in, {path.absolute().parent}"
    inside = [folder for folder in folders if any(is_file(place) for place in folder.glob(f"*/{CONFIG}"))]
    if inside:
        return f"did you mean {inside[0]}?"
    return f"a model is a folder with a {CONFIG} and a version folder"


def _read_model(repository: Path, folder: Path) -> Model:
    text, config, syntax_error = None, None, ""
    try:
        text = read_bytes(folder / CONFIG, most_bytes=MOST_CONFIG_BYTES).decode("utf-8")
        config = parse_config(text)
    except FileNotFoundError:
        syntax_error = ABSENT
    except UnicodeDecodeError as error:
        syntax_error = f"it is not UTF-8: {error.reason} at byte {error.start}"
    except (Unreadable, ConfigSyntaxError) as error:
        syntax_error = str(error)
    versions = _versions(folder)
    files = tuple(
        file.relative_to(repository).as_posix()
        for version in versions
        for file in sorted(files_below(folder / version))
    )
    return Model(folder.name, text, config, syntax_error, versions, files)


def read_text(file: Path) -> str:
    """Return the text of a config.pbtxt.

    Raises:
        OSError: it cannot be read, is a pipe or a device, which may never end, or is larger than such files are.
        UnicodeDecodeError: it is not UTF-8.
    """
    try:
        return read_bytes(file, most_bytes=MOST_CONFIG_BYTES).decode("utf-8")
    except Unreadable as error:
        raise OSError(errno.EINVAL, str(error), str(file)) from error


def _versions(folder: Path) -> tuple[str, ...]:
    try:
        names = [child.name for child in folder.iterdir()]
    except OSError:  # then config.pbtxt cannot be read either, and a rule says so
        return ()
    return tuple(sorted(name for name in names if _is_version(name) and is_folder(folder / name)))


def _is_version(name: str) -> bool:
    return name.isascii() and name.isdigit() and (name == "0" or not name.startswith("0"))
