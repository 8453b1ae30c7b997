"""Activation-aware weight quantization (Lin et al. 2023, https://arxiv.org/abs/2306.00978), jointly for all linears of a scale group.

W' = W / p is rounded, p * x is multiplied with it. p is searched on a curve between mean magnitudes of inputs and weights, the scales by
clipping. What counts is the true output error on the calibration tokens, sum of |(decode(W') p - W) x|^2 over tokens and linears, which
second moments of x give without running anything. Searching linear by linear and averaging the factors afterwards, as exporters do,
loses a good part of what was found.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from trtbuild.quant.recipes import Recipe
from trtbuild.quant.search.group import Linear, ScaleGroup, to_numpy
from trtbuild.quant.search.int4 import clipped_scales, decode, encode, group_scales

#: Exponents of the inputs' mean magnitude that are tried first; then those half a step beside the best.
_EXPONENTS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_REFINEMENTS = (-0.1, 0.1)
#: Rows of each linear that candidates are compared on, evenly spread; the final choice is checked on all rows.
_SAMPLE_ROWS = 256
#: Smaller means, relative to the largest of a group's, are raised to this.
_SMALLEST_MEAN = 1e-4


def search(group: ScaleGroup) -> dict[str, Recipe]:
    """Return a common factor and each linear's scales.

    The output error of the group is never above that of plain rounding.
    """
    factor, scales = smooth_and_clip(group)
    stored = to_numpy(factor)
    return {
        linear.module: Recipe(pre_quant_scale=stored, weight_scale=to_numpy(scale))
        for linear, scale in zip(group.linears, scales, strict=True)
    }


def smooth_and_clip(group: ScaleGroup) -> tuple[Tensor, list[Tensor]]:
    """Return the best factor found, [in] float32, and the scales of each linear's divided weight, [out, in / group_size] float32."""
    ones = torch.ones_like(group.input_mean)
    plain = sum(
        rounding_error(linear, ones, group_scales(linear.weight, group.settings.group_size)) for linear in group.linears
    )
    factor = _best_factor(group)
    found = [_best_scales(linear, factor, group.settings.group_size) for linear in group.linears]
    if not sum(error for error, _ in found) <= plain:
        factor = ones
        found = [_best_scales(linear, factor, group.settings.group_size) for linear in group.linears]
    return factor, [scales for _, scales in found]


def rounding_error(linear: Linear, factor: Tensor, scales: Tensor) -> float:
    """Return the output error of the nearest codes. factor: [in]; scales: [out, in / group_size]."""
    divided = linear.weight / factor
    return linear.inputs.error(decode(encode(divided, scales), scales).mul_(factor).sub_(linear.weight))


def _best_scales(linear: Linear, factor: Tensor, group_size: int) -> tuple[float, Tensor]:
    """Return error and scales of the better of clipping and not clipping."""
    divided = linear.weight / factor
    second = linear.inputs.diagonal(group_size) * outer(factor.view(-1, group_size))
    candidates = (group_scales(divided, group_size), clipped_scales(divided, second, group_size))
    return min(((rounding_error(linear, factor, scales), scales) for scales in candidates), key=lambda pair: pair[0])


def outer(factors: Tensor) -> Tensor:
    """Return the products of all pairs. factors: [blocks, block]; result: [blocks, block, block]."""
    return factors[:, :, None] * factors[:, None, :]


def _best_factor(group: ScaleGroup) -> Tensor:
    """Return the factor of least error without clipping, on some rows of each linear."""
    samples = [_sample(linear, len(group.linears)) for linear in group.linears]
    shares = [len(linear.weight) / len(sample.weight) for linear, sample in zip(group.linears, samples, strict=True)]
    inputs, weights = _limited(group.input_mean), _limited(_mean_magnitude(group))
    ones = torch.ones_like(inputs)

    def error(factor: Tensor) -> float:
        return sum(
            share * rounding_error(sample, factor, group_scales(sample.weight / factor, group.settings.group_size))
            for sample, share in zip(samples, shares, strict=True)
        )

    def curve(exponents: tuple[float, ...], beside: tuple[float, bool] | None) -> Iterator[tuple[float, bool]]:
        for uses_weights in (True, False) if beside is None else (beside[1],):
            yield from ((exponent, uses_weights) for exponent in exponents if 0 <= exponent <= 1)

    def factor_of(point: tuple[float, bool]) -> Tensor:
        exponent, uses_weights = point
        scale = inputs**exponent / (weights ** (1 - exponent) if uses_weights else ones)
        return group.factor(_normalized(scale).reciprocal())

    tried = {point: error(factor_of(point)) for point in curve(_EXPONENTS, None)}
    best = min(tried, key=lambda point: tried[point])
    for point in curve(tuple(round(best[0] + step, 1) for step in _REFINEMENTS), best):
        tried[point] = error(factor_of(point))
    best = min(tried, key=lambda point: tried[point])
    return factor_of(best)


def _sample(linear: Linear, count: int) -> Linear:
    """Return a linear of evenly spread rows; of many linears fewer rows each."""
    wanted = max(16, _SAMPLE_ROWS // count)
    return Linear(linear.module, linear.weight[:: max(1, len(linear.weight) // wanted)].contiguous(), linear.inputs)


def _mean_magnitude(group: ScaleGroup) -> Tensor:
    """Return the mean over rows of |W| relative to the largest of its group of inputs, [in]."""
    total, rows = torch.zeros_like(group.input_mean), 0
    for linear in group.linears:
        groups = linear.weight.abs().view(len(linear.weight), -1, group.settings.group_size)
        relative = groups / groups.amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
        total += relative.sum(0).reshape(-1)
        rows += len(linear.weight)
    return total / rows


def _normalized(scale: Tensor) -> Tensor:
    """Return the scale with its extremes equally far from 1."""
    return scale / (scale.max() * scale.min()).sqrt()


def _limited(means: Tensor) -> Tensor:
    """Return means of which none is zero, or too small beside the largest: channels that never fire."""
    largest = means.max()
    return means.clamp_min(float(largest) * _SMALLEST_MEAN) if largest > 0 else torch.ones_like(means)
