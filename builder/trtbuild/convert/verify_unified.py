"""Compares a finished unified folder with its source, weight by weight. Memory bound: a few row blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtbuild.convert.blocks import BlockSource
from trtbuild.convert.budget import LARGEST_BLOCK_BYTES
from trtbuild.convert.encoding import folded_multiplier
from trtbuild.convert.plan import ConversionPlan
from trtbuild.convert.verify import Finding, TensorError
from trtbuild.dtypes import numpy_dtype
from trtbuild.safetensors_file import TensorReader
from trtbuild.unified_checkpoint import UnifiedCheckpoint
from trtbuild.unified_layout import UnifiedWeight


def compare_unified(
    checkpoint: UnifiedCheckpoint, plan: ConversionPlan, *, advance: Callable[[int], None]
) -> tuple[list[Finding], list[TensorError]]:
    """Decode every weight of a unified folder and compare it with the source.

    A quantized weight must be within its form's bound, any other equal to the source's after the cast.

    Args:
        checkpoint: the finished folder.
        plan: the same conversion, planned again.
        advance: called with the source bytes just compared.

    Raises:
        TrtbuildError: a file cannot be read.
    """
    findings: list[Finding] = []
    errors: list[TensorError] = []
    with TensorReader() as reader:
        for weight in checkpoint.unified.weights:
            problem, error = _compare(checkpoint, plan, weight, reader, advance)
            errors.append(error)
            if problem:
                file = checkpoint.tensors[weight.tensor.name].path.name
                findings.append(Finding(file, weight.tensor.name, problem))
    return findings, errors


def _compare(
    checkpoint: UnifiedCheckpoint,
    plan: ConversionPlan,
    weight: UnifiedWeight,
    reader: TensorReader,
    advance: Callable[[int], None],
) -> tuple[str, TensorError]:
    """Return what is wrong with a weight, empty if nothing, and how far it is from the source."""
    form, info = weight.form, checkpoint.tensors[weight.tensor.name]
    constants = checkpoint.constants(weight, reader)
    multiplier = constants.get("pre_quant")
    if weight.folded_into:
        multiplier = _folded(checkpoint, plan, weight, reader)
    source = BlockSource(
        plan.source.tensors,
        reader,
        [weight.part],
        block_bytes=LARGEST_BLOCK_BYTES,
        cache_bytes=0,
        row_step=form.codec.row_step if form and form.codec else 1,
    )
    scheme = plan.layout.scheme_for(weight.part.module)
    wrong, largest, error_square, source_square = 0, 0.0, 0.0, 0.0
    for start, block in source.blocks(weight.part):
        exact = block.astype(np.float32)
        if form is not None and form.codec is not None:
            found, scales = checkpoint.rows(weight, start, len(block), constants, reader)
            divided = exact if multiplier is None else exact / multiplier
            error, allowed = np.abs(found - divided), form.codec.bound(divided, scales)
            if multiplier is not None:
                error, allowed = error * multiplier, allowed * multiplier + np.abs(exact) * np.float32(2**-20)
            if scheme.has_free_codes:
                allowed = np.full_like(allowed, np.inf)
        elif weight.folds and plan.needs_search:
            # What was folded in is known to the folder alone; the weights behind it are compared through it.
            values = reader.read_rows(info, start, start + len(block)).astype(np.float32)
            error = np.where(np.isfinite(values), np.float32(0), np.float32(np.inf))
            allowed = np.zeros_like(error)
        else:
            stored = exact.astype(numpy_dtype(weight.tensor.dtype)).astype(np.float32)
            error = np.abs(reader.read_rows(info, start, start + len(block)).astype(np.float32) - stored)
            allowed = np.zeros_like(error)
        # Written so that a NaN, which is above nothing, is not within the bound either.
        wrong += int(np.count_nonzero(~(error <= allowed)))
        largest = max(largest, float(error.max(initial=0.0)))
        error_square += float(np.square(error, dtype=np.float64).sum())
        source_square += float(np.square(exact, dtype=np.float64).sum())
        advance(block.nbytes)
    relative = (error_square / source_square) ** 0.5 if source_square else 0.0
    problem = f"{wrong} values are further from the source than {scheme.name} allows (largest difference {largest:.4g})"
    return problem if wrong else "", TensorError(weight.tensor.name, 0, largest, relative)


def _folded(
    checkpoint: UnifiedCheckpoint, plan: ConversionPlan, weight: UnifiedWeight, reader: TensorReader
) -> NDArray[Any]:
    """Return what the norm in front of a linear multiplies its input by beyond the source's norm, [in] float32."""
    norm = next(each for each in checkpoint.unified.weights if each.tensor.name == weight.folded_into)
    tensor = plan.source.tensors[norm.tensor.name]
    exact = tensor.read_rows(reader, 0, tensor.shape[0]).astype(np.float32) + np.float32(norm.offset)
    stored = reader.read(checkpoint.tensors[norm.tensor.name]).astype(np.float32) + np.float32(norm.offset)
    return folded_multiplier(stored, exact)
