"""Migrate a deployment with engines: read what there is, settle conflicts, and check the new trtbuild.yaml and its arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtbuild import manifest, spec
from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.gpus import Gpu, find_gpu
from trtbuild.hardware import require_listed
from trtbuild.init_file import render
from trtbuild.initialize import nested
from trtbuild.limits import resolve_limits
from trtbuild.migrate.deployment import deployment_rows
from trtbuild.migrate.engine_repository import (
    Found,
    engine_rows,
    is_repository,
    read_repository,
    repository_rows,
)
from trtbuild.migrate.row import Row
from trtbuild.migrate.tables import EXTRA
from trtbuild.output import check_file, write_atomically
from trtbuild.rope_block import scaling_of
from trtbuild.source import read_config, read_json
from trtbuild.spec import Deployment
from trtbuild.trtllm.engine import Engine
from trtbuild.trtllm.llm_args import LlmArgs
from trtbuild.trtllm.llm_serve import yaml_text
from trtbuild.trtllm.llm_settings import Facts, arguments
from trtbuild.trtllm.versions import DEFAULT, Feature, Release, find_release, with_feature
from trtbuild_client.output_file import check_apart


@dataclass(frozen=True, slots=True)
class Migration:
    """The new deployment, and what became of everything that was.

    Attributes:
        deployment: for target pytorch; valid.
        release: that will serve.
        rows: in the order they were found.
    """

    deployment: Deployment
    release: Release
    rows: tuple[Row, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "tensorrt_llm": self.release.name,
            "deployment": self.deployment.as_dict(),
            "rows": [row.as_json() for row in self.rows],
        }


def migrate(
    source: Path,
    *,
    model: Path | None = None,
    engine: Path | None = None,
    release: str | None = None,
    gpu: str | None = None,
) -> Migration:
    """Return what a deployment with engines becomes.

    Args:
        source: a trtbuild.yaml, a build folder, or a model repository.
        model: the Hugging Face folder; else what the source says.
        engine: the engine's folder, where the repository's path is another machine's.
        release: of TensorRT-LLM, that will serve; else the source's if it has the LLM API.
        gpu: where it will be served.

    Raises:
        UsageError: the source is none of these or is migrated already, the release has no LLM API, TensorRT-LLM does not run on the GPU, or the model's
            folder is not known.
        TrtbuildError: a file cannot be read.
    """
    chosen = _gpu(gpu)
    if is_repository(source):
        rows, path, old = _of_repository(source, engine, chosen)
        found_model = model or path
        if found_model is None:
            raise UsageError(
                f"{source} does not say where the Hugging Face model is",
                hint="name its folder with --model: engines are not loaded, it is converted again",
            )
        rows = [Row("taken", "model", str(path or found_model), "model.path", str(found_model.absolute())), *rows]
    else:
        deployment = _load(source)
        old = deployment.tensorrt_llm
        rows = list(deployment_rows(deployment, chosen or _gpu(deployment.hardware.gpu)))
        if model is not None:
            rows = [replace(row, new_value=str(model.absolute())) if row.new == "model.path" else row for row in rows]
        if chosen is not None:
            rows = [_on(chosen, row, deployment.hardware.gpu) for row in rows]
    new, row = _release(release, old)
    rows = [*([row] if row else []), *(_in_release(row, new) for row in rows)]
    settings = _settings(rows)
    if chosen is not None:
        settings["hardware.gpu"] = chosen.name
    if release is not None or old is not None:
        settings["tensorrt_llm"] = new.name
    migrated = spec.parse(nested({**settings, "target": "pytorch"}), origin=f"migration of {source}")
    return Migration(migrated, new, tuple(rows))


def _gpu(typed: str | None) -> Gpu | None:
    """Return the GPU that will serve, which TensorRT-LLM must run on."""
    if typed is None:
        return None
    found = find_gpu(typed, UsageError)
    require_listed(found, hint="name the GPU that will serve with --gpu")
    return found


def _on(chosen: Gpu, row: Row, before: str | None) -> Row:
    """Return what becomes of a setting where another GPU is to serve than the one it was written for."""
    if row.new == "hardware.gpu":
        return replace(row, new_value=chosen.name)
    if row.new == "hardware.memory_bytes" and (before is None or find_gpu(before) != chosen):
        return Row("dropped", row.old, row.value, note=f"it was that of {before or 'another GPU'}; --gpu {chosen.name} has its own")  # fmt: skip
    return row


def write(migration: Migration, output: Path, *, llm_api: Path | None, force: bool) -> None:
    """Write trtbuild.yaml, and the YAML file of the LLM API if it is asked for.

    Raises:
        TrtbuildError: a file is in the way, or the arguments cannot be made.
        InvalidRequest: both are one file.
    """
    check_apart([("-o", output), ("--llm-api", llm_api)])
    for file in (output, llm_api):
        if file is not None:
            check_file(file, force=force)
    text = None if llm_api is None else yaml_text(_arguments(migration), migration.release)
    write_atomically(output, render(migration.deployment))
    if llm_api is not None and text is not None:
        write_atomically(llm_api, text)


def _arguments(migration: Migration) -> dict[str, Any]:
    deployment = migration.deployment
    model = Path(deployment.model.path)
    longest, scaling = deployment.limits.max_seq_len, None
    if (model / "config.json").is_file():
        config = read_config(model)
        longest, scaling = config.get("max_position_embeddings", longest), scaling_of(config)
    if not isinstance(longest, int):
        raise UsageError(
            f"the positions of the model are not known: {model} has no config.json and limits.max_seq_len is not set",
            hint="name the model's folder with --model",
        )
    kv_cache = deployment.quantization.kv_cache
    limits = resolve_limits(deployment, longest, scaling)
    return arguments(Facts(deployment, migration.release, limits, None if kv_cache == "auto" else kv_cache.upper()))


def _load(source: Path) -> Deployment:
    file = source / "trtbuild.yaml" if source.is_dir() else source
    if not file.is_file():
        raise UsageError(
            f"{source} is no trtbuild.yaml, build folder or model repository",
            hint="name one of these; a repository has <model>/config.pbtxt",
        )
    deployment = spec.load(file)
    if deployment.target == "pytorch":
        raise UsageError(f"{file} is for target pytorch already", hint="there is nothing to migrate")
    return deployment


def _of_repository(source: Path, engine: Path | None, gpu: Gpu | None) -> tuple[list[Row], Path | None, str | None]:
    """Return the rows, the model's folder and the release that built the engine, as far as they are known."""
    found = read_repository(source)
    rows = list(repository_rows(found))
    folder = engine or found.path_parameter("gpt_model_path")
    release = None
    if folder is None or not folder.is_dir():
        note = "its limits, sizes and formats are not known: name the folder with --engine, or set limits, parallel and quantization"
        rows.append(Row("decide", "engine", str(folder or "not said"), note=note))
    else:
        asked = next((row.new_value for row in rows if row.new == "limits.max_batch_size"), None)
        try:
            opened = Engine.open(folder)
        except TrtbuildError as error:
            rows.append(Row("decide", "engine", str(folder), note=f"{error.message}: {error.hint}"))
        else:
            rows += engine_rows(opened, gpu, asked)
            release = opened.version or None
    return _settle(rows), _model_of(source, found), release


