"""Swapping a version of a model on a running server without losing a request.

The new version folder gets its name in one step, when it is complete. Triton loads it beside the old one, sends new requests there as soon as it
is ready, lets requests in flight finish on the old one, and unloads that. When the new one does not load, the old one was never touched: the folder
is taken away again.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.repo.lint.repository import CONFIG, Model, read_repository
from trtbuild.repo.proto import ConfigSyntaxError, parse_config
from trtbuild.serve.launch.paths import PATH_ENDINGS
from trtbuild.serve.model_control import LoadFailed, ModelControl

log = logging.getLogger(__name__)

_POLL_S = 0.1
#: A load ends when the new version is ready (`ModelRepositoryManager::LoadUnloadModel` of triton core); the index may lag by a moment, not more.
_INDEX_S = 5.0
_OTHER = "--repository must be the repository that this server serves, and --url its HTTP endpoint"
#: What tells versions of one kind from those of another: pattern of a file -> what it makes of the folder.
_MARKS = {"model.py": "Python code", "model.yaml": "settings of the LLM API", "*.engine": "an engine"}


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
        UsageError: the model, the version or its policy does not allow it, the folder is no version of this model, or the server serves another repository;
            nothing was written.
        LoadFailed: the new version does not load; its folder is gone again, and the old version is served.
        TrtbuildError: the server does not answer, or the folder cannot be written.
    """
    model = _find(repository, name, source)
    before = _served(control, repository, model)
    number = _number(model, version)
    folder = repository / name / str(number)
    _check_permission(control, name, timeout_s)
    _check_repository(control, repository)
    stage = folder.with_name(f".new-{number}-{os.getpid()}")
    began = time.monotonic()
    try:
        with _writing(folder):
            stage.mkdir()
            shutil.copytree(source, stage, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
            stage.rename(folder)  # the server sees a whole version or none
        began = time.monotonic()
        control.load(name, timeout_s=timeout_s)
        after = _await(control, name, number)
    except BaseException as error:
        if stage.exists():  # so that the new version has not got its name
            shutil.rmtree(stage, ignore_errors=True)
        elif folder.exists():
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
    _check_kind(repository, model, source)
    _check_config(repository, model, source.parent / CONFIG)
    return model


def _check_kind(repository: Path, model: Model, source: Path) -> None:
    """Refuse a folder that is no version of this model: it would not load, or load something else than what lies in it."""
    if (source / CONFIG).is_file():
        raise UsageError(f"{source} is a model, not a version of one", hint=f"name its version folder, such as {source / '1'}")  # fmt: skip
    if model.config.backend == "python" and not model.config.default_model_filename and not (source / "model.py").is_file():  # fmt: skip
        raise UsageError(f"{source} has no model.py, and {model.folder} is a Python model", hint="the server would wait for it for minutes")  # fmt: skip
    engine = model.config.parameters["gpt_model_path"].string_value if "gpt_model_path" in model.config.parameters else ""  # fmt: skip
    if model.runs_engine and engine and any(source.glob("*.engine")):
        raise UsageError(
            f"{source} has an engine, and every version of {model.folder} loads that of gpt_model_path, {engine}",
            hint="another engine takes another gpt_model_path, and so a restart of the server",
        )
    if not model.versions:
        return
    old = repository / model.folder / max(model.versions, key=int)
    was, becomes = _marks(old), _marks(source)
    if was != becomes:
        raise UsageError(
            f"{source} has {' and '.join(becomes) or 'none of what makes a version'}, and {old} has {' and '.join(was) or 'none of it'}",
            hint="a new version must be of the kind of the old one; config.pbtxt is that of the old one, too",
        )


def _check_config(repository: Path, model: Model, file: Path) -> None:
    """Refuse a version of a model whose configuration names other files: it is not swapped, so the new version would load those of the old one."""
    if not file.is_file():
        return
    try:
        new = parse_config(file.read_text(encoding="utf-8"))
    except (ConfigSyntaxError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: {error}", hint="`trtbuild lint` explains") from error
    ours = {name: value.string_value for name, value in model.config.parameters.items()}
    theirs = {name: value.string_value for name, value in new.parameters.items()}
    changed = [name for name in sorted(ours | theirs) if ours.get(name) != theirs.get(name)]
    paths = [f"{name} {theirs.get(name)} instead of {ours.get(name)}" for name in changed if name.endswith(PATH_ENDINGS)]  # fmt: skip
    if paths:
        raise UsageError(
            f"{file} has {'; '.join(paths)}, and a new version runs with {repository / model.file}, which is not swapped",
            hint="other files than those take a restart of the server with the new repository",
        )
    if changed:
        log.warning("%s says otherwise than %s, which is not swapped: %s", file, repository / model.file, ", ".join(changed))  # fmt: skip


def _marks(folder: Path) -> list[str]:
    return [what for pattern, what in _MARKS.items() if any(folder.glob(pattern))]


def _served(control: ModelControl, repository: Path, model: Model) -> list[int]:
    """Return the versions of a model that the server has ready, if what it serves can be what lies here."""
    states = control.states()
    ready = sorted(version for version, state in states.get(model.folder, {}).items() if state == "READY")
    if not ready:
        raise UsageError(f"{model.folder} is not ready on {control.address}", hint=_OTHER)
    foreign = [version for version in ready if str(version) not in model.versions]
    if foreign:
        raise UsageError(
            f"the server at {control.address} serves version {', '.join(map(str, foreign))} of {model.folder}, which {repository} does not have",
            hint=_OTHER,
        )
    return ready


def _check_repository(control: ModelControl, repository: Path) -> None:
    """See that the server's repository is this one: its index lists the folders that lie there when it is asked, so an empty one shows, and loads nothing."""
    sign = repository / f".trtbuild-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        with _writing(sign):
            sign.mkdir()
        is_seen = sign.name in control.states()
    finally:
        if sign.exists():
            sign.rmdir()
    if not is_seen:
        raise UsageError(f"the server at {control.address} does not serve {repository}", hint=_OTHER)


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


@contextmanager
def _writing(place: Path) -> Iterator[None]:
    """Say of what cannot be written where it should have been."""
    try:
        yield
    except (OSError, shutil.Error) as error:
        raise TrtbuildError(f"cannot write {place}: {error}", hint="the repository must be writable, and the disk have room") from error  # fmt: skip


def _await(control: ModelControl, name: str, number: int) -> list[int]:
    deadline = time.monotonic() + _INDEX_S
    while number not in (ready := control.ready_versions(name)):
        if time.monotonic() >= deadline:
            raise LoadFailed(f"the server loaded {name} and does not serve version {number}; ready: {ready}", hint=_OTHER)  # fmt: skip
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
