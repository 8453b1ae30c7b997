"""What is remembered of the inputs of a linear over all calibration tokens. Knows neither models nor quantization."""

from __future__ import annotations

import torch
from torch import Tensor

#: Tokens that are collected before the second moments are brought up to date: a matrix product of few rows is all memory traffic.
_BATCH_TOKENS = 512


class InputMoments:
    """Range, mean magnitude and second moments of an input x, [tokens, in], in float32.

    Memory: in * block * 4 bytes, and up to _BATCH_TOKENS + one row of inputs.

    Attributes:
        tokens: number of tokens seen.
        amax: [in], largest |x|; empty before the first token.
        abs_sum: [in], sum of |x|; empty when only ranges are kept.
        second: [in / block, block, block], sums of x x^T over neighbouring channels; one block of all channels, or several.
    """

    def __init__(self, in_features: int, *, block: int, device: str | torch.device = "cpu") -> None:
        """Start without tokens.

        Args:
            in_features: number of channels.
            block: how many neighbouring channels second moments are kept of; 0 for ranges alone.
            device: where the sums are kept.
        """
        self.tokens = 0
        self.amax = torch.zeros(in_features, device=device)
        self.abs_sum = torch.zeros(in_features if block else 0, device=device)
        self.second = torch.zeros(in_features // block if block else 0, block, block, device=device)
        self._waiting: list[Tensor] = []

    def add(self, inputs: Tensor) -> None:
        """Take inputs in. inputs: [..., in]."""
        rows = inputs.reshape(-1, inputs.shape[-1])
        self.tokens += len(rows)
        self.amax = self.amax.maximum(rows.abs().amax(0).float())
        if self.abs_sum.numel():
            rows = rows.float()
            self.abs_sum += rows.abs().sum(0)
            self._waiting.append(rows)
            if sum(map(len, self._waiting)) >= _BATCH_TOKENS:
                self.finish()

    def finish(self) -> None:
        """Bring the second moments up to date."""
        if self._waiting:
            count, block, _ = self.second.shape
            columns = torch.cat(self._waiting).view(-1, count, block).transpose(0, 1)
            self.second.baddbmm_(columns.transpose(1, 2), columns)
            self._waiting = []

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
