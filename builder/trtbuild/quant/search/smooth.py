"""SmoothQuant: move the outliers of inputs into the weights (Xiao et al. 2023, https://arxiv.org/abs/2211.10438, equation 4).

The inputs are multiplied by p = max|W|^(1 - alpha) / max|x|^alpha per channel, the weights divided by it. The weights' scales per
output channel follow from the divided weights, and stay out of the recipe. Kernels of TensorRT-LLM's plugins divide by 1 / p instead.
"""

from __future__ import annotations

import torch

from trtbuild.quant.recipes import Recipe
from trtbuild.quant.search.group import ScaleGroup, to_numpy

#: Channels whose inputs stay below are left alone, as by ModelOpt (modelopt/torch/quantization/model_calib.py).
_SILENT = 2.0**-31


def search(group: ScaleGroup) -> dict[str, Recipe]:
    """Return one factor for all linears of a group; the largest weight of a channel is that of all linears."""
    alpha, inputs = group.settings.alpha, group.input_amax
    weights = torch.stack([linear.weight.abs().amax(0) for linear in group.linears]).amax(0)
    heard = inputs > _SILENT
    if group.settings.is_divisor:
        factors = group.factor(torch.where(heard, inputs**alpha / weights ** (1 - alpha), 1.0)).reciprocal()
    else:
        factors = group.factor(torch.where(heard, weights ** (1 - alpha) / inputs**alpha, 1.0))
    recipe = Recipe(pre_quant_scale=to_numpy(factors))
    return {linear.module: recipe for linear in group.linears}
