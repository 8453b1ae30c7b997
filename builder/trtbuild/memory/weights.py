"""Bytes of weights on each rank, counted tensor by tensor: as they lie in the files, and as they lie on the GPU.

Rank files hold what a rank loads. A unified folder is cut by the server: the same `Shard` rules are applied to it, with the embedding
over the hidden size and a tied head held once, as TensorRT-LLM's PyTorch backend does (tensorrt_llm/_torch/models/modeling_llama.py,
`embed_tokens` with TensorParallelMode.COLUMN).

The GPU differs from the file in two places: group scales, float32 in rank files, become 16-bit in the engine (checkpoint specification
7.4); and int8_weight_only and int4_weight_only, plain in the file, are quantized by the loader (2.8).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from trtbuild.convert.plan import ConversionPlan
from trtbuild.dtypes import SIZES
from trtbuild.layout import Layout, Slot, StoredTensor
from trtbuild.memory.lines import Line
from trtbuild.names import LAYOUTS
from trtbuild.parallel import Parallel
from trtbuild.quant.kv_cache import KV_SCALE_NAMES
from trtbuild.quant.scheme import MODEL_DTYPE, Form
from trtbuild.quant.weight_only import LoadedAs
from trtbuild.spec import Deployment
from trtbuild.unified_layout import KV_SCALES

#: What a tensor counts as.
_KINDS = ("layers", "scales", "embedding", "head")
_HEAD = "lm_head.weight"
#: Bytes of a group scale, and of a scale of a row that the loader makes, on the GPU.
_LOADED_SCALE_BYTES = 2


@dataclass(frozen=True)
class RankWeights:
    """Weights of one rank, in bytes.

    Attributes:
        layers: linears, norms and biases of decoder layers, and the last norm.
        scales: of quantized weights, inputs and the KV cache.
        embedding: and learned positions.
        head: 0 where it is the embedding's.
        file_bytes: of all tensors as files hold them; of a unified folder the rank's share.
        elements: weights before they were packed or quantized, scales not counted.
    """

    layers: int
    scales: int
    embedding: int
    head: int
    file_bytes: int
    elements: int

    @property
    def nbytes(self) -> int:
        """All of it on the GPU."""
        return self.layers + self.scales + self.embedding + self.head


def serving_layout(plan: ConversionPlan, deployment: Deployment) -> Layout:
    """Return the layout as the server cuts it; of rank files the plan's own."""
    if LAYOUTS[deployment.target] == "ranks":
        return plan.layout
    asked, dims = deployment.parallel, plan.dims
    cuts_hidden = asked.tp_size > 1 and dims.hidden_size % asked.tp_size == 0
    parallel = Parallel(asked.tp_size, asked.pp_size, moe_ep_size=asked.ep_size, hidden_embedding=cuts_hidden)
    parallel.check(dims)
    return replace(plan.layout, parallel=parallel)


def rank_weights(layout: Layout, *, is_unified: bool) -> list[RankWeights]:
    """Return the weights of every rank in file order; the tensor-parallel ranks of a stage are alike.

    Args:
        layout: as the server cuts it.
        is_unified: whether it comes from a unified folder.
    """
    stages = [_stage(layout, stage, is_unified=is_unified) for stage in range(layout.parallel.pp_size)]
    return [stages[rank.pp_rank] for rank in layout.parallel.ranks()]


def _stage(layout: Layout, pp_rank: int, *, is_unified: bool) -> RankWeights:
    sums = dict.fromkeys(_KINDS, 0)
    file_bytes = elements = 0
    shares_head = is_unified and layout.parallel.pp_size == 1
    kinds: dict[tuple[str, str], tuple[list[tuple[str, int]], int, int]] = {}
    for slot in layout.slots:
        if slot.pp_rank != pp_rank:
            continue
        if shares_head and slot.target == _HEAD and layout.dims.tie_word_embeddings:
            continue
        # Layers repeat: what a rule stores under one scheme is counted once.
        scheme = layout.scheme_of(slot)
        key = (slot.rule.target, scheme.name if scheme else "")
        if key not in kinds:
            kinds[key] = _count(layout, slot, is_unified=is_unified)
        counted, in_file, count = kinds[key]
        file_bytes, elements = file_bytes + in_file, elements + count
        for kind, nbytes in counted:
            sums[kind] += nbytes
    if layout.kv_format:
        per_layer = len(KV_SCALES) if is_unified else len(KV_SCALE_NAMES)
        scales = per_layer * SIZES["F32"] * len(layout.parallel.layers(layout.dims.num_layers, pp_rank))
        sums["scales"] += scales
        file_bytes += scales
    return RankWeights(**sums, file_bytes=file_bytes, elements=elements)


