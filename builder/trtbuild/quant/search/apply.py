"""What a linear computes with once a recipe was followed: its weight rounded, in real numbers, with the smoothing factor put back."""

from __future__ import annotations

import torch
from torch import Tensor

from trtbuild.quant.recipes import Recipe
from trtbuild.quant.search.int4 import decode, encode

_INT8_LIMIT = 127


def quantized_weight(weight: Tensor, recipe: Recipe) -> Tensor:
    """Return what the inputs are multiplied with in the end, before rounding of activations.

    Args:
        weight: [out, in] float32, original.
        recipe: of 4-bit groups when it has scales, else of 8-bit output channels (code = rint(W' / scale), scale = row's amax / 127).

    Returns:
        [out, in] float32.
    """
    device = weight.device
    factor = torch.ones(1) if recipe.pre_quant_scale is None else torch.from_numpy(recipe.pre_quant_scale)
    factor = factor.to(device)
    divided = weight / factor
    if recipe.weight_scale is None:
        scales = divided.abs().amax(1, keepdim=True) / _INT8_LIMIT
        scales = torch.where(scales > 0, scales, 1.0)
        return (divided / scales).round_().clamp_(-_INT8_LIMIT - 1, _INT8_LIMIT).mul_(scales).mul_(factor)
    scales = torch.from_numpy(recipe.weight_scale).to(device)
    codes = encode(divided, scales) if recipe.codes is None else torch.from_numpy(recipe.codes).to(device).float()
    return decode(codes, scales).mul_(factor)
