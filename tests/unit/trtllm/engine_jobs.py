"""Jobs for tests of the target tensorrt: a tiny Llama, or another architecture, in any format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.unit.lora.adapters import Q, pair, write_adapter

from trtbuild.dims import ModelDims
from trtbuild.gpus import find_gpu
from trtbuild.limits import resolve_limits
from trtbuild.parallel import Parallel
from trtbuild.spec import parse
from trtbuild.targets.base import Job
from trtbuild.trtllm.versions import find_release

DIMS = ModelDims(
    architecture="LlamaForCausalLM", model_type="llama", hidden_size=4096, intermediate_size=14336, num_layers=32,
    num_attention_heads=32, num_kv_heads=8, head_dim=128, vocab_size=128256, max_position_embeddings=8192, norm_epsilon=1e-5,
    hidden_act="silu", rope=None, tie_word_embeddings=False, dtype="bfloat16",
)  # fmt: skip


def make_job(
    *,
    release: str = "1.2.1",
    architecture: str = "LlamaForCausalLM",
    quant_algo: str | None = None,
    kv: str | None = None,
    gpu: str | None = None,
    dtype: str = "bfloat16",
    positions: int = DIMS.max_position_embeddings,
    **sections: Any,
) -> Job:
    """Return a job; sections are those of trtbuild.yaml."""
    deployment = parse(
        {"model": {"path": "/models/llama"}, "target": "tensorrt", "tensorrt_llm": release, **sections}, origin="test"
    )
    parallel = deployment.parallel
    return Job(
        deployment=deployment,
        release=find_release(release),
        dims=replace(DIMS, architecture=architecture, max_position_embeddings=positions),
        parallel=Parallel(parallel.tp_size, parallel.pp_size),
        limits=resolve_limits(deployment, positions),
        dtype=dtype,
        quant_algo=quant_algo,
        kv_cache_quant_algo=kv,
        gpu=find_gpu(gpu) if gpu else None,
    )


def q_adapter(folder: Path) -> Path:
    """Write an adapter of rank 4 that changes the q projection of the first layer."""
    return write_adapter(folder, {Q: pair(4, 64, 64, seed=1)})
