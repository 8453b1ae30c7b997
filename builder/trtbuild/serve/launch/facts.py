"""What a repository and its build folder say about a launch: variant, models, ranks, release, and whether they go together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trtbuild.doctor.subject import ServedModel, read_subject
from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.serve import preflight
from trtbuild.serve.launch.plan import Variant
from trtbuild.serve.launch.stated import Stated, read_stated
from trtbuild.spec import Deployment, load
from trtbuild.trtllm.artifact import Artifact, read_artifact
from trtbuild.trtllm.compatibility import Installed, require_compatible
from trtbuild.trtllm.versions import Release, Version, find_release, release_of_tag

_VARIANTS: dict[str, Variant] = {"tensorrt": "engine", "pytorch": "llmapi", "reference": "reference"}
_TAG = re.compile(r"tritonserver:(\d\d\.\d\d)-trtllm-python-py3")
#: Image of the reference variant; it is built from docker/cpu-demo.
REFERENCE_IMAGE = "trtbuild-demo"


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known before anything is asked for.

    Attributes:
        root: the build folder, or the repository where there is none.
        repository: the model repository.
        variant: which kind it is.
        models: those that need GPUs.
        stated: what the manifest of the repository says about processes; None: nothing, or it speaks of other models than there are.
        is_known: whether the number of ranks was read; False where neither the engine, its rank files nor the repository tells.
        artifact: facts of the engine.
        release: of TensorRT-LLM that must serve; None: nothing says so.
        deployment: trtbuild.yaml of the build folder.
        sm: of the GPU that it states.
    """

    root: Path
    repository: Path
    variant: Variant
    models: tuple[ServedModel, ...]
    stated: Stated | None
    is_known: bool
    artifact: Artifact | None
    release: Release | None
    deployment: Deployment | None
    sm: int | None


def read_facts(folder: Path, *, engine: Path | None = None) -> Facts:
    """Read a build folder or a repository.

    Args:
        folder: either.
        engine: folder of the engine here, where the repository names it as a container sees it.

    Raises:
        TrtbuildError: it is neither, a model is incomplete, or its release cannot load the engine (field reports VC01, VC03, VC08).
    """
    repository = preflight.find_repository(folder).resolve()
    preflight.model_names(repository)
    parent = repository.parent
    is_build = repository.name == "repository" and (parent / "trtbuild.yaml").is_file()
    root = parent if is_build else repository
    served = read_subject(repository)
    subject = read_subject(root) if is_build else served
    target = subject.target if is_build else served.target
    artifact = read_artifact(engine) if engine is not None else served.artifact or subject.artifact
    stated = read_stated(repository)
    if stated is not None and len(served.models) != stated.models:
        stated = None
    models = served.models if target != "tensorrt" else tuple(_with_ranks(served.models, artifact, stated))
    is_known = all(model.is_read for model in models)
    facts = Facts(
        root, repository, _VARIANTS[target], models, stated, is_known, artifact if artifact and artifact.kind == "engine" else None,
        None, load(root / "trtbuild.yaml") if is_build else None, subject.sm,
    )  # fmt: skip
    return replace(facts, release=_release(facts, subject.release or served.release))


def _with_ranks(
    models: Sequence[ServedModel], artifact: Artifact | None, stated: Stated | None
) -> Iterator[ServedModel]:
    """Yield the models with the ranks of their engines.

    The only one is what was named or built, be it rank files that wait for their engine. Where nothing of it is here, `gpu_device_ids` has a
    GPU for each rank, and the manifest of the repository tells the rest.
    """
    if len(models) == 1 and artifact is not None and artifact.kind != "model":
        yield replace(models[0], world_size=artifact.world_size, is_read=True)
        return
    for model in models:
        ranks = len(model.devices[0]) if model.devices else stated.gpus if stated and len(models) == 1 else None
        yield model if model.is_read or ranks is None else replace(model, world_size=ranks, is_read=True)


def _release(facts: Facts, stated: Release | None) -> Release | None:
    """Return the release that must serve: the stated one, which must be able to load the engine, else the engine's own."""
    if facts.artifact is None:
        return stated
    sms = (facts.sm,) if facts.sm else ()
    require_compatible(facts.artifact, Installed.of_release(stated, sms=sms) if stated else Installed("the server", sms=sms))  # fmt: skip
    built = facts.artifact.tensorrt_llm
    return stated or (find_release(built) if Version.parse(built) else None)


def choose_image(facts: Facts, typed: str | None) -> tuple[str, list[str]]:
    """Return the container image and notes about it.

    Args:
        facts: of the repository.
        typed: what the user named; None: the newest that carries the release.

    Raises:
        UsageError: none is known for the release.
        TrtbuildError: the image that was named cannot load the engine; the message has both versions and the image that fits.
    """
    if facts.variant == "reference":
        return typed or REFERENCE_IMAGE, []
    if typed is None:
        if facts.release is None:
            raise UsageError(
                "nothing says which TensorRT-LLM must serve this repository",
                hint="state tensorrt_llm in trtbuild.yaml and render again, or name an image with --image",
            )
        if facts.release.container is None:
            raise UsageError(
                f"no container with TensorRT-LLM {facts.release.name} is known", hint="name an image with --image"
            )
        return facts.release.container.image, []
    match = _TAG.search(typed)
    release = release_of_tag(match[1]) if match else None
    if match is None or release is None:
        return typed, [f"what is in {typed} is not known; look with `trtbuild doctor --for` inside it"]
    if facts.artifact is None:
        if facts.release and facts.release.version.line != release.version.line:
            raise TrtbuildError(
                f"the repository was rendered for TensorRT-LLM {facts.release.name}, container {match[1]} has {release.name}",
                hint=f"use {facts.release.container.image}, or render again with tensorrt_llm: {release.name}"
                if facts.release.container
                else f"render again with tensorrt_llm: {release.name}",
            )
        return typed, []
    installed = Installed(f"container {match[1]}", release.name, release.tensorrt, release.transformers, (facts.sm,) if facts.sm else (), match[1])  # fmt: skip
    return typed, require_compatible(facts.artifact, installed)