def _count(layout: Layout, slot: Slot, *, is_unified: bool) -> tuple[list[tuple[str, int]], int, int]:
    """Return (kind, bytes on the GPU) of each tensor of a slot, the bytes in the file, and the number of weights."""
    kind = "embedding" if slot.rule.stage == "first" else "head" if slot.target == _HEAD else "layers"
    form = _form(layout, slot, is_unified=is_unified)
    if form is not None and isinstance(form.loaded, LoadedAs):
        (tensor,) = layout.stored(slot, 0)
        codes = math.prod(tensor.shape) * form.loaded.bits // 8
        rows = math.prod(tensor.shape[:-1])
        return [(kind, codes), ("scales", rows * _LOADED_SCALE_BYTES)], tensor.nbytes, math.prod(tensor.shape)
    stored = list(_unified(layout, slot, form) if is_unified else layout.stored(slot, 0))
    is_coded = form is not None and form.codec is not None
    found, in_file = [], 0
    for number, tensor in enumerate(stored):
        in_file += tensor.nbytes
        narrows = number > 0 and len(tensor.shape) > 1 and tensor.dtype == "F32" and is_coded and _has_groups(form)
        size = math.prod(tensor.shape) * (_LOADED_SCALE_BYTES if narrows else SIZES[tensor.dtype])
        found.append((kind if number == 0 else "scales", size))
    return found, in_file, math.prod(layout.local_shape(slot, 0))


def _form(layout: Layout, slot: Slot, *, is_unified: bool) -> Form | None:
    scheme = layout.scheme_of(slot)
    if scheme is None:
        return None
    return scheme.unified if is_unified else scheme.ranks


def _has_groups(form: Form | None) -> bool:
    return form is not None and form.codec is not None and form.codec.geometry == "groups"


def _unified(layout: Layout, slot: Slot, form: Form | None) -> Iterator[StoredTensor]:
    """Yield what a rank holds of a slot of a unified folder: the pieces of the slot's parts as one tensor, with its scales."""
    shape = layout.local_shape(slot, 0)
    if form is None or form.codec is None:
        yield StoredTensor(slot.target, slot.rule.dtype or layout.dtype, shape)
        return
    *experts, rows, columns = shape
    form = form.of_shape(rows, columns)
    assert form.codec is not None
    packed_rows, packed_columns = form.codec.packing
    yield StoredTensor(slot.target, form.dtype, (*experts, rows // packed_rows, columns // packed_columns))
    folds = form.folds_norms and any(
        other.rule.feeds == slot.rule.scale_group for other in layout.slots if other.layer == slot.layer
    )
    for scale in form.scales:
        if not (folds and scale.role == "pre_quant"):
            dtype = layout.dtype if scale.dtype == MODEL_DTYPE else scale.dtype
            own = scale.shape(rows, columns, form.codec.group_size)
            yield StoredTensor(f"{slot.module}.{scale.suffix}", dtype, (*experts, *own))


def weight_lines(weights: RankWeights, *, is_unified: bool) -> list[Line]:
    """Return the lines of a rank's weights."""
    counted = (
        "every tensor of the rank file, as the engine holds it" if not is_unified else "the server's cut of the folder"
    )
    rows = (
        ("weights", weights.layers, f"linears, norms and biases: {counted}"),
        ("scales", weights.scales, "scales of weights, inputs and KV cache; group scales with 2 bytes each"),
        (
            "embedding",
            weights.embedding,
            "vocabulary x hidden, "
            + (
                "whole, or cut over tp where that divides hidden"
                if is_unified
                else "whole or cut as parallel.embedding says"
            ),
        ),
        ("head", weights.head, "vocabulary x hidden / tp on the last stage; 0 where it is the embedding"),
    )
    return [Line(name, nbytes, "model", formula, "exact") for name, nbytes, formula in rows]
