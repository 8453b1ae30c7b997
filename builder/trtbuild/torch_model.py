"""A transformers model that is built empty and filled tensor by tensor: no remote code, no memory map, no second copy.

Knows transformers and where it keeps what a checkpoint holds; not where the tensors come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, Union

import numpy as np
import torch

from trtbuild.errors import TrtbuildError
from trtbuild.places import Place, place_of

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


class RowArray(Protocol):
    """Values that are read as they are asked for, along the first axis."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...
    def __len__(self) -> int: ...
    def __getitem__(self, rows: slice, /) -> np.ndarray[Any, Any]: ...


#: What a tensor's values come as.
Values = Union["np.ndarray[Any, Any]", RowArray]

#: A large tensor is copied in pieces of about this size.
_CHUNK_BYTES = 1 << 24


def empty_model(config: Mapping[str, Any], dtype: str) -> PreTrainedModel:
    """Return the model with allocated but unwritten parameters, and its computed buffers (RoPE frequencies) in place.

    Memory that was never written takes no room, so the model grows as it is filled.

    Args:
        config: a Hugging Face config.json.
        dtype: "float32", "bfloat16" or "float16".
    """
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    hf_config = CONFIG_MAPPING[config["model_type"]].from_dict(dict(config))
    with no_init_weights():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            hf_config,
            dtype=getattr(torch, dtype),
            attn_implementation=attention_of(hf_config),
            experts_implementation="eager",
        )
    model.tie_weights()
    return model.requires_grad_(False).eval()


def attention_of(config: PretrainedConfig) -> str:
    """Return the attention of transformers that suits a model; PyTorch's own kernel cannot cap attention scores."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    is_capped = getattr(config, "attn_logit_softcapping", None) is not None
    return "sdpa" if MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]._supports_sdpa and not is_capped else "eager"


def fill(model: PreTrainedModel, tensors: Iterable[tuple[str, Values]]) -> int:
    """Give every parameter its tensors, each exactly once; return the bytes the parameters take."""
    # Names tied to another parameter are not listed.
    return fill_parameters(type(model).__name__, dict(model.named_parameters()), tensors)


def fill_parameters(
    what: str,
    parameters: Mapping[str, torch.nn.Parameter],
    tensors: Iterable[tuple[str, Values]],
) -> int:
    """Give each of some parameters its tensors, each exactly once; return the bytes they take.

    Args:
        what: whose parameters they are, for messages.
        parameters: name in the model -> allocated parameter.
        tensors: Hugging Face name and values of exactly what belongs into them.
    """
    missing = {name: parameter.numel() for name, parameter in parameters.items()}
    taken: set[Place] = set()
    for name, array in tensors:
        place = place_of(name)
        if place.parameter not in parameters or place in taken:
            raise TrtbuildError(
                f"the checkpoint's tensor '{name}' has no place in {what}, or came twice",
                hint="convert the model again",
            )
        whole = parameters[place.parameter]
        part = whole[place.index(tuple(whole.shape))]
        if tuple(part.shape) != array.shape:
            raise TrtbuildError(
                f"the checkpoint's tensor '{name}' has shape {list(array.shape)}, the model needs {list(part.shape)}",
                hint="convert the model again",
            )
        rows = max(1, _CHUNK_BYTES * len(array) // max(array.nbytes, 1))
        for start in range(0, len(array), rows):
            part[start : start + rows].copy_(to_torch(array[start : start + rows]))
        taken.add(place)
        missing[place.parameter] -= part.numel()
    unfilled = sorted(name for name, count in missing.items() if count)
    if unfilled:
        names = ", ".join(unfilled[:3]) + (", ..." if len(unfilled) > 3 else "")
        raise TrtbuildError(
            f"the checkpoint has no tensor for {len(unfilled)} parameters of {what}: {names}",
            hint="convert the model again",
        )
    return sum(parameter.nbytes for parameter in parameters.values())


def to_torch(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Return a copy of values in memory (a mapped file's array is read-only, which torch must not alias); bfloat16 goes by its bits."""
    owned = np.array(array, order="C")
    if owned.dtype.name == "bfloat16":
        return torch.from_numpy(owned.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(owned)
