"""The grid of 4-bit weights with one scale per group of inputs: scales, codes, and scales that clip.

real = code * scale, code = clamp(rint(real / scale), -8, 7) in float32, scale = amax of the group / 7, 1.0 for a group of zeros
(ModelOpt's INT4 blockwise format). Error of a code that is not clipped: scale / 2; of a group's largest value: none.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LOWEST_CODE, HIGHEST_CODE = -8, 7
#: Largest value that a scale keeps, relative to the group's: clipping the largest gives all others a finer grid.
CLIP_RATIOS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5)
#: Weights that are worked on at a time while scales are tried: temporaries of this size stay in a CPU's cache.
_CHUNK = 1 << 16


def group_scales(weight: Tensor, group_size: int) -> Tensor:
    """Return the scales that clip nothing. weight: [out, in] float32; result: [out, in / group_size] float32."""
    scales = weight.view(len(weight), -1, group_size).abs().amax(-1) / HIGHEST_CODE
    return torch.where(scales > 0, scales, 1.0)


def encode(weight: Tensor, scales: Tensor) -> Tensor:
    """Return the nearest codes. weight: [out, in]; scales: [out, in / group_size]; result: [out, in] float32, whole numbers."""
    return _round(weight.reshape(*scales.shape, -1), scales[..., None]).view(weight.shape)


def decode(codes: Tensor, scales: Tensor) -> Tensor:
    """Return code * scale. codes: [out, in]; scales: [out, in / group_size]; result: [out, in] float32."""
    return (codes.view(*scales.shape, -1) * scales[..., None]).view(codes.shape)


def clipped_scales(
    weight: Tensor, second: Tensor, group_size: int, ratios: Sequence[float] = CLIP_RATIOS
) -> tuple[Tensor, Tensor]:
    """Return the scales of least output error, each group by itself, and that error.

    Args:
        weight: [out, in] float32.
        second: [in / group_size, group_size, group_size], second moments of each group's inputs.
        group_size: inputs that share a scale.
        ratios: what to try; the first is kept where none is better.

    Returns:
        [out, in / group_size] float32 both.
    """
    whole = group_scales(weight, group_size)
    groups = weight.view(len(weight), -1, group_size).transpose(0, 1)  # [groups, out, group_size]
    best, least = torch.empty_like(whole.T), torch.empty_like(whole.T)
    rows = max(1, _CHUNK // weight.shape[1])
    for start in range(0, len(weight), rows):
        part = slice(start, start + rows)
        best[:, part], least[:, part] = _best_scales(groups[:, part].contiguous(), whole[part].T, second, ratios)
    return best.T.contiguous(), least.T


def _best_scales(groups: Tensor, whole: Tensor, second: Tensor, ratios: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Return scale and error of each group. groups: [groups, rows, group_size]; whole: [groups, rows]; results alike."""
    best, least = whole, torch.full_like(whole, torch.inf)
    for ratio in ratios:
        scales = whole * ratio
        wrong = _round(groups, scales[..., None]).mul_(scales[..., None]).sub_(groups)
        errors = torch.bmm(wrong, second).mul_(wrong).sum(-1)
        better = errors < least
        best, least = torch.where(better, scales, best), torch.where(better, errors, least)
    return best, least


def _round(values: Tensor, scales: Tensor) -> Tensor:
    return (values / scales).round_().clamp_(LOWEST_CODE, HIGHEST_CODE)  # torch rounds half to even
