"""Re-reads a finished checkpoint: every byte against the manifest's digests, every weight against the source.

Memory bound: a few row blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtbuild.checkpoint import Checkpoint
from trtbuild.convert.blocks import BlockSource
from trtbuild.convert.budget import LARGEST_BLOCK_BYTES
from trtbuild.convert.encoding import finite, folded_multiplier
from trtbuild.convert.plan import ConversionPlan
from trtbuild.dtypes import numpy_dtype
from trtbuild.layout import Piece, Slot
from trtbuild.parallel import Rank
from trtbuild.quant.codecs.base import Scales
from trtbuild.safetensors_file import TensorInfo, TensorReader


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be.

    Attributes:
        file: name in the folder.
        tensor: its name.
        problem: what is wrong, with the values seen.
    """

    file: str
    tensor: str
    problem: str


@dataclass(frozen=True, slots=True)
class TensorError:
    """How far a stored weight is from the source, over all ranks.

    Attributes:
        tensor: TensorRT-LLM name, with the layer number local to its stage.
        pp_rank: the stage.
        max_error: largest absolute difference between the decoded weight and the source.
        relative: root mean square of the difference over that of the source.
    """

    tensor: str
    pp_rank: int
    max_error: float
    relative: float


def check_digests(
    digests: Mapping[str, Mapping[str, str]],
    files: Mapping[str, Mapping[str, TensorInfo]],
    *,
    advance: Callable[[int], None],
) -> list[Finding]:
    """Compare every tensor of every file with the manifest.

    Args:
        digests: file name -> tensor name -> SHA-256 as written.
        files: file name -> tensor name -> where it lies.
        advance: called with the bytes just read.

    Raises:
        TrtbuildError: a file cannot be read.
    """
    findings = []
    with TensorReader() as reader:
        for file, tensors in files.items():
            expected = digests.get(file, {})
            for name, info in tensors.items():
                if name not in expected:
                    findings.append(Finding(file, name, "is not in the manifest"))
                elif (found := reader.digest(info)) != expected[name]:
                    findings.append(Finding(file, name, f"has SHA-256 {found}, written was {expected[name]}"))
                advance(info.nbytes)
            findings += [Finding(file, name, "is missing") for name in expected if name not in tensors]
    return findings


