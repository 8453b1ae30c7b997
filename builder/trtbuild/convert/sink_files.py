"""The files that a sink writes, and the journal of what is finished of them. Knows no plan and no layout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from trtbuild.convert.journal import INPUTS, Journal
from trtbuild.convert.writer import RankWriter
from trtbuild.layout import StoredTensor

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, slots=True)
class ConversionResult:
    """What was read and written.

    Attributes:
        inputs: label of a part of the source -> SHA-256 of its rows.
        digests: file name -> tensor name -> SHA-256.
        kv_scales: per layer, empty without a quantized KV cache.
    """

    inputs: dict[str, str]
    digests: dict[str, dict[str, str]]
    kv_scales: tuple[float, ...]


class SinkFiles:
    """The open files of one folder under construction.

    Args:
        folder: where to; empty, or left by an interrupted run of the same plan.
        files: file name -> everything that will be in it.
    """

    def __init__(self, folder: Path, files: Mapping[str, Iterable[StoredTensor]]) -> None:
        self._folder = folder
        self._files: dict[str, RankWriter] = {}
        with ExitStack() as stack:
            self._journal = stack.enter_context(Journal(folder))
            for name, tensors in files.items():
                self._files[name] = RankWriter(folder / name, tensors, done=self._journal.done(name))
                stack.callback(self._files[name].close)
            self._open = stack.pop_all()
        self._inputs = self._journal.done(INPUTS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def _note(self, inputs: Mapping[str, str], names: Sequence[tuple[str, str]]) -> None:
        """Remember digests of parts that were read, and (file, tensor) that are finished."""
        self._inputs.update(inputs)
        digests = {(INPUTS, label): digest for label, digest in inputs.items()}
        self._journal.add(digests | {(file, name): self._files[file].digest(name) for file, name in names})

    def _close(self, kv_scales: tuple[float, ...]) -> ConversionResult:
        """Close the files, all finished."""
        digests = {name: writer.finish() for name, writer in self._files.items()}
        self._journal.remove()
        return ConversionResult(dict(sorted(self._inputs.items())), digests, kv_scales)
