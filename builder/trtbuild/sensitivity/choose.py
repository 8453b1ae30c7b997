"""Chooses a scheme for every scale group under a budget of bits per weight. Plain numbers: knows neither models nor tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trtbuild.errors import UsageError


@dataclass(frozen=True, slots=True)
class Group:
    """Linears that must have one scheme.

    Attributes:
        layer: number of the decoder layer.
        modules: their Hugging Face names.
        weights: number of weights.
        bits: scheme -> bits per weight, scales included.
        errors: scheme -> error of the outputs over their energy, summed over the linears and the calibration tokens; 0 is exact.
    """

    layer: int
    modules: tuple[str, ...]
    weights: int
    bits: Mapping[str, float]
    errors: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Choice:
    """A mixture.

    Attributes:
        schemes: of each group, in order.
        bits_per_weight: mean over all weights.
        error: sum of the groups' errors.
    """

    schemes: tuple[str, ...]
    bits_per_weight: float
    error: float


def choose(groups: Sequence[Group], budget: float) -> Choice:
    """Return the mixture that a greedy exchange finds: from the smallest formats on, always the step that removes most error per bit.

    Args:
        groups: of all layers.
        budget: bits per weight, mean over all weights of the groups.

    Raises:
        UsageError: even the smallest formats take more.
    """
    total = sum(group.weights for group in groups)
    chosen = [min(group.bits, key=lambda name: (group.bits[name], group.errors[name])) for group in groups]
    used = sum(group.bits[name] * group.weights for group, name in zip(groups, chosen, strict=True))
    if used > budget * total:
        raise UsageError(
            f"{budget:g} bits per weight are less than the smallest scheme takes ({used / total:.3f})",
            hint="allow more, or name a smaller scheme",
        )
    while (step := _best_step(groups, chosen, budget * total - used)) is not None:
        number, name = step
        used += (groups[number].bits[name] - groups[number].bits[chosen[number]]) * groups[number].weights
        chosen[number] = name
    error = sum(group.errors[name] for group, name in zip(groups, chosen, strict=True))
    return Choice(tuple(chosen), used / total, error)


def _best_step(groups: Sequence[Group], chosen: Sequence[str], room: float) -> tuple[int, str] | None:
    """Return the group and the scheme that remove most error per bit within `room` bits, None when nothing helps."""
    best, most = None, 0.0
    for number, (group, now) in enumerate(zip(groups, chosen, strict=True)):
        for name in group.bits:
            cost = (group.bits[name] - group.bits[now]) * group.weights
            gain = group.errors[now] - group.errors[name]
            worth = gain / max(cost, 1e-9)
            if gain > 0 and cost <= room and worth > most:
                best, most = (number, name), worth
    return best
