"""The target `pytorch`: the (quantized) Hugging Face folder is served by TensorRT-LLM's LLM API.

Nothing is compiled. Beside the checkpoint lie the arguments of the LLM API for one release, and the command that takes them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtbuild.manifest import CHECKPOINT
from trtbuild.targets.base import Job
from trtbuild.targets.pytorch_checks import CHECKS, facts_of
from trtbuild.trtllm.llm_serve import SCRIPT_NAME, YAML_NAME, serve_command, serve_script, yaml_text
from trtbuild.trtllm.llm_settings import arguments


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
