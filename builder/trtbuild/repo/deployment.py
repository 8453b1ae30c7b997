"""From a deployment and its folders to the RepoContext: reads what the folders say and checks that they can serve."""

from __future__ import annotations

import logging
from pathlib import Path

from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.gpus import find_gpu
from trtbuild.names import LAYOUTS
from trtbuild.repo.context import RepoContext, build_context
from trtbuild.repo.draft import open_draft
from trtbuild.repo.served import read_served
from trtbuild.repo.tokenizer import check_tokenizer
from trtbuild.spec import Deployment
from trtbuild.trtllm.artifact import read_artifact
from trtbuild.trtllm.compatibility import Installed, containers_with, require_compatible
from trtbuild.trtllm.versions import find_release

logger = logging.getLogger(__name__)


def context_of(
    deployment: Deployment,
    *,
    checkpoint_dir: Path | None,
    engine_dir: Path | None = None,
    draft_dir: Path | None = None,
    path_map: tuple[str, str] | None = None,
) -> RepoContext:
    """Return the context of a deployment whose checkpoint was converted.

    Args:
        deployment: the resolved trtbuild.yaml.
        checkpoint_dir: folder of the converted checkpoint; its tokenizer is used, or else that of the model.
        engine_dir: folder of the built engine; needed by the target `tensorrt`.
        draft_dir: build folder of the draft model; needed by engines with `speculative.mode: draft_target`.
        path_map: (folder here, the same folder as the server sees it), for a server in a container.

    Raises:
        UsageError: no checkpoint is named, or it is not of the kind that the target serves.
        TrtbuildError: a folder cannot serve.
    """
    draft = open_draft(deployment, draft_dir)
    if checkpoint_dir is None:
        raise UsageError("no checkpoint is named", hint="add --checkpoint DIR, a folder that `trtbuild convert` wrote")
    if not (checkpoint_dir / "config.json").is_file():
        raise TrtbuildError(
            f"{checkpoint_dir} is no checkpoint: it has no config.json", hint="make one with `trtbuild convert`"
        )
    served, wants_unified = read_served(checkpoint_dir), LAYOUTS[deployment.target] == "unified"
    if served.unified is not None and wants_unified:
        from trtbuild.targets.pytorch import check_folder

        for note in check_folder(deployment, served.unified):
            logger.warning("note: %s", note)
    elif wants_unified:
        raise UsageError(
            f"{checkpoint_dir} holds rank files, and target '{deployment.target}' serves a Hugging Face folder",
            hint=f"convert the model with `trtbuild convert --target {deployment.target}`",
        )
    tokenizer_dir = served.tokenizer_dir
    if not tokenizer_dir.is_dir():
        tokenizer_dir = Path(deployment.model.path)
    draft_engine = draft.engine.path if draft is not None and draft.engine is not None else None
    for folder in (engine_dir, draft_engine):
        if deployment.target == "tensorrt" and folder is not None and folder.is_dir():
            _check_engine(deployment, folder)
    check_tokenizer(tokenizer_dir, chat_template=bool(deployment.serving.chat_template))
    return build_context(
        deployment,
        served.config,
        checkpoint_dir=checkpoint_dir,
        tokenizer_dir=tokenizer_dir,
        engine_dir=engine_dir,
        draft=draft,
        path_map=path_map,
    )


def _check_engine(deployment: Deployment, engine_dir: Path) -> None:
    """Raise TrtbuildError unless the release and the GPU that a deployment states can load an engine; warn where it states none."""
    artifact = read_artifact(engine_dir)
    sms = (find_gpu(deployment.hardware.gpu).sm,) if deployment.hardware.gpu else ()
    if deployment.tensorrt_llm is not None:
        installed = Installed.of_release(find_release(deployment.tensorrt_llm), sms=sms)
    else:
        installed = Installed("the server", sms=sms)
        if artifact.tensorrt_llm:
            boxes = containers_with(tensorrt_llm=artifact.tensorrt_llm, tensorrt=artifact.tensorrt)
            logger.warning(
                "note: trtbuild.yaml does not state tensorrt_llm; %s was built by %s: serve it with that release%s",
                engine_dir, artifact.tensorrt_llm, f", {boxes[0].image}" if boxes else "",
            )  # fmt: skip
    for line in require_compatible(artifact, installed):
        logger.warning("note: %s", line)
