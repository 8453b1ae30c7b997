"""Turn a checkpoint into a transformers model that computes what the checkpoint says.

Memory bound: the model in `dtype` plus one tensor. Knows transformers; leaves reading, merging and dequantizing to
`trtbuild.checkpoint` and `trtbuild.unified_checkpoint`, and number formats to `simulate`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from trtbuild.quant.inputs import InputRounding
from trtbuild.reference.environment import require_environment
from trtbuild.reference.simulate import round_kv_cache, round_linear_inputs
from trtbuild.torch_model import empty_model, fill

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

#: What the attention of a layer is called in the models of transformers.
_ATTENTION = ("self_attn", "attn", "attention", "self_attention")

Dtype = Literal["float32", "bfloat16", "float16"]


class CheckpointReader(Protocol):
    """What is needed here of a checkpoint of either layout (`trtbuild.checkpoint_kinds.open_checkpoint`)."""

    @property
    def quant_algo(self) -> str | None: ...
    @property
    def kv_cache_quant_algo(self) -> str | None: ...
    def hf_config(self) -> dict[str, Any]: ...
    def hf_tensors(self) -> Iterator[tuple[str, np.ndarray[Any, Any]]]: ...
    def input_roundings(self) -> dict[str, InputRounding]: ...
    def kv_scales(self) -> list[float] | None: ...


def load_model(checkpoint: CheckpointReader, *, dtype: Dtype = "float32") -> PreTrainedModel:
    """Build the transformers model of a checkpoint, with the scheme's arithmetic simulated.

    Weights are those of the checkpoint, dequantized. Where the scheme rounds inputs, that of every quantized linear layer is
    multiplied and rounded as its kernel does; with an FP8 or INT8 KV cache keys and values are rounded as they would be stored.

    Args:
        checkpoint: the opened checkpoint.
        dtype: dtype of weights and computation.

    Raises:
        TrtbuildError: a tensor is missing, left over or of another shape than the model's, a scale does not belong to
            a layer, or torch or transformers is too old.
    """
    require_environment()
    model = empty_model(checkpoint.hf_config(), dtype)
    size = fill(model, checkpoint.hf_tensors())
    round_linear_inputs(model, checkpoint.input_roundings())
    if checkpoint.kv_cache_quant_algo is not None:
        layers = [module for name, module in model.named_modules() if name.rpartition(".")[2] in _ATTENTION]
        round_kv_cache(layers, checkpoint.kv_scales() or [], checkpoint.kv_cache_quant_algo)
    logger.info("loaded %s: %d bytes of weights as %s", type(model).__name__, size, dtype)
    return model