def compare_with_source(
    checkpoint: Checkpoint, plan: ConversionPlan, *, advance: Callable[[int], None]
) -> tuple[list[Finding], list[TensorError]]:
    """Decode every weight of every rank and compare it with the source.

    A quantized weight must be within its scheme's bound, any other equal to the source's after the cast.

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
        for slot in plan.layout.slots:
            comparison = _Comparison(checkpoint, plan, slot, reader)
            for number, part in enumerate(slot.parts):
                source = BlockSource(
                    plan.source.tensors,
                    reader,
                    [part],
                    block_bytes=LARGEST_BLOCK_BYTES,
                    cache_bytes=0,
                    row_step=plan.row_step(slot),
                )
                for start, block in source.blocks(part):
                    findings += comparison.compare(number, start, block)
                    advance(block.nbytes)
            errors.append(comparison.result())
    return findings, errors


class _Comparison:
    """One target tensor of all ranks against its source."""

    def __init__(self, checkpoint: Checkpoint, plan: ConversionPlan, slot: Slot, reader: TensorReader) -> None:
        self._checkpoint, self._plan, self._layout = checkpoint, plan, plan.layout
        self._slot, self._reader = slot, reader
        self._constants = checkpoint.constants(slot, reader)
        self._form = plan.layout.form_of(slot) if plan.layout.is_quantized(slot) else None
        scheme = plan.layout.scheme_of(slot)
        self._has_codes = scheme is not None and scheme.has_free_codes
        self._held: list[tuple[Rank, dict[int, Piece]]] = [
            (rank, {piece.number: piece for piece in plan.layout.pieces(slot, rank.tp_rank)})
            for rank in plan.layout.parallel.ranks()
            if rank.pp_rank == slot.pp_rank
        ]
        linear = slot if self._form and self._form.folds_norms else plan.layout.folded(slot)
        norm = plan.layout.norm_of(linear)[0] if linear else None
        self._folded = self._folded_multiplier(norm) if norm else None
        #: What was folded into the weight of a norm is known to the file alone; bias and the weights behind it are compared through it.
        self._is_known = slot != norm
        self._reported: set[int] = set()
        self._max_error = 0.0
        self._error_square = self._source_square = 0.0

    def compare(self, number: int, start: int, block: NDArray[Any]) -> Iterator[Finding]:
        """Yield what is wrong with the ranks' copies of some rows of a part, once per rank."""
        part = self._slot.parts[number]
        exact = block.astype(np.float32)
        if self._form:
            expected = exact
        elif self._folded is not None:
            folded = exact * self._folded[start : start + len(exact)]
            expected = finite(folded, self._layout.stored_dtype(self._slot)).astype(np.float32)
        else:
            expected = _stored(exact, self._slot, self._layout.stored_dtype(self._slot))
        for rank, pieces in self._held:
            if number not in pieces:
                continue
            rows, columns, first = _overlap(pieces[number], start, len(block))
            count = rows.stop - rows.start
            if not count:
                continue
            constants = self._constants.get(part.expert, {})
            found, scales = self._checkpoint.rows(self._slot, rank.index, first, count, constants, self._reader)
            wanted = expected[rows, columns] if block.ndim > 1 else expected[rows]
            allowed: Any = 0.0
            if not self._is_known:
                wanted = np.where(np.isfinite(found.astype(np.float32)), found.astype(np.float32), np.float32(np.nan))
            if self._form and scales:
                multiplier = constants["pre_quant"][columns] if "pre_quant" in constants else self._folded
                allowed = self._allowed(wanted, scales, multiplier)
                found = found if multiplier is None else found * multiplier
            error = np.abs(found.astype(np.float32) - wanted)
            # Written so that a NaN, which is above nothing, is not within the bound either.
            wrong = int(np.count_nonzero(~(error <= allowed)))
            if wrong and rank.index not in self._reported:
                self._reported.add(rank.index)
                yield Finding(
                    f"rank{rank.index}.safetensors",
                    self._slot.target,
                    f"{wrong} values of rows {start} to {start + len(block) - 1} of {part.source} are further from it than "
                    f"{self._layout.scheme.name} allows (largest difference {float(np.nanmax(error)):.4g})",
                )
            self._note(error, exact[rows])

    def _folded_multiplier(self, norm: Slot) -> NDArray[Any]:
        """Return what a norm multiplies inputs by beyond the source's norm, [in] float32."""
        tensor = self._plan.source.tensors[norm.parts[0].source]
        exact = tensor.read_rows(self._reader, 0, tensor.shape[0]).astype(np.float32) + np.float32(norm.rule.offset)
        stored = self._reader.read(self._checkpoint.tensors[self._held[0][0].index][norm.target]).astype(np.float32)
        return folded_multiplier(stored, exact)

    def _allowed(self, wanted: NDArray[Any], scales: Scales, multiplier: NDArray[Any] | None) -> NDArray[Any]:
        """Return how far the weights of a rank may be from the source, [rows, in]."""
        assert self._form is not None
        assert self._form.codec is not None
        if self._has_codes:
            return np.full(wanted.shape, np.inf, np.float32)
        if multiplier is None:
            return self._form.codec.bound(wanted, scales)
        bound: NDArray[Any] = self._form.codec.bound(wanted / multiplier, scales) * multiplier
        bound += np.abs(wanted) * np.float32(2**-20)
        return bound

    def _note(self, error: NDArray[Any], exact: NDArray[Any]) -> None:
        self._max_error = max(self._max_error, float(error.max(initial=0.0)))
        self._error_square += float(np.square(error, dtype=np.float64).sum())
        self._source_square += float(np.square(exact, dtype=np.float64).sum())

    def result(self) -> TensorError:
        """Return the errors over everything that was compared."""
        relative = (self._error_square / self._source_square) ** 0.5 if self._source_square else 0.0
        return TensorError(self._slot.target, self._slot.pp_rank, self._max_error, relative)


def _overlap(piece: Piece, start: int, count: int) -> tuple[slice, slice, int]:
    """Return which rows and columns of a block [start, start + count) of a part a rank holds, and the first of them in its tensor."""
    cut = piece.cut
    if cut.axis:
        return slice(0, count), slice(cut.start, cut.stop), piece.row + start
    first = min(max(cut.start - start, 0), count)
    last = max(min(cut.stop - start, count), first)
    return slice(first, last), slice(None), piece.row + start + first - cut.start


def _stored(exact: NDArray[np.float32], slot: Slot, dtype: str) -> NDArray[np.float32]:
    """Return what an unquantized value becomes in the file, as float32."""
    offset = np.float32(slot.rule.offset)
    cast: NDArray[np.float32] = (
        (exact + offset if slot.rule.offset else exact).astype(numpy_dtype(dtype)).astype(np.float32)
    )
    return cast


def padding_is_zero(checkpoint: Checkpoint) -> list[Finding]:
    """Return the ranks whose padding of the vocabulary is not zero."""
    findings = []
    with TensorReader() as reader:
        for slot in checkpoint.layout.slots:
            for rank in checkpoint.layout.parallel.ranks():
                if rank.pp_rank != slot.pp_rank:
                    continue
                last = checkpoint.layout.pieces(slot, rank.tp_rank)[-1]
                if not last.cut.pad:
                    continue
                stop = last.row + last.cut.size
                rows = reader.read_rows(checkpoint.tensors[rank.index][slot.target], stop - last.cut.pad, stop)
                if np.count_nonzero(rows.view(np.uint8)):
                    findings.append(Finding(f"rank{rank.index}.safetensors", slot.target, "its padding is not zero"))
    return findings
