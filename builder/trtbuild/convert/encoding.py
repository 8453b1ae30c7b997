"""Turns the linears of a plan into codes and scales: what is known about them beforehand, and row block by row block.

Knows schemes, ranges and recipes; knows no ranks and no files that are written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtbuild.convert.blocks import BlockSource
from trtbuild.convert.cast import tabled
from trtbuild.convert.plan import ConversionPlan
from trtbuild.dtypes import numpy_dtype
from trtbuild.layout import Part, Slot
from trtbuild.quant.codecs.base import Scales, per_group
from trtbuild.quant.codecs.fp8 import scale_of
from trtbuild.quant.recipes import RecipeBook, Recipes
from trtbuild.quant.scheme import Form, Role
from trtbuild.quant.stats import CalibrationStats
from trtbuild.safetensors_file import TensorReader


@dataclass(frozen=True, slots=True)
class Knowledge:
    """All that is known about the linears of a plan before they are encoded.

    Attributes:
        stats: calibrated ranges, None when no scheme needs any.
        recipes: what calibration decided about single linears; empty when nothing was.
    """

    plan: ConversionPlan
    stats: CalibrationStats | None
    recipes: RecipeBook = field(default_factory=Recipes)

    def multiplier(self, modules: Sequence[str], reader: TensorReader) -> NDArray[Any] | None:
        """Return what the kernel multiplies the input of a scale group by, [in] float32; None for ones."""
        return self.recipes.of_group(modules, reader)

    def input_scale(self, form: Form, limit: float, modules: Sequence[str]) -> NDArray[Any] | None:
        """Return the static scale of the input that some linears share, shape []; None in forms without."""
        if not form.has("input"):
            return None
        assert self.stats is not None
        return scale_of(self.stats.group_input_amax(modules), limit)

    def amax(self, part: Part, source: BlockSource, multiplier: NDArray[Any] | None) -> float:
        """Return the range of a weight, after division by the multiplier of its input."""
        known = self.plan.known.weight_amax.get(part.module) if self.plan.known else None
        if known is not None:  # codes are kept only if their scale is
            return known
        if multiplier is None:
            return source.amax(part)
        return max(float(np.abs(block.astype(np.float32) / multiplier).max()) for _, block in source.blocks(part))


@dataclass(frozen=True, slots=True)
class LinearCoding:
    """How one weight is encoded.

    Attributes:
        whole: what the range of the whole decides.
        input: static scale of the input, shape [].
        multiplier: [in] float32, None for ones.
    """

    whole: Scales
    input: NDArray[Any] | None
    multiplier: NDArray[Any] | None

    def constant(self, role: Role, columns: int, dtype: str) -> NDArray[Any]:
        """Return the scale tensor of a role that does not come row by row: shape [] or [in].

        Args:
            role: what is asked for.
            columns: inputs of the linear.
            dtype: safetensors dtype of the model.
        """
        multiplier = np.ones(columns, np.float32) if self.multiplier is None else self.multiplier
        one = np.array(1, np.float32)
        found = {
            "weight": self.whole.weight,
            "second": self.whole.second,
            "input": self.input,
            "to_int": one if self.input is None else np.asarray(one / self.input),
            "pre_quant": multiplier.astype(numpy_dtype(dtype)),
            "smoother": rounded_divisor(multiplier, dtype),
        }[role]
        assert found is not None, role
        return found


#: Turns rows of a weight as the source holds them, and the number of the first, into (codes, their scales).
Encode = Callable[[NDArray[Any], int], tuple[NDArray[Any], Scales]]


def encoder(
    form: Form, part: Part, coding: LinearCoding, knowledge: Knowledge, reader: TensorReader, source_dtype: str
) -> Encode:
    """Return what turns the blocks of a part into codes.

    Args:
        form: has a codec.
        part: what the blocks are of.
        coding: of this weight.
        knowledge: has the recipes.
        reader: for the recipes.
        source_dtype: safetensors dtype of the blocks.
    """
    codec, dtype = form.codec, knowledge.plan.layout.dtype
    assert codec is not None
    recipes, module = knowledge.recipes, part.module
    has_scale, has_codes = recipes.has(module, "weight_scale"), recipes.has(module, "codes")
    if coding.multiplier is None and not has_scale and codec.is_elementwise:
        look_up = tabled(lambda block: codec.encode(block, coding.whole, dtype), part, source_dtype)
        return lambda block, _: (look_up(block), coding.whole)

    def encode(block: NDArray[Any], start: int) -> tuple[NDArray[Any], Scales]:
        exact = block.astype(np.float32)
        if coding.multiplier is not None:
            exact /= coding.multiplier
        scales = coding.whole
        spans = list(part.view.ranges(start, start + len(block))) if part.view else [(start, start + len(block))]
        if has_scale:
            scales = Scales(recipes.rows(module, "weight_scale", spans, reader), scales.second)
        else:
            scales = codec.of_block(exact, scales)
        if has_codes:
            assert scales.weight is not None
            # Encoding the numbers that the codes stand for gives the codes back.
            exact = recipes.rows(module, "codes", spans, reader).astype(np.float32)
            exact *= per_group(scales.weight, exact.shape[1])
        return codec.encode(exact, scales, dtype), scales

    return encode


def rounded_divisor(multiplier: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return what a kernel divides an input by instead of multiplying it: a value of safetensors dtype `dtype`, as float32."""
    divisor: NDArray[Any] = np.reciprocal(multiplier).astype(numpy_dtype(dtype)).astype(np.float32)
    return divisor


