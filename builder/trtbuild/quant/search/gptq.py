"""GPTQ: round column by column and let the columns to come make up for the error (Frantar et al. 2022, https://arxiv.org/abs/2210.17323).

Rounds on the grid that AWQ finds: smoothing factor and clipped scales first, then the codes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trtbuild.quant.recipes import Recipe
from trtbuild.quant.search.awq import rounding_error, smooth_and_clip
from trtbuild.quant.search.group import ScaleGroup, to_numpy
from trtbuild.quant.search.int4 import HIGHEST_CODE, LOWEST_CODE, decode

logger = logging.getLogger(__name__)

#: Is added to the diagonal of the second moments, relative to its mean; where they are singular, as much more as it takes.
DAMPING = 0.01
_MORE_DAMPING = (1, 10, 100)
#: Columns whose errors are passed on together.
_BLOCK_COLUMNS = 128


@dataclass(frozen=True, slots=True)
class Compensation:
    """How columns that are not rounded yet make up for the error of one that is.

    Attributes:
        order: [columns], in which they are rounded.
        factor: [columns, columns], upper Cholesky factor of the inverse second moments, columns in that order.
    """

    order: Tensor
    factor: Tensor


def search(group: ScaleGroup) -> dict[str, Recipe]:
    """Return factor, scales and codes of all linears of a group; a linear for which nearest codes are better keeps them.

    Memory: three more matrices of the size of an input's second moments, and four times one linear's weight.
    """
    factor, all_scales = smooth_and_clip(group)
    stored = to_numpy(factor)
    known: dict[int, list[Compensation]] = {}
    recipes = {}
    for linear, scales in zip(group.linears, all_scales, strict=True):
        if id(linear.inputs) not in known:
            known.clear()  # linears of one input lie side by side
            known[id(linear.inputs)] = compensations(linear.inputs.second, factor, by_size=group.settings.act_order)
        codes = round_in_order(linear.weight / factor, known[id(linear.inputs)], scales)
        error = linear.inputs.error(decode(codes, scales).mul_(factor).sub_(linear.weight))
        is_better = error <= rounding_error(linear, factor, scales)
        recipes[linear.module] = Recipe(
            pre_quant_scale=stored,
            weight_scale=to_numpy(scales),
            codes=to_numpy(codes.to(torch.int8)) if is_better else None,
        )
    return recipes


def compensations(second: Tensor, factor: Tensor, *, by_size: bool) -> list[Compensation]:
    """Return how errors are passed on inside of each block of second moments.

    Args:
        second: [blocks, columns, columns], second moments of x.
        factor: [blocks * columns]; the inputs that count are x * factor.
        by_size: round the columns of the largest inputs first, instead of from left to right.
    """
    return [
        _compensation(moments * part[:, None], part, by_size=by_size)
        for moments, part in zip(second, factor.view(second.shape[:2]), strict=True)
    ]


def _compensation(second: Tensor, factor: Tensor, *, by_size: bool) -> Compensation:
    """second: [columns, columns], overwritten; its rows are multiplied by the factor already."""
    second *= factor
    diagonal = second.diagonal()
    diagonal[diagonal <= 0] = 1.0  # a channel that never fires takes no part; its row and column are zero
    order = torch.arange(len(second), device=second.device)
    if by_size:
        order = torch.argsort(diagonal, descending=True, stable=True)
        second = second[order][:, order]
    return Compensation(order, _inverse_factor(second))


def _inverse_factor(second: Tensor) -> Tensor:
    """Return the upper Cholesky factor of the inverse; the identity, which passes no error on, where there is none.

    Args:
        second: [columns, columns], overwritten.
    """
    step, damped = DAMPING * second.diagonal().mean(), 0
    for times in _MORE_DAMPING:
        second.diagonal().add_(step * (times - damped))
        damped = times
        lower, failed = torch.linalg.cholesky_ex(second)
        if not failed:
            lower = torch.cholesky_inverse(lower)
            upper, failed = torch.linalg.cholesky_ex(lower, upper=True)
            if not failed and bool(torch.isfinite(upper).all()):
                return upper
    logger.warning("GPTQ: second moments of %d channels are no positive matrix; nearest codes are used", len(second))
    return torch.eye(len(second), device=second.device)


def round_in_order(weight: Tensor, blocks: Sequence[Compensation], scales: Tensor) -> Tensor:
    """Return codes of small output error.

    Args:
        weight: [out, in] float32.
        blocks: of neighbouring columns, all of one width; errors stay inside of a block.
        scales: [out, in / group_size] float32.

    Returns:
        [out, in] float32, whole numbers.
    """
    columns = scales.repeat_interleave(weight.shape[1] // scales.shape[1], dim=1)
    width = weight.shape[1] // len(blocks)
    parts = [slice(number * width, (number + 1) * width) for number in range(len(blocks))]
    return torch.cat(
        [_round_block(weight[:, part], block, columns[:, part]) for part, block in zip(parts, blocks, strict=True)],
        dim=1,
    )


def _round_block(weight: Tensor, block: Compensation, scales: Tensor) -> Tensor:
    """Return codes of some columns. weight, scales: [out, columns]."""
    factor = block.factor
    # Transposed: a column's weights lie side by side.
    left, step = weight.T[block.order].contiguous(), scales.T[block.order].contiguous()
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
    left[block.order] = codes
    return left.T
