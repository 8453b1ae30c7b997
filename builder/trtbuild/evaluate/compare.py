"""Runs a model and its quantized form side by side, layer by layer, and notes how far apart they are.

Three passes per layer and row: the source's layer on the source's stream, the quantized layer on the same input (its own error), and
the quantized layer on the quantized stream (what errors add up to).
Memory: one decoder layer of each model, or one vocabulary matrix of each, the logits of some tokens, and both streams, which go to a file
when they are large. Nothing grows with the number of layers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from trtbuild.evaluate.metrics import (
    Quality,
    RelativeError,
    TokenStatistics,
    compare_logits,
    summarize,
    tokens_per_chunk,
)
from trtbuild.evaluate.models import QuantizedModel
from trtbuild.evaluate.report import LayerError
from trtbuild.streaming.activations import Activations
from trtbuild.streaming.model import LayerModel

#: Of each of the two streams; larger ones are kept in a file.
_STREAM_BYTES = 256 << 20
_LOGITS_BYTES = 512 << 20


class Advance(Protocol):
    """Called with the number of tokens that went through one more layer."""

    def __call__(self, tokens: int, /) -> None: ...


def compare(
    source: LayerModel, quantized: QuantizedModel, rows: Sequence[tuple[int, ...]], *, advance: Advance
) -> tuple[Quality, tuple[LayerError, ...]]:
    """Return the metrics of the whole model and the errors of its layers.

    Args:
        source: the model.
        quantized: the same model, quantized.
        rows: token ids; every token but a row's first is predicted from those before it.
        advance: progress, see `steps`.
    """
    lengths = [len(row) for row in rows]
    with tempfile.TemporaryDirectory(prefix="trtbuild-evaluate-") as folder:
        streams = [
            Activations.fitting(
                lengths, source.hidden_size, dtype=source.dtype, file=Path(folder, name), memory_bytes=_STREAM_BYTES
            )
            for name in ("source", "quantized")
        ]
        try:
            for embed, stream in zip((source.embed, quantized.embed), streams, strict=True):
                for number, hidden in enumerate(embed(rows)):
                    stream.put(number, hidden)
            layers = tuple(
                _layer(source, quantized, index, streams, advance=advance) for index in range(source.num_layers)
            )
            parts = list(_head(source, quantized, rows, streams, advance=advance))
        finally:
            for stream in streams:
                stream.close()
    return summarize(parts), layers


def steps(rows: Sequence[tuple[int, ...]], num_layers: int) -> int:
    """Return how much `advance` is told of in all: every token once per layer, and once for the head."""
    return sum(map(len, rows)) * (num_layers + 1)


def _layer(
    source: LayerModel, quantized: QuantizedModel, index: int, streams: Sequence[Activations], *, advance: Advance
) -> LayerError:
    mine, theirs = streams
    own, accumulated = RelativeError(), RelativeError()
    with source.layer(index) as original, quantized.layer(index) as coded:
        linears = _LinearErrors(original, coded)
        for number in range(len(mine)):
            given, drifted = mine.get(number).to(source.device), theirs.get(number).to(source.device)
            with linears.noting():
                right = source.run(index, given)
            with linears.comparing():
                alone = quantized.run(index, given)
            off = alone if torch.equal(given, drifted) else quantized.run(index, drifted)
            own.add(alone, right, base=given)
            accumulated.add(off, right)
            mine.put(number, right)
            theirs.put(number, off)
            advance(right.shape[1])
    return LayerError(index, source.layer_name(index), own.value, accumulated.value, linears.values)


def _head(
    source: LayerModel,
    quantized: QuantizedModel,
    rows: Sequence[tuple[int, ...]],
    streams: Sequence[Activations],
    *,
    advance: Advance,
) -> Iterator[TokenStatistics]:
    """Yield the statistics of a few tokens at a time, so that their logits fit into memory."""
    mine, theirs = streams
    count = 1
    for number, row in enumerate(rows):
        targets = torch.tensor(row[1:], device=source.device)
        right, off = mine.get(number)[:, :-1].to(source.device), theirs.get(number)[:, :-1].to(source.device)
        start = 0
        while start < len(targets):
            chunk = slice(start, start + count)
            found = source.logits(right[:, chunk])
            yield compare_logits(found, quantized.logits(off[:, chunk]), targets[chunk])
            start += count
            count = tokens_per_chunk(found.shape[-1], _LOGITS_BYTES)  # known once there are logits
        advance(len(row))


class _LinearErrors:
    """The errors of the outputs of a layer's linears, of the same layer in two models."""

    def __init__(self, original: nn.Module, coded: nn.Module) -> None:
        self._errors: dict[str, RelativeError] = {}
        self._kept: dict[str, list[Tensor]] = {}
        self._linears = [dict(_linears(original)), dict(_linears(coded))]

    @property
    def values(self) -> dict[str, float]:
        """Name inside the layer -> error, in the order in which the linears run."""
        return {name: error.value for name, error in self._errors.items()}

    def noting(self) -> AbstractContextManager[None]:
        """Note the original's outputs inside of the block."""
        self._kept.clear()
        return _hooked(self._linears[0], lambda name, output: self._kept.setdefault(name, []).append(output))

    def comparing(self) -> AbstractContextManager[None]:
        """Compare with what was noted inside of the block."""
        return _hooked(self._linears[1], self._compare)

    def _compare(self, name: str, output: Tensor) -> None:
        right = self._kept[name].pop(0) if self._kept.get(name) else None
        if right is not None and right.shape == output.shape:  # experts may be given other tokens
            self._errors.setdefault(name, RelativeError()).add(output, right)


def _linears(layer: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return ((name, module) for name, module in layer.named_modules() if isinstance(module, (nn.Linear, Conv1D)))


@contextmanager
def _hooked(modules: dict[str, nn.Module], note: Callable[[str, Tensor], None]) -> Iterator[None]:
    def hook(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        return lambda _module, _inputs, output: note(name, output)

    handles = [module.register_forward_hook(hook(name)) for name, module in modules.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
