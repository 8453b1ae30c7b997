"""Compares a finished unified folder with its source, weight by weight. Memory bound: a few row blocks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trtbuild.convert.blocks import BlockSource
from trtbuild.convert.execute import LARGEST_BLOCK_BYTES
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
    form, info = checkpoint.unified.form, checkpoint.tensors[weight.tensor.name]
    scales = checkpoint.scales(weight, reader)
    source = BlockSource(plan.source.tensors, reader, [weight.part], block_bytes=LARGEST_BLOCK_BYTES, cache_bytes=0)
    wrong, largest, error_square, source_square = 0, 0.0, 0.0, 0.0
    for start, block in source.blocks(weight.part):
        exact = block.astype(np.float32)
        found = reader.read_rows(info, start, start + len(block))
        if scales:
            error, allowed = np.abs(form.decode(found, scales) - exact), form.bound(exact, scales)
        else:
            stored = exact.astype(numpy_dtype(weight.tensor.dtype)).astype(np.float32)
            error, allowed = np.abs(found.astype(np.float32) - stored), np.float32(0)
        # Written so that a NaN, which is above nothing, is not within the bound either.
        wrong += int(np.count_nonzero(~(error <= allowed)))
        largest = max(largest, float(error.max(initial=0.0)))
        error_square += float(np.square(error, dtype=np.float64).sum())
        source_square += float(np.square(exact, dtype=np.float64).sum())
        advance(block.nbytes)
    relative = (error_square / source_square) ** 0.5 if source_square else 0.0
    problem = f"{wrong} values are further from the source than {form.scheme} allows (largest difference {largest:.4g})"
    return problem if wrong else "", TensorError(weight.tensor.name, 0, largest, relative)
