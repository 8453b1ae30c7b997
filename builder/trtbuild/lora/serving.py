"""An adapter in the layout of TensorRT-LLM's LoRA cache: model.lora_weights.npy and model.lora_config.npy.

    model.lora_weights.npy  float16 [1, N, width]  a row per module: A [r, in], then B [out, r] times its scaling, both flattened
                                                   in C order, then zeros up to the widest row
    model.lora_config.npy   int32   [1, N, 3]      the same rows: module id, layer, r

The leading axis is the batch of a Triton request: the arrays are the request tensors lora_weights and lora_config as they are.
A lora_prefetch_dir holds a folder per task, named by its integer id, with both files.

Source: NVIDIA/TensorRT-LLM examples/hf_lora_convert.py of 0.11 (commit 05316d3); later ones append a fourth column, is_dora, which
the runtime takes as 0 when it is missing (cpp/tensorrt_llm/runtime/loraUtils.cpp). Readers: runtime/loraCache.cpp, and
prefetchLoraWeights in batch_manager/peftCacheManager.cpp. The reference keeps the order of the file, here rows are sorted by layer
and id; it multiplies B in the adapter's dtype, here float32 is rounded once. It also stores float32, and bfloat16 as two-byte
void elements, which runtime/utils/numpyUtils.cpp does not load and a Triton client cannot send; the request tensor is FP16, so
float16 is the only dtype here.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtbuild import manifest
from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.lora.adapter import Adapter, AdapterModule, listed
from trtbuild.lora.fit import fit
from trtbuild.lora.names import IDS, MAX_TASK_ID, locate, target_modules
from trtbuild.lora.npy import npy_header
from trtbuild.lora.values import read
from trtbuild.output import check_output, check_space, staged_folder
from trtbuild.safetensors_file import SourceTensor, TensorInfo, TensorReader
from trtbuild.source import SourceCheckpoint

logger = logging.getLogger(__name__)

WEIGHTS = "model.lora_weights.npy"
CONFIG = "model.lora_config.npy"
_ITEM_BYTES = 2


@dataclass(frozen=True, slots=True)
class Row:
    """One row of both arrays.

    Attributes:
        layer: index of the decoder layer, over all pipeline stages.
        target: LoRA module of TensorRT-LLM.
        module: A, B and scaling.
    """

    layer: int
    target: str
    module: AdapterModule

    @property
    def size(self) -> int:
        """Return the number of elements before the padding."""
        return self.module.rank * (self.module.in_features + self.module.out_features)


def rows(adapter: Adapter, *, base: SourceCheckpoint | None = None) -> list[Row]:
    """Return the rows in the order of the file, by layer and module id; reads headers only.

    Args:
        adapter: the adapter.
        base: the model it belongs to; None leaves the shapes unchecked.

    Raises:
        TrtbuildError: the adapter does not fit the base, or changes modules that cannot be served; the message names them.
    """
    weights = None if base is None else fit(adapter, base)
    places = locate(module.name for module in adapter.modules)
    found = sorted(
        (Row(*places[module.name], module) for module in adapter.modules), key=lambda row: (row.layer, IDS[row.target])
    )
    for before, row in itertools.pairwise(found):
        if (before.layer, before.target) == (row.layer, row.target):
            raise TrtbuildError(
                f"{before.module.name} and {row.module.name} are both {row.target} of layer {row.layer}",
                hint="remove the one that does not belong to the adapter",
            )
    _refuse_narrow_attention(found)
    if base is not None and weights is not None:
        _refuse_ungated(found, base, weights=weights)
    return found


def _refuse_narrow_attention(found: Sequence[Row]) -> None:
    """Refuse attn_dense unless it is square: LoraModule::createLoraModules gives it hidden x hidden in every release seen."""
    odd = [
        row.module for row in found if row.target == "attn_dense" and row.module.in_features != row.module.out_features
    ]
    if odd:
        raise TrtbuildError(
            f"attn_dense is [{odd[0].out_features}, {odd[0].in_features}] here, and TensorRT-LLM reads its LoRA rows as hidden_size "
            f"x hidden_size: {listed(module.name for module in odd)}",
            hint="merge the adapter into the model, or train it without this module",
        )


def _refuse_ungated(found: Sequence[Row], base: SourceCheckpoint, *, weights: Mapping[str, SourceTensor]) -> None:
    """Refuse up_proj of an MLP that has no gate_proj: there it is mlp_h_to_4h, not mlp_gate."""
    ups = [weights[row.module.name].name for row in found if row.target == "mlp_gate"]
    odd = [name for name in ups if name.replace("up_proj", "gate_proj") not in base.tensors]
    if odd:
        raise TrtbuildError(
            f"{base.path} has up_proj without gate_proj, so that mlp_gate does not exist: {listed(odd)}",
            hint="merge the adapter into the model instead",
        )


def notes(found: Sequence[Row], *, base: SourceCheckpoint | None) -> list[str]:
    """Return what a user should know and what stops nothing."""
    remarks = []
    if base is None:
        remarks.append("the shapes were not checked against the base model; --base MODEL does")
        targets = {row.target for row in found}
        if "mlp_gate" in targets and "mlp_h_to_4h" not in targets:
            remarks.append(
                "up_proj was taken as mlp_gate, which holds for models that have a gate_proj; --base MODEL checks it"
            )
        return remarks
    dtype = base.config.get("torch_dtype", base.config.get("dtype"))
    if dtype not in (None, "float16"):
        remarks.append(
            f"the base is {dtype}; TensorRT-LLM takes these float16 weights only with a float16 engine: convert --dtype float16"
        )
    return remarks


def write_serving(
    adapter: Adapter,
    output: Path,
    *,
    base: SourceCheckpoint | None = None,
    task_id: int | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Write both arrays and manifest.json; return the manifest and the folder as "output". Memory: A and B of one module, three times in float32.

    Args:
        adapter: the adapter.
        output: the folder; with a task id its subfolder of that name is written, and others stay as they are.
        base: the model it belongs to; None leaves the shapes unchecked, and a note says so.
        task_id: LoRA task, 0 to `MAX_TASK_ID`.
        force: replace an existing folder.

    Raises:
        TrtbuildError: the adapter cannot be served or exceeds the range of float16, the folder exists, or the disk is too
            small; nothing is left then.
    """
    if task_id is not None and not 0 <= task_id <= MAX_TASK_ID:
        raise UsageError(f"task id {task_id} is not possible", hint=f"choose one of 0 to {MAX_TASK_ID}")
    found = rows(adapter, base=base)
    folder = output if task_id is None else output / str(task_id)
    check_output(folder, force=force, keep=(adapter.path, *([base.path] if base is not None else [])))
    width = max(row.size for row in found)
    check_space(folder, _ITEM_BYTES * len(found) * width)
    remarks = notes(found, base=base)
    for remark in remarks:
        logger.warning("note: %s", remark)
    with staged_folder(folder) as stage:
        _write_weights(stage / WEIGHTS, found, width=width)
        _write_config(stage / CONFIG, found)
        written = {
            **manifest.header("lora"),
            "task_id": task_id,
            "adapter": adapter.identity(),
            "base": None if base is None else manifest.source_identity(base),
            "lora_weights": {"file": WEIGHTS, "dtype": "float16", "shape": [1, len(found), width]},
            "lora_config": {"file": CONFIG, "dtype": "int32", "shape": [1, len(found), 3]},
            "max_lora_rank": adapter.max_rank,
            "lora_target_modules": target_modules(row.target for row in found),
            "sha256": {name: _sha256(stage / name) for name in (WEIGHTS, CONFIG)},
            "notes": remarks,
        }
        manifest.write(stage, written)
    logger.info("%s: %d rows of %d float16", folder, len(found), width)
    return {"output": str(folder), **written}


