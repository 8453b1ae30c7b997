"""What can be known before a server is started: is there anything to serve, and is there room for it."""

from __future__ import annotations

import os
from pathlib import Path

from trtbuild.errors import TrtbuildError

SHARED_MEMORY = Path("/dev/shm")
#: Each instance of a Python model takes 1 MiB and grows in steps of 1 MiB; below this a handful of instances with
#: batched tensors overflow, which ends in "Bus error". Containers get 64 MiB unless told otherwise.
SHARED_MEMORY_FLOOR_BYTES = 256 * 2**20


def find_repository(path: Path) -> Path:
    """Return the model repository at a path: the folder itself, or the `repository` of a build folder.

    Raises:
        TrtbuildError: there is no folder, or no repository in it yet.
    """
    if not path.is_dir():
        raise TrtbuildError(f"{path} is not a folder", hint="name a model repository or a build folder")
    if (path / "repository").is_dir() and not (path / "repository" / "config.pbtxt").exists():
        return path / "repository"
    if (path / "trtbuild.yaml").is_file() or (path / "checkpoint").is_dir():
        raise TrtbuildError(f"{path} is a build folder without a model repository", hint=f"run: trtbuild render {path}")
    return path


def model_names(repository: Path) -> list[str]:
    """Return the names of the models in a repository, sorted.

    Raises:
        TrtbuildError: there is no model, or one has no version folder or no model.py where its backend needs one;
            the server would wait for minutes for the latter before it says so.
    """
    models = sorted(config.parent for config in repository.glob("*/config.pbtxt"))
    if not models:
        raise TrtbuildError(
            f"{repository} holds no model: no folder in it has a config.pbtxt",
            hint="name a model repository (a folder of model folders) or a build folder; `trtbuild render` writes one",
        )
    problems = [problem for model in models if (problem := _incomplete(model))]
    if problems:
        raise TrtbuildError("; ".join(problems), hint="render the repository again: trtbuild render")
    return [model.name for model in models]


def _incomplete(model: Path) -> str | None:
    versions = [folder for folder in model.iterdir() if folder.is_dir() and folder.name.isdecimal()]
    if not versions:
        return f"model '{model.name}' has no version folder such as {model / '1'}"
    if _backend(model / "config.pbtxt") == "python":
        for version in versions:
            if not (version / "model.py").is_file():
                return f"model '{model.name}' has no {version / 'model.py'}"
    return None


def _backend(config: Path) -> str | None:
    """Return the backend a config names, when it says so in the usual way and names no file of its own."""
    from trtbuild.repo.proto import ConfigSyntaxError, parse_config

    try:
        parsed = parse_config(config.read_text(encoding="utf-8"))
    except (ConfigSyntaxError, UnicodeDecodeError) as error:
        raise TrtbuildError(
            f"{config} is not a valid model configuration: {error}", hint="`trtbuild lint` explains"
        ) from error
    return None if parsed.default_model_filename else str(parsed.backend)


def shared_memory_warning(folder: Path = SHARED_MEMORY) -> str | None:
    """Return a warning when /dev/shm is smaller than Python models need, None when it is large enough."""
    if not folder.is_dir():
        return f"{folder} does not exist; Python models exchange tensors through it"
    size = shared_memory_bytes(folder)
    if size >= SHARED_MEMORY_FLOOR_BYTES:
        return None
    return (
        f"{folder} holds {size >> 20} MiB, less than {SHARED_MEMORY_FLOOR_BYTES >> 20} MiB; Python models can end in "
        '"Bus error". In a container: docker run --shm-size=1g, or --ipc=host'
    )


def shared_memory_bytes(folder: Path = SHARED_MEMORY) -> int:
    """Return the size of the file system that holds shared memory, bytes."""
    statistics = os.statvfs(folder)
    return statistics.f_blocks * statistics.f_frsize
