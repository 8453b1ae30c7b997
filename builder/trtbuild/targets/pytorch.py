"""The target `pytorch`: the (quantized) Hugging Face folder is served by TensorRT-LLM's LLM API.

Nothing is compiled. Beside the checkpoint lie the arguments of the LLM API for one release, and the command that takes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtbuild.gpus import find_gpu
from trtbuild.limits import resolve_limits
from trtbuild.manifest import CHECKPOINT
from trtbuild.parallel import Parallel
from trtbuild.spec import Deployment
from trtbuild.targets.base import Job, check_job
from trtbuild.targets.pytorch_checks import CHECKS, facts_of
from trtbuild.trtllm.llm_serve import SCRIPT_NAME, YAML_NAME, serve_command, serve_script, yaml_text
from trtbuild.trtllm.llm_settings import arguments
from trtbuild.trtllm.versions import DEFAULT, Release, Version, find_release
from trtbuild.unified_checkpoint import UnifiedCheckpoint


def check_folder(deployment: Deployment, checkpoint: UnifiedCheckpoint) -> list[str]:
    """Return notes about serving a unified folder, wherever it comes from.

    Raises:
        UsageError: it, or the deployment, cannot be served.
    """
    dims, parallel = checkpoint.dims, deployment.parallel
    job = Job(
        deployment,
        find_release(deployment.tensorrt_llm or DEFAULT),
        dims,
        Parallel(parallel.tp_size, parallel.pp_size, moe_ep_size=parallel.ep_size),
        resolve_limits(deployment, dims.max_position_embeddings, dims.rope.scaling if dims.rope else None),
        dims.dtype,
        checkpoint.quant_algo,
        checkpoint.kv_cache_quant_algo,
        find_gpu(deployment.hardware.gpu) if deployment.hardware.gpu else None,
    )
    return [*check_job(job), *_library_notes(job.release, checkpoint.config)]


def _library_notes(release: Release, config: Mapping[str, Any]) -> list[str]:
    """Return a note when a model was written by a later transformers than the release has inside."""
    wrote, inside = config.get("transformers_version"), release.transformers
    later, known = Version.parse(str(wrote)), Version.parse(inside)
    if later is None or known is None or later.line <= known.line:
        return []
    return [
        f"config.json was written by transformers {wrote}, and TensorRT-LLM {release} has {inside}: it may not know the model's settings"
    ]


class PyTorch:
    """Writes llm_api.yaml and serve.sh; needs no GPU and no TensorRT-LLM."""

    def check(self, job: Job) -> list[str]:
        """Return notes about a job.

        Raises:
            UsageError: the release, the model or an argument does not fit; the message names what would.
        """
        return list(dict.fromkeys(note for check in CHECKS for note in check(job)))

    def preflight(self, job: Job, folder: Path) -> None:
        """Look for nothing: building needs no tool."""

    def finish(self, job: Job, folder: Path, *, quiet: bool) -> dict[str, Any]:
        """Write the YAML file and the script beside the checkpoint.

        Returns:
            The release, both names, and the command.
        """
        made = arguments(facts_of(job))
        serving, count = job.deployment.serving, job.deployment.hardware.count
        ranks = job.parallel.world_size
        command = serve_command(
            job.release,
            made,
            model=f"./{CHECKPOINT}",
            config=YAML_NAME,
            host=serving.address,
            port=serving.http_port,
            nodes=-(-ranks // count) if count is not None else 1,
        )
        (folder / YAML_NAME).write_text(yaml_text(made, job.release), encoding="utf-8")
        script = folder / SCRIPT_NAME
        script.write_text(serve_script(command, job.release), encoding="utf-8")
        script.chmod(0o755)
        return {"tensorrt_llm": job.release.name, "llm_api": YAML_NAME, "script": SCRIPT_NAME, "command": command}
