"""What a folder needs that a machine can lack: ranks, kind of GPU, versions, backends, ports. Reads JSON, YAML and config.pbtxt only.

Takes a build folder, a folder of an engine, a checkpoint or a model, and a model repository, ours or anyone's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from trtbuild.errors import TrtbuildError
from trtbuild.foreign_yaml import plain_yaml
from trtbuild.gpus import find_gpu
from trtbuild.source import read_json
from trtbuild.spec import Deployment, Serving, load
from trtbuild.trtllm.artifact import Artifact, read_artifact
from trtbuild.trtllm.versions import Release, Version, find_release

#: Kind of artifact -> target that serves it where nothing says another.
_TARGET_OF = {"engine": "tensorrt", "checkpoint": "tensorrt", "model": "pytorch"}


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model of a repository that holds an engine, a checkpoint or an LLM API model.

    Attributes:
        name: of the model.
        world_size: ranks of one instance.
        devices: `gpu_device_ids`, one list per instance; empty when it does not say.
        shares: whether it is a draft model on GPUs of its target.
        is_read: whether its folder is here and told the ranks; else `world_size` is 1.
    """

    name: str
    world_size: int
    devices: tuple[tuple[int, ...], ...]
    shares: bool = False
    is_read: bool = True


@dataclass(frozen=True, slots=True)
class Subject:
    """What is asked about.

    Attributes:
        path: the folder.
        kind: what it is, in words.
        target: that serves it.
        artifact: facts of its engine, checkpoint or model; None when there is none that can be read here.
        world_size: ranks, one GPU each.
        release: of TensorRT-LLM that its trtbuild.yaml states.
        sm: of the GPU that its trtbuild.yaml states.
        backends: Triton backends of its repository.
        models: models of its repository that need GPUs.
        serving: ports of its trtbuild.yaml.
        notes: what could not be looked at.
    """

    path: Path
    kind: str
    target: str
    artifact: Artifact | None
    world_size: int
    release: Release | None = None
    sm: int | None = None
    backends: frozenset[str] = frozenset()
    models: tuple[ServedModel, ...] = ()
    serving: Serving | None = None
    notes: tuple[str, ...] = ()

    @property
    def needed_release(self) -> Release | None:
        """The release that must serve it: the engine's own, else the stated one."""
        built = self.artifact.tensorrt_llm if self.artifact else ""
        if built and Version.parse(built) is not None:
            try:
                return find_release(built)
            except TrtbuildError:  # older or newer than the table
                return None
        return self.release


def read_subject(path: Path) -> Subject:
    """Return what a folder needs.

    Raises:
        TrtbuildError: it is none of the kinds, or its files cannot be read.
    """
    if not path.is_dir():
        raise TrtbuildError(
            f"{path} is not a folder", hint="name a build, checkpoint, engine or model folder, or a model repository"
        )
    if (path / "trtbuild.yaml").is_file():
        return _build(path, load(path / "trtbuild.yaml"))
    if any(path.glob("*/config.pbtxt")):
        return _repository(path)
    artifact = read_artifact(path)
    return Subject(path, f"{artifact.kind} folder", _TARGET_OF[artifact.kind], artifact, _world_size(artifact, None))


def _build(path: Path, deployment: Deployment) -> Subject:
    folders = ("engine", "checkpoint") if deployment.target == "tensorrt" else ("checkpoint",)
    artifact = next((read_artifact(path / name) for name in folders if (path / name / "config.json").is_file()), None)
    served = _repository(path / "repository") if any((path / "repository").glob("*/config.pbtxt")) else None
    gpu = deployment.hardware.gpu
    return Subject(
        path,
        "build folder",
        deployment.target,
        artifact,
        _world_size(artifact, deployment),
        release=find_release(deployment.tensorrt_llm) if deployment.tensorrt_llm else None,
        sm=find_gpu(gpu).sm if gpu else None,
        backends=served.backends if served else frozenset(),
        models=served.models if served else (),
        serving=deployment.serving,
        notes=() if artifact else ("it holds neither a checkpoint nor an engine yet",),
    )


def _world_size(artifact: Artifact | None, deployment: Deployment | None) -> int:
    """Return the ranks: what an engine or rank files were cut for; a Hugging Face folder is cut by the server as the deployment says."""
    if artifact is not None and artifact.kind != "model":
        return artifact.world_size
    return deployment.parallel.tp_size * deployment.parallel.pp_size if deployment else 1


