"""The repository of a deployment before anything of it is built: whatever rendering would refuse is found with headers and configuration.

The same code makes the context here and when the checkpoint is there, so there are no rules to keep in step.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.names import LAYOUTS
from trtbuild.repo.context import RepoContext, context_from
from trtbuild.repo.draft import check_target
from trtbuild.repo.tokenizer import check_tokenizer
from trtbuild.spec import Deployment

if TYPE_CHECKING:
    from trtbuild.targets.base import Job

#: Folders of a build: any absolute path will do, since none is opened.
_PATHS = {name: Path("/build", name) for name in ("checkpoint_dir", "tokenizer_dir", "engine_dir")}
#: What conversion writes into config.json of rank files (checkpoint specification 1.2).
_LOGITS_DTYPE = "float32"


def planned_context(job: Job) -> RepoContext:
    """Return the context that the repository of a job will be rendered from, with folders that stand for those of the build.

    Raises:
        UsageError: it could not be rendered.
        TrtbuildError: a file that it needs does not hold what it must.
    """
    check_target(job.deployment, job.dims.vocab_size, job.limits)
    dims, is_engine = job.dims, job.deployment.target == "tensorrt"
    will_say = {
        "vocab_size": dims.vocab_size,
        "logits_dtype": _LOGITS_DTYPE,
        "kv_cache_quant_algo": job.kv_cache_quant_algo,
    }
    paths = {name: path for name, path in _PATHS.items() if is_engine or name != "engine_dir"}
    return context_from(
        job.deployment, will_say, limits=job.limits, paths=paths, engine=None, draft=None, path_map=None
    )


def tokenizer_notes(deployment: Deployment, model: Path) -> list[str]:
    """Return what keeps a server from loading the tokenizer of a model: the checkpoint can be built without one, a repository cannot.

    Args:
        deployment: the resolved trtbuild.yaml.
        model: the folder that the tokenizer's files are taken from.

    Raises:
        UsageError: a chat template is asked for, and the tokenizer has none.
    """
    try:
        check_tokenizer(
            model,
            chat_template=bool(deployment.serving.chat_template),
            has_config=LAYOUTS[deployment.target] == "unified",
        )
    except UsageError:
        raise
    except TrtbuildError as error:
        return [f"no repository can be rendered of this build: {error.message}"]
    return []
