"""The deployment plan: what a build will write and what a rank will hold, before anything is built."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from trtbuild.arch.sized import INSTEAD, architecture_of, size_model
from trtbuild.convert.run import plan_deployment
from trtbuild.convert.unified_plan import describe
from trtbuild.dtypes import SIZES
from trtbuild.limits import resolve_limits
from trtbuild.parallel import Parallel
from trtbuild.source import SourceCheckpoint, read_config
from trtbuild.spec import Deployment
from trtbuild.targets.base import Job, load_target

#: Bytes of one element of a quantized KV cache (FP8 and INT8).
_QUANTIZED_KV_BYTES = 1


def plan(deployment: Deployment) -> dict[str, Any]:
    """Return the plan of a deployment as plain data; it contains the conversion plan, or the size of a model that is not converted.

    Raises:
        TrtbuildError: the deployment cannot be built.
    """
    model = Path(deployment.model.path)
    if (architecture := architecture_of(read_config(model))) is not None:
        raw = SourceCheckpoint.open(model)
        return {
            "target": deployment.target,
            "is_converted": False,
            "instead": INSTEAD,
            **asdict(size_model(raw, architecture)),
        }
    conversion = plan_deployment(deployment)
    layout = conversion.layout
    # A unified folder is planned uncut; the server cuts it as the deployment says.
    parallel = Parallel(deployment.parallel.tp_size, deployment.parallel.pp_size)
    limits = resolve_limits(
        deployment, layout.dims.max_position_embeddings, layout.dims.rope.scaling if layout.dims.rope else None
    )
    target_notes = load_target(deployment.target).check(Job.of(deployment, conversion))
    element = _QUANTIZED_KV_BYTES if layout.kv_format else SIZES[layout.dtype]
    local_heads = max(layout.dims.num_kv_heads // parallel.tp_size, 1)
    kv_ranks = []
    for rank in parallel.ranks():
        layers = len(parallel.layers(layout.dims.num_layers, rank.pp_rank))
        per_token = 2 * layers * local_heads * layout.dims.head_dim * element
        kv_ranks.append({"rank": rank.index, "bytes_per_token": per_token, "pool_bytes": per_token * limits.kv_tokens})
    described = describe(conversion, [deployment.target], tensors=False)
    return {
        "target": deployment.target,
        "is_converted": True,
        "conversion": described,
        "limits": {
            **asdict(limits),
            "kv_tokens": limits.kv_tokens,
            "full_length_sequences": limits.kv_tokens // limits.max_seq_len,
        },
        "kv_cache": kv_ranks,
        "notes": target_notes,
        "disk_bytes": described["write_bytes"],
    }
