"""What the work takes beside the GPUs: host memory, disk and time of the conversion and of building engines, memory of the server.

Rates are those of docs/performance.md, measured on a virtual machine with two CPUs; on another disk they are others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from trtbuild.convert.kept import COPY_BYTES
from trtbuild.convert.plan import ConversionPlan
from trtbuild.convert.work import Conversion, Copy, Work
from trtbuild.dtypes import SIZES
from trtbuild.memory.buffers import PINNED_BYTES
from trtbuild.memory.estimate import Estimate
from trtbuild.memory.kv import host_blocks

_GB = 10**9
#: GB of source per second by what is done with each weight (docs/performance.md).
_RATES = {"copy": 0.279, "fp8": 0.321, "int4": 0.285}
#: Peak memory of the interpreter with numpy, of torch and transformers beside it (measured: 300 to 370 MiB, by how
#: many pages of their libraries the system maps at once), and what a conversion uses above them
#: unless --memory says otherwise: of a small model all of it at once, 16-bit rows with up to three copies in float32.
_INTERPRETER_BYTES = 80 * 2**20
_TORCH_BYTES = 400 * 2**20
_BUDGET_BYTES = 2**30
_WORK_FACTOR = 8
#: trtllm-build holds the rank file, what it makes of it, and the serialized engine: 2 to 3 times a rank (checkpoint specification 6.3).
_BUILD_FACTORS = (2, 3)


@dataclass(frozen=True)
class HostNeeds:
    """Bytes and seconds.

    Attributes:
        conversion_bytes: memory of the conversion, its --memory budget and one decoder layer in float32 when it calibrates.
        disk_bytes: of the checkpoint, of recipes while it is made, and of engines.
        conversion_s: without calibration.
        build_bytes: (least, most) memory of trtllm-build over all workers, None for other targets.
        server_bytes: host memory of the server beside its Python processes: pinned pool, host KV cache, adapters; for the target reference the
            model and its KV pool in float32 (`reference.model`).
        host_kv_blocks: of the host pool.
        is_reference: the server is target reference, on the CPU.
        workers: ranks that trtllm-build builds at once.
    """

    conversion_bytes: int
    disk_bytes: int
    conversion_s: float
    calibrates: bool
    build_bytes: tuple[int, int] | None
    server_bytes: int
    host_kv_blocks: int
    is_reference: bool
    workers: int

    @property
    def server_words(self) -> str:
        """How the server's memory comes about."""
        return (
            "the whole model and its KV pool in float32"
            if self.is_reference
            else "256 MiB pinned pool of Triton, kv_cache.host_cache_bytes, and lora.host_cache_bytes where adapters are served"
        )

    @property
    def build_words(self) -> str:
        """How the memory of trtllm-build comes about."""
        low, high = _BUILD_FACTORS
        return f"{low} to {high} times the weights of {self.workers} ranks that are built at once"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "conversion_memory_bytes": self.conversion_bytes,
            "disk_bytes": self.disk_bytes,
            "conversion_s": round(self.conversion_s, 1),
            "conversion_s_excludes_calibration": self.calibrates,
            "build_memory_bytes": list(self.build_bytes) if self.build_bytes else None,
            "server_memory_bytes": self.server_bytes,
            "host_kv_blocks": self.host_kv_blocks,
        }


def host_needs(work: Work, it: Estimate | None) -> HostNeeds:
    """Return what a deployment needs beside its GPUs.

    Args:
        work: what makes its checkpoint.
        it: its estimate; without one (target reference) there is no engine and no host pool.
    """
    deployment = work.deployment
    engines = [rank.weights.nbytes for rank in it.ranks] if it and deployment.target == "tensorrt" else []
    adapters = deployment.lora.host_cache_bytes if deployment.lora.adapters else 0
    cache = deployment.kv_cache.host_cache_bytes
    return HostNeeds(
        _work_bytes(work),
        work.nbytes + sum(engines),
        work.read_bytes / _GB / _RATES[_kind(work)],
        work.calibrates,
        _build_bytes(engines, deployment.engine.workers) if engines else None,
        _reference_bytes(work.plan, work.job().limits.kv_tokens)
        if it is None and isinstance(work, Conversion)
        else PINNED_BYTES + cache + adapters,
        min((host_blocks(rank.cache, cache // len(it.ranks)) for rank in it.ranks), default=0) if it else 0,
        it is None,
        _workers(engines, deployment.engine.workers),
    )


def _work_bytes(work: Work) -> int:
    """Return what a conversion or a copy takes at most, unless --memory says otherwise."""
    if isinstance(work, Copy):
        return _INTERPRETER_BYTES + COPY_BYTES
    budget = min(_BUDGET_BYTES, _WORK_FACTOR * work.plan.rows_bytes)
    return _INTERPRETER_BYTES + budget + (_TORCH_BYTES + _layer_bytes(work.plan) if work.calibrates else 0)


def _reference_bytes(plan: ConversionPlan, tokens: int) -> int:
    """Return what the model of target reference takes: all of it in one process, in float32, and its KV pool."""
    dims, width = plan.dims, SIZES["F32"]
    weights = sum(
        math.prod(part.shape) for part in dict.fromkeys(replace(part, expert=None) for part in plan.layout.parts)
    )
    return width * (weights + tokens * 2 * dims.num_layers * dims.kv_size)


def _kind(work: Work) -> str:
    if isinstance(work, Copy):
        return "copy"
    plan = work.plan
    codecs = {
        form.codec.packing for scheme in plan.layout.schemes if (form := scheme.ranks or scheme.unified) and form.codec
    }
    return "int4" if any(packing != (1, 1) for packing in codecs) else "fp8" if codecs else "copy"


def _layer_bytes(plan: ConversionPlan) -> int:
    parts = [part for slot in plan.layout.slots if slot.layer == 0 for part in slot.parts]
    return 4 * sum(math.prod(part.shape) for part in parts)


def _workers(engines: Sequence[int], workers: int | None) -> int:
    """Return how many ranks are built at once: one per visible GPU unless said otherwise, so all of them."""
    return min(workers or len(engines), len(engines))


def _build_bytes(engines: Sequence[int], workers: int | None) -> tuple[int, int]:
    largest = sorted(engines, reverse=True)[: _workers(engines, workers)]
    return sum(largest) * _BUILD_FACTORS[0], sum(largest) * _BUILD_FACTORS[1]