def _repository(path: Path) -> Subject:
    """Return the needs of a model repository; the model with the most ranks decides."""
    from trtbuild.repo.proto import ConfigSyntaxError, parse_config

    backends, notes, drafts = set(), [], set()
    found: list[tuple[ServedModel, Artifact | None, str]] = []
    for file in sorted(path.glob("*/config.pbtxt")):
        try:
            config = parse_config(file.read_text(encoding="utf-8"))
        except (ConfigSyntaxError, UnicodeDecodeError) as error:
            raise TrtbuildError(
                f"{file} is not a model configuration: {error}", hint="`trtbuild lint` explains"
            ) from error
        if config.backend:
            backends.add(str(config.backend))
        parameters = {name: value.string_value for name, value in config.parameters.items()}
        drafts.add(parameters.get("tensorrt_llm_draft_model_name", ""))
        place = parameters.get("gpt_model_path", "")
        if place:
            artifact = read_artifact(Path(place)) if (Path(place) / "config.json").is_file() else None
            if artifact is None:
                notes.append(
                    f"{file.parent.name}: {place} is not here, so neither its ranks nor its versions are known"
                )
            target = "tensorrt" if config.backend == "tensorrtllm" or (artifact and artifact.kind == "engine") else "reference"  # fmt: skip
            world_size = artifact.world_size if artifact else 1
            model = ServedModel(file.parent.name, world_size, _devices(parameters, file), is_read=artifact is not None)
            found.append((model, artifact, target))
        elif (arguments := _llm_api(file.parent)) is not None:
            found.append((ServedModel(file.parent.name, arguments, ()), None, "pytorch"))
    if not found:
        return Subject(path, "model repository", "reference", None, 1, backends=frozenset(backends), notes=tuple(notes))
    largest, artifact, target = max(found, key=lambda each: each[0].world_size)
    return Subject(
        path, "model repository", target, artifact, largest.world_size, _release_of(path), None, frozenset(backends),
        _with_sharing([model for model, _, each in found if each != "reference"], drafts), notes=tuple(notes),
    )  # fmt: skip


def _with_sharing(models: Sequence[ServedModel], drafts: Collection[str]) -> tuple[ServedModel, ...]:
    """Mark the draft models that lie on GPUs of the others: on some that those list, or, where nobody lists any, on the first."""
    own = {each for model in models if model.name not in drafts for group in model.devices for each in group}
    return tuple(
        replace(model, shares=model.name in drafts and own >= {each for group in model.devices for each in group} and bool(own) == bool(model.devices))
        for model in models
    )  # fmt: skip


def _devices(parameters: dict[str, str], file: Path) -> tuple[tuple[int, ...], ...]:
    """Return gpu_device_ids: "0,1;2,3" are two instances of two GPUs (Triton specification 4.3)."""
    text = parameters.get("gpu_device_ids", "").strip()
    if not text or text.startswith("${"):
        return ()
    try:
        return tuple(tuple(int(number) for number in group.split(",") if number.strip()) for group in text.split(";") if group.strip())  # fmt: skip
    except ValueError as error:
        raise TrtbuildError(
            f"{file}: gpu_device_ids is '{text}'", hint="write numbers: '0,1', or '0,1;2,3' for two instances"
        ) from error


def _llm_api(model: Path) -> int | None:
    """Return the ranks of an LLM API model (1/model.yaml), None when it is none."""
    file = next((file for file in sorted(model.glob("*/model.yaml")) if file.parent.name.isdecimal()), None)
    if file is None:
        return None
    try:
        arguments: Any = plain_yaml(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise TrtbuildError(f"{file} is not valid YAML: {error}", hint="render the repository again") from error
    sizes = [arguments.get(key, 1) for key in ("tensor_parallel_size", "pipeline_parallel_size")] if isinstance(arguments, dict) else [1, 1]  # fmt: skip
    return sizes[0] * sizes[1] if all(isinstance(size, int) for size in sizes) else 1


def _release_of(repository: Path) -> Release | None:
    """Return the release that the manifest of a repository we rendered states."""
    file = repository / "manifest.json"
    context = read_json(file).get("context") if file.is_file() else None
    stated = context.get("tensorrt_llm") if isinstance(context, dict) else None
    return find_release(stated) if isinstance(stated, str) and stated else None
