"""The protocol of a target, and the facts a target may ask for. Knows no target; reads no weights."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from trtbuild.arch.registry import resolve
from trtbuild.convert.plan import ConversionPlan
from trtbuild.dims import ModelDims
from trtbuild.dtypes import TO_CONFIG
from trtbuild.errors import UsageError
from trtbuild.gpus import Gpu, find_gpu
from trtbuild.limits import ResolvedLimits, resolve_limits
from trtbuild.names import LAYOUTS
from trtbuild.parallel import Parallel
from trtbuild.rank_config import rank_quantization
from trtbuild.source import SourceCheckpoint
from trtbuild.spec import Deployment
from trtbuild.trtllm.versions import DEFAULT, Release, find_release

#: Target -> what makes it.
TARGETS: dict[str, str] = {
    "tensorrt": "trtbuild.targets.tensorrt:TensorRT",
    "pytorch": "trtbuild.targets.pytorch:PyTorch",
    "reference": "trtbuild.targets.reference:Reference",
}


@dataclass(frozen=True, slots=True)
class Job:
    """One deployment with everything resolved that headers can tell.

    Attributes:
        deployment: the resolved trtbuild.yaml.
        release: of TensorRT-LLM, that will build and serve.
        dims: of the model; `dims.architecture` is TensorRT-LLM's name.
        parallel: how the server cuts the model; a unified checkpoint lies uncut on the disk.
        limits: with every default filled in.
        dtype: of unquantized tensors, as in config.json, e.g. "bfloat16".
        quant_algo: TensorRT-LLM's name of the weights' format, "MIXED_PRECISION", or None.
        kv_cache_quant_algo: "FP8", "INT8" or None.
        gpu: where it will run, None when not said.
    """

    deployment: Deployment
    release: Release
    dims: ModelDims
    parallel: Parallel
    limits: ResolvedLimits
    dtype: str
    quant_algo: str | None
    kv_cache_quant_algo: str | None
    gpu: Gpu | None

    @classmethod
    def of(cls, deployment: Deployment, plan: ConversionPlan) -> Job:
        """Resolve a deployment whose conversion was planned.

        Raises:
            UsageError: the release is unknown, or the limits do not fit the model.
        """
        layout = plan.layout
        is_unified = LAYOUTS[deployment.target] == "unified"
        form = layout.scheme.unified if is_unified else layout.scheme.ranks
        algo = rank_quantization(layout)["quant_algo"] if layout.is_mixed or form is None else form.quant_algo
        kv_algo = layout.kv_format.quant_algo if layout.kv_format else None
        return cls._resolved(deployment, layout.dims, TO_CONFIG[layout.dtype], algo, kv_algo)

    @classmethod
    def of_kept(cls, deployment: Deployment, raw: SourceCheckpoint, algo: str, kv_algo: str | None) -> Job:
        """Resolve a deployment of a folder that is quantized already and copied as it is.

        Args:
            deployment: what it is for.
            raw: the folder.
            algo: what its weights are.
            kv_algo: what its KV cache wants to be.

        Raises:
            TrtbuildError: its architecture is not known, or its config.json lacks something.
            UsageError: the release is unknown, or the limits do not fit the model.
        """
        where = str(raw.path / "config.json")
        architecture, arch = resolve(raw.config, where=where)
        dims = arch.read_dims(raw.config, architecture, where)
        dtype = str(raw.config.get("dtype") or raw.config.get("torch_dtype") or "bfloat16")
        return cls._resolved(deployment, dims, dtype, algo, kv_algo)

    @classmethod
    def _resolved(
        cls, deployment: Deployment, dims: ModelDims, dtype: str, algo: str | None, kv_algo: str | None
    ) -> Job:
        parallel = deployment.parallel
        return cls(
            deployment,
            find_release(deployment.tensorrt_llm or DEFAULT),
            dims,
            Parallel(parallel.tp_size, parallel.pp_size, moe_ep_size=parallel.ep_size),
            resolve_limits(deployment, dims.max_position_embeddings, dims.rope.scaling if dims.rope else None),
            dtype,
            algo,
            kv_algo,
            find_gpu(deployment.hardware.gpu) if deployment.hardware.gpu else None,
        )


class Target(Protocol):
    """What makes a checkpoint loadable."""

    def check(self, job: Job) -> list[str]:
        """Return notes about a job.

        Raises:
            UsageError: it cannot be built like this; the message names the nearest that can.
        """

    def preflight(self, job: Job, folder: Path) -> None:
        """Look for what `finish` needs on this machine, before an hour of conversion.

        Args:
            job: the resolved deployment.
            folder: that the build will be in.

        Raises:
            ToolFailed: something is missing.
        """

    def finish(self, job: Job, folder: Path, *, quiet: bool) -> dict[str, Any]:
        """Make of folder/checkpoint what the server loads, beside it in the same folder.

        Returns:
            What the manifest records.

        Raises:
            ToolFailed: a program that is needed is missing, or failed; the checkpoint is good.
        """


def load_target(name: str) -> Target:
    """Return a target by its name in `TARGETS`."""
    module, _, attribute = TARGETS[name].partition(":")
    target: Target = getattr(import_module(module), attribute)()
    return target


def check_job(job: Job) -> list[str]:
    """Return the notes of a target about a job, and those that all targets have.

    Raises:
        UsageError: it cannot be built like this, or what is built could not be served; the message names the nearest that can.
        TrtbuildError: an adapter cannot be read, or another file that is served does not hold what it must.
    """
    from trtbuild.repo.planned import planned_context  # conversions do without repositories

    windows = job.deployment.kv_cache.max_attention_window
    if len(windows) > job.dims.num_layers:
        raise UsageError(
            f"kv_cache.max_attention_window names {len(windows)} windows, the model has {job.dims.num_layers} layers",
            hint="name at most one per layer; fewer are repeated",
        )
    notes = [*load_target(job.deployment.target).check(job), *job.limits.notes]
    planned_context(job)
    return list(dict.fromkeys(notes))
