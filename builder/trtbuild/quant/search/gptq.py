"""GPTQ: round column by column and let the columns to come make up for the error (Frantar et al. 2022, https://arxiv.org/abs/2210.17323).

Rounds on the grid that AWQ finds: smoothing factor and clipped scales first, then the codes.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from trtbuild.quant.recipes import Recipe
from trtbuild.quant.search.awq import outer, rounding_error, smooth_and_clip
from trtbuild.quant.search.group import ScaleGroup, to_numpy
from trtbuild.quant.search.int4 import HIGHEST_CODE, LOWEST_CODE, decode

logger = logging.getLogger(__name__)

#: Is added to the diagonal of the second moments, relative to its mean; where they are singular, as much more as it takes.
DAMPING = 0.01
_MORE_DAMPING = (1, 10, 100)
#: Columns whose errors are passed on together.
_BLOCK_COLUMNS = 128


def search(group: ScaleGroup) -> dict[str, Recipe]:
    """Return factor, scales and codes of all linears of a group; a linear for which nearest codes are better keeps them."""
    factor, all_scales = smooth_and_clip(group)
    stored = to_numpy(factor)
    recipes = {}
    for linear, scales in zip(group.linears, all_scales, strict=True):
        codes = round_in_order(
            linear.weight / factor,
            linear.inputs.second * outer(factor.view(linear.inputs.second.shape[:2])),
            scales,
            by_size=group.settings.act_order,
        )
        error = linear.inputs.error(decode(codes, scales).mul_(factor).sub_(linear.weight))
        is_better = error <= rounding_error(linear, factor, scales)
        recipes[linear.module] = Recipe(
            pre_quant_scale=stored,
            weight_scale=to_numpy(scales),
            codes=to_numpy(codes.to(torch.int8)) if is_better else None,
        )
    return recipes


def round_in_order(weight: Tensor, second: Tensor, scales: Tensor, *, by_size: bool) -> Tensor:
    """Return codes of small output error.

    Args:
        weight: [out, in] float32.
        second: [blocks, in / blocks, in / blocks], second moments of the inputs; errors are passed on inside of a block.
        scales: [out, in / group_size] float32.
        by_size: round the columns of the largest inputs first, instead of from left to right.

    Returns:
        [out, in] float32, whole numbers.
    """
    columns = scales.repeat_interleave(weight.shape[1] // scales.shape[1], dim=1)
    width = second.shape[1]
    parts = [
        _round_block(
            weight[:, start : start + width], moments.clone(), columns[:, start : start + width], by_size=by_size
        )
        for start, moments in zip(range(0, weight.shape[1], width), second, strict=True)
    ]
    return torch.cat(parts, dim=1)


def _round_block(weight: Tensor, second: Tensor, scales: Tensor, *, by_size: bool) -> Tensor:
    """Return codes of some columns. weight, scales: [out, columns]; second: [columns, columns], overwritten."""
    diagonal = second.diagonal()
    diagonal[diagonal <= 0] = 1.0  # a channel that never fires takes no part; its row and column are zero
    order = (
        torch.argsort(diagonal, descending=True, stable=True)
        if by_size
        else torch.arange(len(second), device=second.device)
    )
    factor = _inverse_factor(second[order][:, order])
    # Transposed: a column's weights lie side by side.
    left, step = weight.T[order].contiguous(), scales.T[order].contiguous()
    codes = torch.empty_like(left)
    for start in range(0, len(left), _BLOCK_COLUMNS):
        stop = min(start + _BLOCK_COLUMNS, len(left))
        errors = torch.empty_like(left[start:stop])
        for column in range(start, stop):
            codes[column] = (left[column] / step[column]).round_().clamp_(LOWEST_CODE, HIGHEST_CODE)
            error = (left[column] - codes[column] * step[column]) / factor[column, column]
            left[column + 1 : stop] -= factor[column, column + 1 : stop, None] * error
            errors[column - start] = error
        left[stop:] -= factor[start:stop, stop:].T @ errors
    found = torch.empty_like(codes)
    found[order] = codes
    return found.T


def _inverse_factor(second: Tensor) -> Tensor:
    """Return the upper Cholesky factor of the inverse; the identity, which passes no error on, where there is none."""
    mean = second.diagonal().mean()
    for times in _MORE_DAMPING:
        damped = second + torch.eye(len(second), device=second.device) * (DAMPING * times * mean)
        lower, failed = torch.linalg.cholesky_ex(damped)
        if not failed:
            upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
            if not failed and bool(torch.isfinite(upper).all()):
                return upper
    logger.warning("GPTQ: second moments of %d channels are no positive matrix; nearest codes are used", len(second))
    return torch.eye(len(second), device=second.device)
