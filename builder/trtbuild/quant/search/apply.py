"""What a linear computes with once a recipe was followed: its weight rounded, in real numbers, with the smoothing factor put back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from trtbuild.quant.recipes import Recipe, RecipeBook
from trtbuild.quant.search.int4 import decode, encode
from trtbuild.quant.search.rows import row_blocks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trtbuild.safetensors_file import TensorReader

_INT8_LIMIT = 127


def quantized_weight(weight: Tensor, recipe: Recipe) -> Tensor:
    """Return what the inputs are multiplied with in the end, before rounding of activations.

    Args:
        weight: [out, in] float32, original.
        recipe: of 4-bit groups when its scales are [out, groups], else of 8 bits (code = rint(W' / scale), scale = amax / 127 unless given).

    Returns:
        [out, in] float32.
    """
    device = weight.device
    factor = torch.ones(1, device=device) if recipe.pre_quant_scale is None else _tensor(recipe.pre_quant_scale, device)
    divided = weight / factor
    if recipe.weight_scale is None or recipe.weight_scale.ndim == 1:
        given = recipe.weight_scale
        scales = _row_scales(divided) if given is None else _tensor(given, device)
        divided.div_(scales[:, None]).round_().clamp_(-_INT8_LIMIT - 1, _INT8_LIMIT)
        return divided.mul_(scales[:, None]).mul_(factor)
    scales = _tensor(recipe.weight_scale, device)
    codes = encode(divided, scales) if recipe.codes is None else _tensor(recipe.codes, device).float()
    return decode(codes, scales).mul_(factor)


def quantize(weight: Tensor, module: str, recipes: RecipeBook, reader: TensorReader, *, is_per_tensor: bool) -> None:
    """Replace a weight by what its recipe makes of it, row block by row block.

    Args:
        weight: [out, in], of any dtype; changed.
        module: its Hugging Face name.
        recipes: where its recipe is.
        reader: for the recipes.
        is_per_tensor: scales of 8 bits that the recipe leaves open are that of the whole weight instead of an output channel's.
    """
    factor = recipes.of_group([module], reader)
    whole = _whole_scale(weight, factor) if is_per_tensor else None
    for rows in row_blocks(weight):
        found = {
            name: recipes.rows(module, name, [(rows.start, rows.stop)], reader)
            for name in ("weight_scale", "codes")
            if recipes.has(module, name)
        }
        if whole is not None:
            found["weight_scale"] = np.full(rows.stop - rows.start, whole, np.float32)
        weight[rows] = quantized_weight(weight[rows].float(), Recipe(factor, **found)).to(weight.dtype)


def _whole_scale(weight: Tensor, factor: NDArray[Any] | None) -> float:
    divisor = torch.ones(1, device=weight.device) if factor is None else _tensor(factor, weight.device)
    scales = [_row_scales(weight[rows].float() / divisor, silent=0.0).amax() for rows in row_blocks(weight)]
    largest = float(torch.stack(scales).amax())
    return largest if largest > 0 else 1.0


def _row_scales(divided: Tensor, silent: float = 1.0) -> Tensor:
    """Return amax / 127 of each row, [out]; `silent` for rows of zeros."""
    scales = divided.abs().amax(1) / _INT8_LIMIT
    return torch.where(scales > 0, scales, silent)


def _tensor(array: NDArray[Any], device: torch.device) -> Tensor:
    return torch.from_numpy(np.array(array)).to(device)  # a copy: arrays of files may be read-only
