"""Turn a TensorRT-LLM checkpoint into a transformers model that computes what the checkpoint says.

Memory bound: the model in `dtype` plus one tensor. Knows transformers; leaves reading, merging and dequantizing to
`trtbuild.checkpoint`, and number formats to `simulate`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import torch

from trtbuild.errors import TrtbuildError
from trtbuild.reference.environment import require_environment
from trtbuild.reference.simulate import round_kv_cache, round_linear_inputs

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

Dtype = Literal["float32", "bfloat16", "float16"]
_DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class CheckpointReader(Protocol):
    """The part of `trtbuild.checkpoint.Checkpoint` that is needed here."""

    @property
    def quant_algo(self) -> str | None: ...
    @property
    def kv_cache_quant_algo(self) -> str | None: ...
    def hf_config(self) -> dict[str, Any]: ...
    def hf_tensors(self) -> Iterator[tuple[str, np.ndarray[Any, Any]]]: ...
    def activation_scales(self) -> dict[str, float]: ...
    def kv_scales(self) -> list[float] | None: ...


def load_model(checkpoint: CheckpointReader, *, dtype: Dtype = "float32") -> PreTrainedModel:
    """Build the transformers model of a checkpoint, with the scheme's arithmetic simulated.

    Weights are those of the checkpoint, dequantized. With FP8 the input of every quantized linear layer is rounded to
    E4M3 with the written scale; with an FP8 or INT8 KV cache keys and values are rounded as they would be stored.

    Args:
        checkpoint: the opened checkpoint.
        dtype: dtype of weights and computation.

    Raises:
        TrtbuildError: a tensor is missing, left over or of another shape than the model's, a scale does not belong to
            a layer, or torch or transformers is too old.
    """
    require_environment()
    model = _empty_model(checkpoint.hf_config(), _DTYPES[dtype])
    size = _fill(model, checkpoint.hf_tensors())
    if checkpoint.quant_algo == "FP8":
        round_linear_inputs(model, checkpoint.activation_scales())
    if checkpoint.kv_cache_quant_algo is not None:
        layers = [module for name, module in model.named_modules() if name.endswith(".self_attn")]
        round_kv_cache(layers, checkpoint.kv_scales() or [], checkpoint.kv_cache_quant_algo)
    logger.info("loaded %s: %d bytes of weights as %s", type(model).__name__, size, dtype)
    return model


def _empty_model(config: dict[str, Any], dtype: torch.dtype) -> PreTrainedModel:
    """Return the model with allocated but unwritten parameters, and its computed buffers (RoPE frequencies) in place.

    Memory that was never written takes no room, so the model grows as it is filled.
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    values = dict(config)
    hf_config = AutoConfig.for_model(values.pop("model_type"), **values)
    with no_init_weights():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(hf_config, dtype=dtype, attn_implementation="sdpa")
    model.tie_weights()
    return model.requires_grad_(False).eval()


def _fill(model: PreTrainedModel, tensors: Iterable[tuple[str, np.ndarray[Any, Any]]]) -> int:
    """Give every parameter its tensor, each exactly once; return the bytes the parameters take."""
    missing = dict(model.named_parameters())  # names tied to another parameter are not listed
    size = 0
    for name, array in tensors:
        parameter = missing.pop(name, None)
        if parameter is None:
            raise TrtbuildError(
                f"the checkpoint's tensor '{name}' has no place in {type(model).__name__}, or came twice",
                hint="convert the model again",
            )
        if tuple(parameter.shape) != array.shape:
            raise TrtbuildError(
                f"the checkpoint's tensor '{name}' has shape {list(array.shape)}, the model needs "
                f"{list(parameter.shape)}",
                hint="convert the model again",
            )
        parameter.copy_(_to_torch(array))
        size += parameter.nbytes
    if missing:
        names = ", ".join(sorted(missing)[:3]) + (", ..." if len(missing) > 3 else "")
        raise TrtbuildError(
            f"the checkpoint has no tensor for {len(missing)} parameters of {type(model).__name__}: {names}",
            hint="convert the model again",
        )
    return size


def _to_torch(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Return a copy (a mapped file's array is read-only, which torch must not alias); bfloat16 goes by its bits."""
    owned = np.array(array, order="C")
    if owned.dtype.name == "bfloat16":
        return torch.from_numpy(owned.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(owned)
