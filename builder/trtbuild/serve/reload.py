"""Swapping a version of a model on a running server without losing a request.

The new version folder gets its name in one step, when it is complete. Triton loads it beside the old one, sends new requests there as soon as it
is ready, lets requests in flight finish on the old one, and unloads that. When the new one does not load, the old one was never touched: the folder
is taken away again.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.repo.lint.repository import Model, read_repository
from trtbuild.serve.model_control import LoadFailed, ModelControl

log = logging.getLogger(__name__)

_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Swap:
    """What was done.

    Attributes:
        model: its name.
        before: versions that were ready.
        after: versions that are ready now.
        folder: the new version.
        seconds: from the load until the new version was ready.
    """

    model: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    folder: Path
    seconds: float


def swap(
    control: ModelControl, repository: Path, name: str, source: Path, *, version: int | None = None, timeout_s: float
) -> Swap:
    """Make a folder the new version of a model, and return when the server serves it.

    Args:
        control: the server.
        repository: the model repository it serves, which must be writable.
        name: of the model.
        source: folder with the files of the new version.
        version: its number; None: one more than the highest.
        timeout_s: how long loading may take.

    Raises:
        UsageError: the model, the version or its policy does not allow it; nothing was written.
        LoadFailed: the new version does not load; its folder is gone again, and the old version is served.
        TrtbuildError: the server does not answer, or the folder cannot be written.
    """
    model = _find(repository, name, source)
    before = control.ready_versions(name)
    if not before:
        raise UsageError(f"{name} is not ready on {control.address}", hint=f"is {repository} the repository of that server?")  # fmt: skip
    number = _number(model, version)
    folder = repository / name / str(number)
    _check_permission(control, name, timeout_s)
    _place(source, folder)
    began = time.monotonic()
    try:
        control.load(name, timeout_s=timeout_s)
        after = _await(control, name, number, deadline=began + timeout_s)
    except BaseException as error:
        _roll_back(control, name, folder, before, timeout_s)
        if isinstance(error, LoadFailed):
            raise LoadFailed(error.message, hint=f"version {number} is taken away again; {error.hint}") from error
        raise
    return Swap(name, tuple(before), tuple(after), folder, time.monotonic() - began)


def _find(repository: Path, name: str, source: Path) -> Model:
    models = read_repository(repository).models
    if name not in models:
        raise UsageError(f"{repository} has no model '{name}'", hint=f"it has {', '.join(models)}")
    model = models[name]
    if model.config is None:
        raise TrtbuildError(f"{repository / model.file}: {model.syntax_error}", hint="`trtbuild lint` explains")
    if source.resolve().is_relative_to((repository / name).resolve()):
        raise UsageError(f"{source} lies in the model itself", hint="name a folder outside the repository")
    if model.config.backend == "python" and not model.config.default_model_filename and not (source / "model.py").is_file():  # fmt: skip
        raise UsageError(f"{source} has no model.py, and {name} is a Python model", hint="the server would wait for it for minutes")  # fmt: skip
    return model


def _number(model: Model, version: int | None) -> int:
    """Return the number of the new version, which the model's version policy must make the server load."""
    highest = max((int(each) for each in model.versions), default=0)
    number = highest + 1 if version is None else version
    if str(number) in model.versions:
        raise UsageError(f"{model.folder} has a version {number} already", hint=f"leave --version out: it will be {highest + 1}")  # fmt: skip
    policy = model.config.version_policy
    if policy.HasField("specific") and number not in policy.specific.versions:
        raise UsageError(
            f"the version policy of {model.folder} serves {list(policy.specific.versions)} only, so version {number} would not be loaded",
            hint="give one of those as --version, or use the policy `latest` in config.pbtxt",
        )
    if not policy.HasField("specific") and not policy.HasField("all") and number < highest:
        raise UsageError(f"the server serves the latest version, {highest}, and would not load {number}", hint=f"leave --version out: it will be {highest + 1}")  # fmt: skip
    return number


def _check_permission(control: ModelControl, name: str, timeout_s: float) -> None:
    """Load what is loaded already, which changes nothing, so that a server without model control refuses before anything is written."""
    control.load(name, timeout_s=timeout_s)


def _place(source: Path, folder: Path) -> None:
    """Copy the files next to their place, and rename: the server sees a whole version or none."""
    try:
        stage = Path(tempfile.mkdtemp(prefix=f".new-{folder.name}-", dir=folder.parent))
        try:
            shutil.copytree(source, stage, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
            stage.chmod(source.stat().st_mode)
            stage.rename(folder)
        except BaseException:
            shutil.rmtree(stage, ignore_errors=True)
            raise
    except (OSError, shutil.Error) as error:
        raise TrtbuildError(f"cannot write {folder}: {error}", hint="the repository must be writable, and the disk have room") from error  # fmt: skip


def _await(control: ModelControl, name: str, number: int, *, deadline: float) -> list[int]:
    while number not in (ready := control.ready_versions(name)):
        if time.monotonic() >= deadline:
            raise LoadFailed(f"version {number} of {name} is not ready in time; ready: {ready}", hint="--timeout gives it more time")  # fmt: skip
        time.sleep(_POLL_S)
    return ready


def _roll_back(control: ModelControl, name: str, folder: Path, before: list[int], timeout_s: float) -> None:
    """Take the new version away, and see that the old ones are served."""
    gone = folder.with_name(f".gone-{folder.name}-{os.getpid()}")
    folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)
    try:
        control.load(name, timeout_s=timeout_s)  # what is loaded must be what lies there
        if not set(before) <= set(control.ready_versions(name)):
            log.error("versions %s of %s are not ready any more", before, name)
    except (TrtbuildError, TimeoutError) as error:
        log.error("the server does not take version %s of %s back: %s", before, name, error)
