"""From a deployment and its folders to the RepoContext: reads what the folders say and checks that they can serve."""

from __future__ import annotations

import logging
from pathlib import Path

from trtbuild import manifest
from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.gpus import find_gpu
from trtbuild.integrity import artifact_problems
from trtbuild.names import LAYOUTS, TOKENIZER_FOLDER
from trtbuild.repo.context import RepoContext, build_context
from trtbuild.repo.draft import open_draft
from trtbuild.repo.served import read_served
from trtbuild.repo.tokenizer import check_tokenizer
from trtbuild.spec import Deployment
from trtbuild.trtllm.artifact import read_artifact
from trtbuild.trtllm.compatibility import Installed, containers_with, require_compatible
from trtbuild.trtllm.engine import Engine
from trtbuild.trtllm.versions import find_release

logger = logging.getLogger(__name__)


def context_of(
    deployment: Deployment,
    *,
    checkpoint_dir: Path | None,
    engine_dir: Path | None = None,
    draft_dir: Path | None = None,
    engine_later: bool = False,
    path_map: tuple[str, str] | None = None,
) -> RepoContext:
    """Return the context of a deployment whose checkpoint was converted.

    Args:
        deployment: the resolved trtbuild.yaml.
        checkpoint_dir: folder of the converted checkpoint; its tokenizer is used, or else that of the model.
        engine_dir: folder of the built engine; needed by the target `tensorrt`.
        draft_dir: build folder of the draft model; needed by engines with `speculative.mode: draft_target`.
        engine_later: whether the engine need not be there yet; of what is there, config.json counts.
        path_map: (folder here, the same folder as the server sees it), for a server in a container.

    Raises:
        UsageError: no checkpoint is named, or it is not of the kind that the target serves.
        TrtbuildError: a folder cannot serve: a file is missing or cut, or the engine is not of this deployment.
    """
    draft = open_draft(deployment, draft_dir)
    if checkpoint_dir is None:
        raise UsageError("no checkpoint is named", hint="add --checkpoint DIR, a folder that `trtbuild convert` wrote")
    if not (checkpoint_dir / "config.json").is_file():
        raise TrtbuildError(
            f"{checkpoint_dir} is no checkpoint: it has no config.json", hint="make one with `trtbuild convert`"
        )
    # Of an engine's checkpoint the server reads the tokenizer alone.
    is_engine = deployment.target == "tensorrt"
    _require_whole(checkpoint_dir, under=f"{TOKENIZER_FOLDER}/" if is_engine else "")
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
    engine = engine_dir if is_engine and engine_dir is not None and engine_dir.is_dir() else None
    if engine is not None and engine_later and not (engine / "config.json").is_file():
        engine = None
    if engine is not None:
        _check_engine(deployment, engine, is_later=engine_later)
    if draft is not None and draft.engine is not None:
        _check_engine(deployment, draft.engine.path, is_later=False)
    check_tokenizer(tokenizer_dir, chat_template=bool(deployment.serving.chat_template))
    context = build_context(
        deployment,
        served.config,
        checkpoint_dir=checkpoint_dir,
        tokenizer_dir=tokenizer_dir,
        engine_dir=engine_dir,
        draft=draft,
        engine_later=engine_later,
        path_map=path_map,
    )
    if engine is not None:
        from trtbuild.trtllm.engine_fit import require_fit  # brings the options of trtllm-build along

        require_fit(Engine.open(engine), deployment, served.config if served.unified is None else {})
    return context


def _require_whole(folder: Path, *, under: str = "") -> None:
    if found := artifact_problems(folder, under=under):
        raise TrtbuildError(
            f"{folder} is not whole: {manifest.worded(found)}",
            hint="copy the whole folder again, or run `trtbuild build` again, which does what is missing",
        )


def _check_engine(deployment: Deployment, engine_dir: Path, *, is_later: bool) -> None:
    """Check that an engine is whole and can be loaded by the release and the GPU that a deployment states; warn where it states none.

    Args:
        deployment: what will serve it.
        engine_dir: its folder.
        is_later: whether its files are still to come, and only config.json counts.

    Raises:
        TrtbuildError: a file is missing or cut, or the release or the GPU cannot load it.
    """
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
    if not is_later:
        _require_whole(engine_dir)
