"""GPTQ: round column by column and let the columns to come make up for the error (Frantar et al. 2022, https://arxiv.org/abs/2210.17323).

Rounds on the grid that AWQ finds: smoothing factor and clipped scales first, then the codes.

The paper passes the error of a column on with the inverse H^-1 = U^T U of the second moments. Here H = V V^T is factored itself, V = U^-1
upper triangular: the output error of a row is |(w - q) V|^2, whose j-th term is (w_j - q_j) V_jj plus what the columns before j left
behind, and q_j is rounded so that it is least. The codes are the paper's; nothing is inverted, and one matrix in memory is enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trtbuild.quant.recipes import Recipe
from trtbuild.quant.search.awq import smooth_and_clip
from trtbuild.quant.search.factored import Factored, permute
from trtbuild.quant.search.group import Linear, ScaleGroup, to_numpy
from trtbuild.quant.search.int4 import HIGHEST_CODE, LOWEST_CODE
from trtbuild.quant.search.rows import row_blocks

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Compensation:
    """How columns that are not rounded yet make up for the error of one that is.

    Attributes:
        order: [columns], in which they are rounded.
        moments: of the columns in that order.
    """

    order: Tensor
    moments: Factored


def search(group: ScaleGroup) -> Iterator[tuple[str, Recipe]]:
    """Yield factor, scales and codes of all linears of a group; a linear for which nearest codes are better keeps them.

    Memory: the second moments of one input, which are used up; the codes of one linear; and some row blocks.
    """
    factor, all_scales = smooth_and_clip(group)
    stored = to_numpy(factor)
    known: dict[int, list[Compensation]] = {}
    for linear, scales in zip(group.linears, all_scales, strict=True):
        if id(linear.inputs) not in known:
            known.clear()  # linears of one input lie side by side
            known[id(linear.inputs)] = compensations(linear.inputs.take(), factor, by_size=group.settings.act_order)
        codes = _codes(linear, factor, known[id(linear.inputs)], scales)
        yield linear.module, Recipe(pre_quant_scale=stored, weight_scale=to_numpy(scales), codes=codes)


def compensations(second: Tensor, factor: Tensor, *, by_size: bool) -> list[Compensation]:
    """Return how errors are passed on inside of each block of second moments.

    Args:
        second: [blocks, columns, columns], second moments of x; overwritten.
        factor: [blocks * columns]; the inputs that count are x * factor.
        by_size: round the columns of the largest inputs first, instead of from left to right.
    """
    return [
        _compensation(moments, part, by_size=by_size)
        for moments, part in zip(second, factor.view(second.shape[:2]), strict=True)
    ]


def _compensation(second: Tensor, factor: Tensor, *, by_size: bool) -> Compensation:
    second.mul_(factor[:, None]).mul_(factor)
    diagonal = second.diagonal()
    diagonal[diagonal <= 0] = 1.0  # a channel that never fires takes no part; its row and column are zero
    order = torch.arange(len(second), device=second.device)
    if by_size:
        order = torch.argsort(diagonal, descending=True, stable=True)
        permute(second, order)
    return Compensation(order, Factored(second))


def _codes(linear: Linear, factor: Tensor, blocks: Sequence[Compensation], scales: Tensor) -> NDArray[Any] | None:
    """Return the codes of a linear, [out, in] int8; None where the nearest ones are no worse."""
    codes = torch.empty(linear.weight.shape, dtype=torch.int8)
    error = nearest = 0.0
    for rows in row_blocks(linear.weight):
        found = round_in_order(linear.weight[rows] / factor, blocks, scales[rows])
        codes[rows] = found.codes
        error, nearest = error + found.error, nearest + found.nearest_error
    return to_numpy(codes) if error <= nearest else None


@dataclass(frozen=True, slots=True)
class Rounded:
    """What some rows were rounded to.

    Attributes:
        codes: [rows, in] float32, whole numbers.
        error: their output error.
        nearest_error: that of the nearest codes.
    """

    codes: Tensor
    error: float
    nearest_error: float


def round_in_order(weight: Tensor, blocks: Sequence[Compensation], scales: Tensor) -> Rounded:
    """Return codes of small output error.

    Args:
        weight: [rows, in] float32, divided by the factor.
        blocks: of neighbouring columns, all of one width; errors stay inside of a block.
        scales: [rows, in / group_size] float32.
    """
    codes, error, nearest = torch.empty_like(weight), 0.0, 0.0
    width, group_size = weight.shape[1] // len(blocks), weight.shape[1] // scales.shape[1]
    steps = scales.T.contiguous()
    for number, block in enumerate(blocks):
        part = slice(number * width, (number + 1) * width)
        # Transposed: a column's weights lie side by side.
        left = weight[:, part].T[block.order].contiguous()
        groups = (block.order + number * width) // group_size
        wrong = left - _round(left, steps[groups]).mul_(steps[groups])
        nearest += block.moments.error(wrong)
        _round_block(left, wrong, steps, groups.tolist(), block.moments)
        error += block.moments.error(wrong)
        codes[:, part.start + block.order] = left.T
    return Rounded(codes, error, nearest)


def _round_block(left: Tensor, wrong: Tensor, steps: Tensor, groups: Sequence[int], moments: Factored) -> None:
    """Replace weights by their codes.

    Args:
        left: [columns, rows], weights in the order in which they are rounded; overwritten by codes.
        wrong: [columns, rows], gets weight - code * scale.
        steps: [groups, rows], the scales.
        groups: of each column.
        moments: of the columns.
    """
    for number, (start, stop) in enumerate(moments.spans):
        factor = moments.on_diagonal(number)
        behind = moments.above(number).T @ wrong[:start]
        for place, column in enumerate(range(start, stop)):
            step = steps[groups[column]]
            code = _round(left[column] + behind[place] / factor[place, place], step)
            torch.sub(left[column], code * step, out=wrong[column])
            behind[place + 1 :] += factor[place, place + 1 :, None] * wrong[column]
            left[column] = code


def _round(values: Tensor, steps: Tensor) -> Tensor:
    return (values / steps).round_().clamp_(LOWEST_CODE, HIGHEST_CODE)
