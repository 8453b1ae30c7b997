"""SmoothQuant: move the outliers of inputs into the weights (Xiao et al. 2023, https://arxiv.org/abs/2211.10438, equation 4).

The inputs are multiplied by p = max|W|^(1 - alpha) / max|x|^alpha per channel, the weights divided by it. The kernel multiplies by p as it is
stored, rounded to the model's dtype, and codes are of the weights divided by that. Scales are ModelOpt's (modelopt/torch/quantization/
model_calib.py, 0.47.0): of weights and inputs smoothed with p before it is rounded, whose ranges are rounded to the model's dtype. Each of
the two roundings can be of 2^-11 (float16), which leaves a value at most 127 * 2^-10 = 0.12 codes above the largest code, so that it still
gets the nearest one; or of 2^-8 (bfloat16), which can leave it a whole code above. There, and where p is so small that a dtype hardly tells it
from 0, a scale is enlarged until all values get their nearest code. Kernels of TensorRT-LLM's plugins divide by 1 / p instead; their scales follow from the divided weights, and stay out of the
recipe.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from trtbuild.quant.codecs.int8 import LARGEST
from trtbuild.quant.recipes import Recipe
from trtbuild.quant.search.group import Linear, ScaleGroup, limited, to_numpy
from trtbuild.quant.search.rows import row_blocks

#: Channels whose inputs stay below are left alone, as by ModelOpt (modelopt/torch/quantization/model_calib.py).
_SILENT = 2.0**-31
#: Largest quotient whose nearest code is there, with room for rounding in float32.
_LARGEST_KEPT = LARGEST + 0.4999


def search(group: ScaleGroup) -> Iterator[tuple[str, Recipe]]:
    """Yield one factor for all linears of a group; the largest weight of a channel is that of all linears."""
    alpha, inputs = group.settings.alpha, group.input_amax
    weights = torch.stack([_largest(linear) for linear in group.linears]).amax(0)
    heard = inputs > _SILENT
    if group.settings.is_divisor:
        factors = group.factor(torch.where(heard, inputs**alpha / weights ** (1 - alpha), 1.0)).reciprocal()
        yield from ((linear.module, Recipe(pre_quant_scale=to_numpy(factors))) for linear in group.linears)
        return
    exact = limited(torch.where(heard, weights ** (1 - alpha) / inputs**alpha, 1.0))
    stored = group.rounded(exact)
    for linear in group.linears:
        seen = group.rounded((group.rounded(linear.inputs.amax) * exact).amax())
        scales = to_numpy(_scales(group, linear, exact, stored))
        yield linear.module, Recipe(to_numpy(stored), scales, input_amax=np.array([float(seen)], np.float32))


def _largest(linear: Linear) -> Tensor:
    """Return the largest |weight| of each input, [in] float32."""
    return torch.stack([linear.weight[rows].abs().amax(0) for rows in row_blocks(linear.weight)]).amax(0)


def _scales(group: ScaleGroup, linear: Linear, exact: Tensor, stored: Tensor) -> Tensor:
    """Return the scales of the rows of a smoothed weight, [out] float32; 1.0 for rows of zeros."""

    def largest(divisor: Tensor) -> Tensor:
        inverse = divisor.reciprocal()
        return torch.cat([(linear.weight[rows] * inverse).abs().amax(1) for rows in row_blocks(linear.weight)])

    scales = torch.maximum(group.rounded(largest(exact)) / LARGEST, largest(stored) / _LARGEST_KEPT)
    return torch.where(scales > 0, scales, 1.0)