def fold_norm(
    norm: NDArray[Any], multiplier: NDArray[Any], *, offset: float, kept: float, dtype: str
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Fold the multiplier of an input into the norm in front of it.

    Args:
        norm: [hidden], as the source holds it.
        multiplier: [hidden] float32.
        offset: what the model adds to the weight in the source.
        kept: what it adds to the weight that is stored.
        dtype: safetensors dtype of the folded norm.

    Returns:
        The norm's weight as it is stored, and the multiplier that it then stands for, [hidden] float32: rounding the weight rounds that
        too, and weights are divided by what is really multiplied.
    """
    exact = norm.astype(np.float32) + np.float32(offset)
    stored = finite(exact * multiplier - np.float32(kept), dtype)
    return stored, folded_multiplier(stored.astype(np.float32) + np.float32(kept), exact)


def folded_multiplier(effective: NDArray[Any], exact: NDArray[Any]) -> NDArray[Any]:
    """Return what was folded into a norm's weight, [hidden] float32.

    One for a channel that the norm closes, or whose weight rounds to nothing: it carries nothing, so its weights may as well stay.

    Args:
        effective: [hidden] float32, what the folded norm multiplies by.
        exact: [hidden] float32, what the source's norm does.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = effective / exact
    usable: NDArray[Any] = np.where(np.isfinite(ratio) & (ratio > 0), ratio, np.float32(1))
    return usable


def finite(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return float32 values in a dtype, those beyond its range as its largest number."""
    import ml_dtypes

    limit = np.float32(ml_dtypes.finfo(numpy_dtype(dtype)).max)
    within: NDArray[Any] = np.clip(values, -limit, limit).astype(numpy_dtype(dtype))
    return within


def group_codings(
    form: Form,
    limit: float,
    slots: Sequence[Slot],
    source: BlockSource,
    knowledge: Knowledge,
    multiplier: NDArray[Any] | None,
    check: Callable[[], None],
) -> Mapping[Part, LinearCoding]:
    """Return how the parts of a scale group are encoded; where the form shares ranges, those of an expert (or outside of experts) do.

    Args:
        form: of all of them.
        limit: of the input format.
        slots: the group.
        source: has their parts.
        knowledge: about them.
        multiplier: of their input.
        check: raises when the work is to stop.
    """
    parts = [part for slot in slots for part in slot.parts]
    shared = knowledge.input_scale(form, limit, [part.module for part in parts])
    owners: dict[Part, Part | int | None] = {part: part.expert if form.shares_range else part for part in parts}
    amax = dict.fromkeys(owners.values(), 0.0)
    assert form.codec is not None
    for part, owner in owners.items() if form.codec.needs_range else ():
        check()
        amax[owner] = max(amax[owner], knowledge.amax(part, source, multiplier))
    wholes = {owner: form.codec.whole(value) for owner, value in amax.items()}
    return {part: LinearCoding(wholes[owner], shared, multiplier) for part, owner in owners.items()}
