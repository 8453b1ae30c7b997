"""What is remembered of the inputs of a linear over all calibration tokens. Knows neither models nor quantization."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from trtbuild.quant.search.rows import StoredRows

#: Tokens that are collected before the second moments are brought up to date: a matrix product of few rows is all memory traffic.
_BATCH_TOKENS = 512


class InputMoments:
    """Range, mean magnitude and second moments of an input x, [tokens, in], in float32.

    Memory: in * block * 4 bytes, and up to _BATCH_TOKENS + one row of inputs. With a file, the inputs lie there until `recall`: the
    second moments take no memory while the model runs. The result is the same to the bit.

    Attributes:
        tokens: number of tokens seen.
        amax: [in], largest |x|; empty before the first token.
        abs_sum: [in], sum of |x|; empty when only ranges are kept.
        second: [in / block, block, block], sums of x x^T over neighbouring channels; one block of all channels, or several.
    """

    def __init__(
        self, in_features: int, *, block: int, device: str | torch.device = "cpu", file: Path | None = None
    ) -> None:
        """Start without tokens.

        Args:
            in_features: number of channels.
            block: how many neighbouring channels second moments are kept of; 0 for ranges alone.
            device: where the sums are kept.
            file: where inputs lie until `recall`; None to sum them up at once.
        """
        self.tokens = 0
        self.amax = torch.zeros(in_features, device=device)
        self.abs_sum = torch.zeros(in_features if block else 0, device=device)
        self._shape = (in_features // block if block else 0, block, block)
        self._stored = None if file is None or not block else StoredRows(file, in_features, device=device)
        self.second = self._zeros() if self._stored is None else torch.zeros(0, device=device)
        self._waiting: list[Tensor] = []
        self._batches: list[int] = []

    def add(self, inputs: Tensor) -> None:
        """Take inputs in. inputs: [..., in]."""
        rows = inputs.reshape(-1, inputs.shape[-1])
        self.tokens += len(rows)
        self.amax = self.amax.maximum(rows.abs().amax(0).float())
        if self.abs_sum.numel():
            self.abs_sum += rows.float().abs().sum(0)
            self._waiting.append(rows)
            if sum(map(len, self._waiting)) >= _BATCH_TOKENS:
                self.finish()

    def finish(self) -> None:
        """Bring the second moments up to date, or the file."""
        if not self._waiting:
            return
        batch = torch.cat(self._waiting)
        self._waiting = []
        if self._stored is None:
            self._sum(batch)
        else:
            self._batches.append(len(batch))
            self._stored.append(batch)

    def recall(self) -> None:
        """Sum up what lies in the file, and remove it."""
        if self._stored is None:
            return
        self.second, start = self._zeros(), 0
        for tokens in self._batches:
            self._sum(self._stored[start : start + tokens])
            start += tokens
        self._stored.remove()
        self._stored = None

    def take(self) -> Tensor:
        """Return the second moments for good: they may be changed, and are not here any more."""
        second, self.second = self.second, torch.zeros(0, device=self.amax.device)
        return second

    def _zeros(self) -> Tensor:
        return torch.zeros(self._shape, device=self.amax.device)

    def _sum(self, batch: Tensor) -> None:
        columns = batch.float().view(len(batch), *self._shape[:2]).transpose(0, 1)
        self.second.baddbmm_(columns.transpose(1, 2), columns)

    @property
    def mean(self) -> Tensor:
        """[in], mean |x|."""
        return self.abs_sum / max(self.tokens, 1)

    def error(self, difference: Tensor) -> float:
        """Return the sum over tokens and outputs of (difference @ x)^2.

        Args:
            difference: of two weights, [out, in]. Moments in blocks leave out what channels of different blocks have in common.
        """
        count, block, _ = self.second.shape
        parts = difference.reshape(-1, count, block).transpose(0, 1)
        return float((torch.bmm(parts, self.second) * parts).sum(dtype=torch.float64))

    def diagonal(self, size: int) -> Tensor:
        """Return the second moments of blocks of `size` channels, [in / size, size, size]; `size` divides the block kept."""
        count, block, _ = self.second.shape
        parts = self.second.view(count, block // size, size, block // size, size)
        return parts.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2).reshape(-1, size, size)