def _write_weights(path: Path, found: Sequence[Row], *, width: int) -> None:
    with path.open("wb") as file, TensorReader() as reader:
        file.write(npy_header("<f2", (1, len(found), width)))
        for row in found:
            file.write(_half(row.module.a, read(reader, row.module.a)).tobytes())
            file.write(_half(row.module.b, read(reader, row.module.b), scaling=row.module.scaling).tobytes())
            file.write(bytes(_ITEM_BYTES * (width - row.size)))
            logger.debug("%s: layer %d, %s", row.module.name, row.layer, row.target)


def _half(info: TensorInfo, values: NDArray[np.float32], *, scaling: float = 1.0) -> NDArray[np.float16]:
    """Multiply in float32 and round to float16, half to even; raise TrtbuildError where that overflows."""
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is an error below, with the tensor's name
        scaled = values * np.float32(scaling)
        half: NDArray[np.float16] = scaled.astype("<f2")
    if not np.isfinite(half).all():
        raise TrtbuildError(
            f"{info.path}: {info.name} reaches {np.abs(scaled).max():.6g} with its scaling, and float16 ends at 65504",
            hint="merge the adapter into a bfloat16 model instead",
        )
    return half


def _write_config(path: Path, found: Sequence[Row]) -> None:
    table = np.array([(IDS[row.target], row.layer, row.module.rank) for row in found], dtype="<i4")
    path.write_bytes(npy_header("<i4", (1, len(found), 3)) + table.tobytes())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