def _settle(rows: Iterable[Row]) -> list[Row]:
    """Return rows of which only the first sets a key; of two, the repository's counts, as it does in the server."""
    settled: list[Row] = []
    setters: dict[str, Row] = {}
    for row in rows:
        before = setters.get(row.new) if row.new else None
        if before is None:
            setters.setdefault(row.new, row)
            settled.append(row)
        elif before.new_value != row.new_value:
            settled.append(
                Row("dropped", row.old, row.value, note=f"{before.old} says {before.new_value}, which counts")
            )
    return settled


def _model_of(source: Path, found: Found) -> Path | None:
    """Return the Hugging Face folder that a repository goes back to: by our manifests, or a tokenizer folder that is a model's."""
    candidates = []
    if (source / manifest.NAME).is_file():
        context = read_json(source / manifest.NAME).get("context") or {}
        checkpoint = Path(str(context.get("checkpoint_dir", "")))
        if (checkpoint / manifest.NAME).is_file():
            candidates.append(Path(str((read_json(checkpoint / manifest.NAME).get("source") or {}).get("path", ""))))
    tokenizer = found.path_parameter("tokenizer_dir")
    candidates += [tokenizer] if tokenizer is not None else []
    return next((path for path in candidates if _is_model(path)), None)


def _is_model(path: Path) -> bool:
    return (path / "config.json").is_file() and "architectures" in read_json(path / "config.json")


def _release(asked: str | None, old: str | None) -> tuple[Release, Row | None]:
    """Return the release that will serve, and what became of the old one."""
    if asked is not None:
        release = find_release(asked)
        if not release.has(Feature.LLM_API):
            names = ", ".join(each.name for each in with_feature(Feature.LLM_API))
            raise UsageError(
                f"TensorRT-LLM {release} has no LLM API with the PyTorch backend", hint=f"use one of {names}"
            )
        return release, Row("taken", "tensorrt_llm", old, "tensorrt_llm", release.name) if old is not None else None
    new = find_release(DEFAULT)
    if old is None:
        return new, None
    try:
        found = find_release(old)
    except UsageError:  # of a line that is not known: too old, or too new
        found = None
    if found is not None and found.has(Feature.LLM_API):
        return found, Row("taken", "tensorrt_llm", old, "tensorrt_llm", found.name)
    return new, Row(
        "decide",
        "tensorrt_llm",
        old,
        "tensorrt_llm",
        new.name,
        f"{old} has no LLM API with the PyTorch backend: install {new}",
    )


def _in_release(row: Row, release: Release) -> Row:
    """Return the row, dropped when it became an argument that the release does not have."""
    if row.verdict != "taken" or not row.new.startswith(EXTRA):
        return row
    data: Any = row.new_value
    for key in reversed(row.new.removeprefix(EXTRA).split(".")):
        data = {key: data}
    try:
        LlmArgs(release).check(data, origin="llm_api.extra", fields={})
    except UsageError as error:
        return Row("dropped", row.old, row.value, note=error.message)
    return row


def _settings(rows: Iterable[Row]) -> dict[str, Any]:
    """Return the keys of the new trtbuild.yaml; arguments of the LLM API are nested in `llm_api.extra`."""
    settings: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for row in rows:
        if not row.new or row.new_value is None:
            continue
        if row.new == "llm_api.extra":
            _merge(extra, row.new_value)
        elif row.new.startswith(EXTRA):
            _merge(extra, nested({row.new.removeprefix(EXTRA): row.new_value}))
        else:
            settings[row.new] = row.new_value
    return {**settings, **({"llm_api.extra": extra} if extra else {})}


def _merge(into: dict[str, Any], data: Mapping[str, Any]) -> None:
    for key, value in data.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value
