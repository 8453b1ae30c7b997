"""From a deployment and its folders to the RepoContext: reads what the folders say and checks that they can serve."""

from __future__ import annotations

import logging
from pathlib import Path

from trtbuild.checkpoint_kinds import is_rank_folder
from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.gpus import find_gpu
from trtbuild.names import LAYOUTS, TOKENIZER_FOLDER
from trtbuild.repo.context import RepoContext, build_context
from trtbuild.repo.tokenizer import check_tokenizer
from trtbuild.source import read_json
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
    path_map: tuple[str, str] | None = None,
) -> RepoContext:
    """Return the context of a deployment whose checkpoint was converted.

    Args:
        deployment: the resolved trtbuild.yaml.
        checkpoint_dir: folder of the converted checkpoint; its tokenizer is used, or else that of the model.
        engine_dir: folder of the built engine; needed by the target `tensorrt`.
        path_map: (folder here, the same folder as the server sees it), for a server in a container.

    Raises:
        UsageError: no checkpoint is named, or it is not of the kind that the target serves.
        TrtbuildError: a folder cannot serve.
    """
    if checkpoint_dir is None:
        raise UsageError("no checkpoint is named", hint="add --checkpoint DIR, a folder that `trtbuild convert` wrote")
    if not (checkpoint_dir / "config.json").is_file():
        raise TrtbuildError(
            f"{checkpoint_dir} is no checkpoint: it has no config.json", hint="make one with `trtbuild convert`"
        )
    config, tokenizer_dir = read_json(checkpoint_dir / "config.json"), checkpoint_dir / TOKENIZER_FOLDER
    if not is_rank_folder(checkpoint_dir):
        from trtbuild.unified_checkpoint import UnifiedCheckpoint  # brings the layouts of all schemes along

        unified = UnifiedCheckpoint.open(checkpoint_dir)
        if LAYOUTS[deployment.target] == "unified":
            from trtbuild.targets.pytorch import check_folder

            for note in check_folder(deployment, unified):
                logger.warning("note: %s", note)
        config = {
            "vocab_size": unified.dims.vocab_size,
            "max_position_embeddings": unified.dims.max_position_embeddings,
            "rotary_scaling": unified.dims.rope.scaling if unified.dims.rope else None,
            "kv_cache_quant_algo": unified.kv_cache_quant_algo,
        }
        tokenizer_dir = unified.tokenizer_dir or tokenizer_dir
    elif LAYOUTS[deployment.target] == "unified":
        raise UsageError(
            f"{checkpoint_dir} holds rank files, and target '{deployment.target}' serves a Hugging Face folder",
            hint=f"convert the model with `trtbuild convert --target {deployment.target}`",
        )
    if not tokenizer_dir.is_dir():
        tokenizer_dir = Path(deployment.model.path)
    if deployment.target == "tensorrt" and engine_dir is not None and engine_dir.is_dir():
        _check_engine(deployment, engine_dir)
    check_tokenizer(tokenizer_dir, chat_template=bool(deployment.serving.chat_template))
    return build_context(
        deployment,
        config,
        checkpoint_dir=checkpoint_dir,
        tokenizer_dir=tokenizer_dir,
        engine_dir=engine_dir,
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
