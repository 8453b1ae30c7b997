"""A symmetric matrix and its triangular factor in the memory of the one matrix. Plain linear algebra."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

#: Is added to the diagonal before it is factored, relative to its mean; where the matrix is singular, as much more as it takes.
DAMPING = 0.01
_MORE_DAMPING = (1, 10, 100)
#: Rows and columns of a block.
BLOCK = 128


class Factored:
    """H, symmetric and positive, and V, upper triangular, with H + damping = V V^T.

    Blocks below the diagonal and on it are H's, those above it V's; V's own blocks of the diagonal lie beside it. Memory: the matrix, and
    a few columns of blocks.
    """

    def __init__(self, matrix: Tensor) -> None:
        """Factor a matrix; V is the identity, with a warning, where that cannot be done.

        Args:
            matrix: [n, n] float32, symmetric, with a positive diagonal; kept, and changed.
        """
        self._matrix = matrix
        self.spans = [(start, min(start + BLOCK, len(matrix))) for start in range(0, len(matrix), BLOCK)]
        step = DAMPING * matrix.diagonal().mean()
        for times in _MORE_DAMPING:
            found = self._factor(step * times)
            if found is not None:
                self._diagonal = found
                return
        logger.warning("second moments of %d channels are no positive matrix; nearest codes are used", len(matrix))
        self._diagonal = [torch.eye(stop - start, device=matrix.device) for start, stop in self.spans]
        for start, stop in self.spans:
            matrix[:start, start:stop] = 0

    def _factor(self, damping: Tensor) -> list[Tensor] | None:
        """Return V's blocks of the diagonal, the last first by a Cholesky factorization from the end; None where one is not positive."""
        matrix, spans = self._matrix, self.spans
        diagonal = [matrix[start:stop, start:stop].clone() for start, stop in spans]
        for (start, stop), block in zip(spans, diagonal, strict=True):
            block.diagonal().add_(damping)
            matrix[:start, start:stop] = matrix[start:stop, :start].T
        for number in reversed(range(len(spans))):
            start, stop = spans[number]
            lower, failed = torch.linalg.cholesky_ex(diagonal[number].flip(0, 1))
            if failed or not bool(torch.isfinite(lower).all()):
                return None
            diagonal[number] = lower.flip(0, 1)
            above = torch.linalg.solve_triangular(
                diagonal[number].T, matrix[:start, start:stop], upper=False, left=False
            )
            matrix[:start, start:stop] = above
            for (first, last), block in zip(spans[:number], diagonal[:number], strict=True):
                block.addmm_(above[first:last], above[first:last].T, alpha=-1)
                matrix[first:last, last:start].addmm_(above[first:last], above[last:].T, alpha=-1)
        return diagonal

    def above(self, number: int) -> Tensor:
        """Return V's rows above a block of the diagonal, [start, columns of the block]."""
        start, stop = self.spans[number]
        return self._matrix[:start, start:stop]

    def on_diagonal(self, number: int) -> Tensor:
        """Return a block of V's diagonal, upper triangular."""
        return self._diagonal[number]

    def error(self, differences: Tensor) -> float:
        """Return the sum of d^T H d over the columns d of [n, count]."""
        total = 0.0
        for start, stop in self.spans:
            part = differences[start:stop]
            seen = self._matrix[start:stop, start:stop] @ part
            if start:
                seen.addmm_(self._matrix[start:stop, :start], differences[:start], alpha=2)
            total += float((seen * part).sum(dtype=torch.float64))
        return total


def permute(matrix: Tensor, order: Tensor) -> None:
    """Bring rows and columns of a square matrix into an order, in place; memory: BLOCK rows."""
    for start in range(0, len(matrix), BLOCK):
        matrix[start : start + BLOCK] = matrix[start : start + BLOCK, order]
    for start in range(0, len(matrix), BLOCK):
        matrix[:, start : start + BLOCK] = matrix[order, start : start + BLOCK]
