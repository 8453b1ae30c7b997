"""Models of the Hugging Face hub: names (`owner/name@revision`) and a download that takes data files only.

Knows which files a model needs and how failures of the hub are worded. Never fetches pickles or Python code, and
never writes or logs an access token: finding and sending it is left to huggingface_hub.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from types import ModuleType
from typing import Any

from trtbuild.errors import TrtbuildError
from trtbuild.hub_errors import DownloadError, missing_library, translated
from trtbuild.output import check_space
from trtbuild.source import INDEX, SINGLE, TOKENIZER_FILES, read_json

logger = logging.getLogger(__name__)

#: Fetched first: they are small, and tell whether the model can be used at all.
CONFIG_FILES = ("config.json", INDEX, *TOKENIZER_FILES)
WEIGHT_SUFFIX = ".safetensors"
#: Named in the refusal of a repository that holds weights in other forms only.
OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack")
#: Left in the folder: where it came from, so that a later run resumes it or refuses to mix two commits.
ORIGIN = "trtbuild_hub.json"
_NAME = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w./-]+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model on the hub: "owner/name", and a branch, tag or commit (None is the default branch)."""

    repo: str
    revision: str | None = None

    @classmethod
    def parse(cls, text: str) -> HubModel | None:
        """Return the hub model that a text names, or None when it cannot be one."""
        match = _NAME.fullmatch(text)
        return cls(match["repo"], match["revision"]) if match else None

    def folder(self, models_dir: Path) -> Path:
        """Return where the model is put: models_dir/owner--name."""
        return models_dir / self.repo.replace("/", "--")


@dataclass(frozen=True, slots=True)
class Download:
    """A complete download: the folder and the commit it holds."""

    path: Path
    commit: str


def download(model: HubModel, models_dir: Path, *, check: Callable[[Path], object], quiet: bool) -> Download:
    """Fetch a model into models_dir/owner--name; an interrupted download is resumed.

    The small files come first, so that a model that cannot be used is refused before its weights are fetched.

    Args:
        model: what to fetch.
        models_dir: where models are put.
        check: called with the folder once config.json is there; raises when the model is of no use.
        quiet: show no progress.

    Raises:
        TrtbuildError: the hub cannot be reached or refuses, the repository holds no usable model, the disk is too
            small, or the folder holds something else.
    """
    hub = _library()
    folder = model.folder(models_dir)
    with translated(hub, model.repo, model.revision, folder):
        info = hub.HfApi().model_info(model.repo, revision=model.revision, files_metadata=True)
    commit = str(info.sha)
    sizes: dict[str, int] = {entry.rfilename: entry.size or 0 for entry in info.siblings if "/" not in entry.rfilename}
    _refuse_unusable(model, sizes)

    def fetch(names: list[str]) -> None:
        with translated(hub, model.repo, model.revision, folder), _progress(hub, quiet=quiet):
            hub.snapshot_download(
                model.repo, revision=commit, local_dir=folder, allow_patterns=[escape(name) for name in names]
            )

    is_new = _claim(folder, model.repo, commit)
    try:
        fetch([name for name in CONFIG_FILES if name in sizes])
        check(folder)
        weights = weight_files(folder, sizes)
        missing_bytes = sum(sizes[name] for name in weights if not _is_there(folder / name, sizes[name]))
        check_space(folder, missing_bytes)
    except BaseException:
        if is_new:
            shutil.rmtree(folder)
        raise
    logger.info("%s at %s: %d weight files", model.repo, commit[:12], len(weights))
    logger.info("fetching %.2f GB to %s", missing_bytes / 1e9, folder)
    fetch(weights)
    torn = [name for name in weights if not _is_there(folder / name, sizes[name])]
    if torn:
        raise DownloadError(model.repo, f"{', '.join(torn)} did not arrive whole", hint="run the same command again")
    return Download(folder, commit)


def weight_files(folder: Path, names: Mapping[str, Any]) -> list[str]:
    """Return the weight files that belong to a model: those of its index, else model.safetensors, else all.

    Args:
        folder: where config.json and the index already are.
        names: file names of the repository.

    Raises:
        TrtbuildError: the index names a file that the repository does not have, or it leaves out a model.safetensors.
    """
    found = sorted(name for name in names if name.endswith(WEIGHT_SUFFIX))
    if INDEX not in names:
        return [SINGLE] if SINGLE in names else found
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict):
        raise TrtbuildError(f"{folder / INDEX} has no weight_map", hint="the repository is broken")
    named = sorted({str(name) for name in weight_map.values()})
    lost = [name for name in named if name not in found]
    if lost:
        raise TrtbuildError(
            f"the index names {len(named)} weight files, the repository lacks {', '.join(lost)}",
            hint="the repository is incomplete; choose another revision (owner/name@revision)",
        )
    if SINGLE in names and SINGLE not in named:
        raise TrtbuildError(
            f"the repository has {SINGLE} and an index of {len(named)} other files; transformers reads the single file, other "
            "programs the index",
            hint="choose another revision (owner/name@revision), or fetch one of the two into a folder and name that",
        )
    return named


def _refuse_unusable(model: HubModel, names: Mapping[str, int]) -> None:
    if "config.json" not in names:
        raise TrtbuildError(f"{model.repo} has no config.json", hint="it is no transformers model; choose another one")
    if any(name.endswith(WEIGHT_SUFFIX) for name in names):
        return
    others = sorted(name for name in names if name.endswith(OTHER_WEIGHTS))
    raise TrtbuildError(
        f"{model.repo} has no *.safetensors file" + (f", only {', '.join(others[:3])}" if others else ""),
        hint="pickled weights are never fetched, since loading them runs code; look for a revision or a repository "
        "with safetensors",
    )


def _claim(folder: Path, repo: str, commit: str) -> bool:
    """Write down what the folder will hold, refusing one that holds anything else; says whether it is new."""
    origin = folder / ORIGIN
    wanted = {"repo": repo, "commit": commit}
    if origin.is_file():
        held = read_json(origin)
        if held != wanted:
            raise TrtbuildError(
                f"{folder} holds {held.get('repo')} at {held.get('commit')}, wanted is {commit}",
                hint="two commits are never mixed: remove that folder, or choose another place with --models-dir",
            )
        return False
    if folder.exists() and any(folder.iterdir()):
        raise TrtbuildError(
            f"{folder} exists and was not downloaded by trtbuild",
            hint=f"use it as it is with `trtbuild init {folder}`, or choose another place with --models-dir",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        origin.write_text(json.dumps(wanted, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise TrtbuildError(f"cannot write {origin}: {error.strerror}", hint="choose --models-dir") from error
    return True


def _is_there(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _library() -> ModuleType:
    try:
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError as error:
        raise missing_library() from error
    module: ModuleType = huggingface_hub
    return module


@contextmanager
def _progress(hub: ModuleType, *, quiet: bool) -> Iterator[None]:
    """Let the library draw its progress bars on a terminal only, and put its setting back afterwards."""
    hide = (quiet or not sys.stderr.isatty()) and not hub.utils.are_progress_bars_disabled()
    if hide:
        hub.utils.disable_progress_bars()
    try:
        yield
    finally:
        if hide:
            hub.utils.enable_progress_bars()
