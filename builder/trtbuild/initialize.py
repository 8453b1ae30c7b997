"""From the name of a model to a trtbuild.yaml on disk: find the folder, look at it, write the file.

Knows what must hold before a deployment is worth planning. Knows no field of trtbuild.yaml beyond the ones it sets.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from trtbuild import spec
from trtbuild.arch.registry import resolve
from trtbuild.dims import ModelDims
from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.hub import HubModel, download
from trtbuild.init_file import render
from trtbuild.output import check_file, write_atomically
from trtbuild.parallel import Parallel
from trtbuild.source import TOKENIZER_ANY, SourceCheckpoint, read_config
from trtbuild.spec.fields import fields
from trtbuild.yaml_text import NOTHING, parse_document

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Written:
    """What `trtbuild init` did: the file, the deployment in it, and the facts read from the model folder."""

    path: Path
    deployment: spec.Deployment
    architecture: str
    num_layers: int
    weight_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return the result for --json."""
        return {
            "path": str(self.path),
            "model": self.deployment.model.path,
            "revision": self.deployment.model.revision,
            "architecture": self.architecture,
            "num_layers": self.num_layers,
            "weight_bytes": self.weight_bytes,
            "deployment": self.deployment.as_dict(),
        }


def initialize(
    model: str, output: Path, *, settings: Mapping[str, Any], fetch: bool, models_dir: Path, force: bool, quiet: bool
) -> Written:
    """Write a commented trtbuild.yaml for a model folder or, with `fetch`, for a model of the hub.

    Args:
        model: a folder, or owner/name[@revision].
        output: the file to write.
        settings: dotted keys of trtbuild.yaml -> values, e.g. {"parallel.tp_size": 2}.
        fetch: whether the model may be fetched from the hub.
        models_dir: where fetched models are put.
        force: replace the file.
        quiet: show no progress.

    Raises:
        TrtbuildError: the folder cannot be used, the download failed, or the file exists.
        UsageError: a setting is unknown or not allowed.
    """
    check_file(output, force=force)
    if fetch and settings.get("model.revision") is not None:
        raise UsageError(
            f"--set model.revision={settings['model.revision']} and --download, which writes the revision that it fetches",
            hint=f"write it behind the name: {model.partition('@')[0]}@{settings['model.revision']}",
        )
    sections = nested({"model.path": model, **settings})
    wanted = spec.parse(sections, origin="trtbuild init")
    parallel = Parallel(tp_size=wanted.parallel.tp_size, pp_size=wanted.parallel.pp_size)

    def check(folder: Path) -> ModelDims:
        config, where = read_config(folder), str(folder / "config.json")
        architecture, arch = resolve(config, where=where)
        dims = arch.read_dims(config, architecture, where)
        parallel.check(dims)
        return dims

    folder, commit = _locate(model, fetch=fetch, models_dir=models_dir, check=check, quiet=quiet)
    source, dims = SourceCheckpoint.open(folder), check(folder)
    place = {"path": _as_written(model if commit is None else str(folder), output)}
    deployment = spec.parse(
        {**sections, "model": {"revision": commit, **sections["model"], **place}}, origin="trtbuild init"
    )
    _remark(source)
    write_atomically(output, render(deployment))
    return Written(output, deployment, dims.architecture, dims.num_layers, source.nbytes)


@dataclass(frozen=True, slots=True)
class Typed:
    """One value of a command line.

    Attributes:
        words: as they were typed.
        key: dotted key of trtbuild.yaml.
        value: for it.
    """

    words: str
    key: str
    value: Any


def together(typed: Iterable[Typed]) -> dict[str, Any]:
    """Return dotted key -> value of everything that was typed.

    Raises:
        UsageError: two say different things about a key.
    """
    first: dict[str, Typed] = {}
    for each in typed:
        before = first.setdefault(each.key, each)
        if before.value != each.value:
            raise UsageError(f"{before.words} and {each.words} disagree about {each.key}", hint="give only one of them")
    return {key: each.value for key, each in first.items()}


def setting(text: str) -> tuple[str, Any]:
    """Split "limits.max_batch_size=8" into its key and its value, which is read as YAML; where text is wanted every value but null is text.

    Raises:
        UsageError: there is no "=", or the value is no YAML.
    """
    key, equals, value = text.partition("=")
    if not (equals and key):
        raise UsageError(f"--set {text!r} is not KEY=VALUE", hint="for example --set limits.max_batch_size=8")
    kind = next((field.kind for field in fields() if ".".join(field.path) == key), "")
    if kind.startswith("text") and value[:1] not in ("'", '"'):
        return key, None if value in NOTHING else value
    return key, parse_document(value, origin=f"the value of --set {text!r}", hint="quote it").data


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Turn dotted keys into nested sections.

    Raises:
        UsageError: a key goes through one that was given a value.
    """
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        *parents, last = key.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise UsageError(f"'{key}' goes through '{parent}', which was given a value", hint="give only one")
        if isinstance(node.get(last), dict):
            raise UsageError(
                f"'{key}' is a section and was given a value", hint=f"set the keys in it: {key}.NAME=VALUE"
            )
        node[last] = value
    return tree


def _locate(
    model: str, *, fetch: bool, models_dir: Path, check: Callable[[Path], object], quiet: bool
) -> tuple[Path, str | None]:
    """Return the model folder and, when it was fetched, its commit."""
    folder = Path(model).expanduser()
    on_hub = HubModel.parse(model)
    if fetch:
        if on_hub is None:
            raise UsageError(
                f"{model!r} is not the name of a hub model", hint="write it as owner/name or owner/name@revision"
            )
        if folder.is_dir():
            raise UsageError(
                f"{model!r} is a folder here, and --download would fetch the hub's model of that name",
                hint=f"drop --download to use the folder, or run it from another folder than {Path.cwd()}",
            )
        fetched = download(on_hub, models_dir, check=check, quiet=quiet)
        return fetched.path, fetched.commit
    if on_hub is not None and not folder.exists():
        raise TrtbuildError(
            f"there is no folder {model!r} here, and nothing is fetched unless asked",
            hint=f"trtbuild init {model} --download fetches it from the Hugging Face hub",
        )
    return folder, None


def _as_written(model: str, output: Path) -> str:
    """Return the path for the file: relative to it when the user gave a relative one, so that both can be moved."""
    path = Path(model).expanduser()
    if path.is_absolute():
        return str(path)
    relative = os.path.relpath(path.absolute(), output.absolute().resolve().parent)
    return str(path.absolute()) if relative.startswith("~") else relative


def _remark(source: SourceCheckpoint) -> None:
    """Log what a user should know and no one needs to stop for."""
    names = {file.name for file in source.tokenizer_files()}
    if not names & set(TOKENIZER_ANY):
        logger.warning(
            "%s has no tokenizer (%s): it can be converted, not served", source.path, ", ".join(TOKENIZER_ANY)
        )
    if "auto_map" in source.config:
        logger.warning("%s names Python code (auto_map); trtbuild never runs code of a model folder", source.path)
    wanted, installed = source.config.get("transformers_version"), _installed("transformers")
    if isinstance(wanted, str) and installed is not None and _release(wanted) > _release(installed):
        logger.warning(
            "config.json was written by transformers %s, installed is %s: trtbuild reads it itself, but the reference "
            "target may not know the model", wanted, installed,
        )  # fmt: skip


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _release(text: str) -> tuple[int, ...]:
    numbers = text.split(".")[:2]
    return tuple(int(part) for part in numbers) if all(part.isdigit() for part in numbers) else (0,)
