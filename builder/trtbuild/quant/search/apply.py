"""What a linear computes with once a recipe was followed: its weight rounded, in real numbers, with the smoothing factor put back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from trtbuild.quant.recipes import Recipe
from trtbuild.quant.search.int4 import decode, encode

if TYPE_CHECKING:
    from numpy.typing import NDArray

_INT8_LIMIT = 127


def quantized_weight(weight: Tensor, recipe: Recipe, *, is_per_tensor: bool = False) -> Tensor:
    """Return what the inputs are multiplied with in the end, before rounding of activations.

    Args:
        weight: [out, in] float32, original.
        recipe: of 4-bit groups when its scales are [out, groups], else of 8 bits (code = rint(W' / scale), scale = amax / 127 unless given).
        is_per_tensor: amax is that of the whole weight instead of an output channel's.

    Returns:
        [out, in] float32.
    """
    device = weight.device
    factor = torch.ones(1, device=device) if recipe.pre_quant_scale is None else _tensor(recipe.pre_quant_scale, device)
    divided = weight / factor
    if recipe.weight_scale is None or recipe.weight_scale.ndim == 1:
        if recipe.weight_scale is None:
            amax = divided.abs().amax(1, keepdim=True)
            scales = (amax.amax() if is_per_tensor else amax) / _INT8_LIMIT
            scales = torch.where(scales > 0, scales, 1.0)
        else:
            scales = _tensor(recipe.weight_scale, device)[:, None]
        return (divided / scales).round_().clamp_(-_INT8_LIMIT - 1, _INT8_LIMIT).mul_(scales).mul_(factor)
    scales = _tensor(recipe.weight_scale, device)
    codes = encode(divided, scales) if recipe.codes is None else _tensor(recipe.codes, device).float()
    return decode(codes, scales).mul_(factor)


def _tensor(array: NDArray[Any], device: torch.device) -> Tensor:
    return torch.from_numpy(np.array(array)).to(device)  # a copy: arrays of files may be read-only
