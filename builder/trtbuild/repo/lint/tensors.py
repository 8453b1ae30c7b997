"""Rules about the tensors a model declares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from trtbuild.repo.lint.findings import Problem
from trtbuild.repo.lint.repository import Model, Repository


def duplicate_tensor(repository: Repository) -> Iterator[Problem]:
    """Find names declared twice; Triton takes one of them."""
    for model in repository.parsed():
        for side in ("input", "output"):
            for name, count in Counter(tensor.name for tensor in getattr(model.config, side)).items():
                if count > 1:
                    yield Problem(model.file, f"{side} '{name}' is declared {count} times", "keep one")


def datatype(repository: Repository) -> Iterator[Problem]:
    """Find tensors without a name or a type."""
    for model, tensor in _tensors(repository):
        if not tensor.name:
            yield Problem(model.file, "a tensor has no name", "name it")
        if tensor.data_type == 0:
            yield Problem(model.file, f"tensor '{tensor.name}' has no data_type", "give it one, e.g. TYPE_INT32")


def dims(repository: Repository) -> Iterator[Problem]:
    """Find shapes Triton refuses."""
    for model, tensor in _tensors(repository):
        if not tensor.dims:
            yield Problem(model.file, f"tensor '{tensor.name}' has no dims", "give it dims, e.g. dims: [ -1 ]")
        for size in tensor.dims:
            if size == 0 or size < -1:
                yield Problem(
                    model.file, f"tensor '{tensor.name}' has a dimension of {size}", "use 1 or more, or -1 for any"
                )


def _tensors(repository: Repository) -> Iterator[tuple[Model, Any]]:
    for model in repository.parsed():
        for tensor in (*model.config.input, *model.config.output):
            yield model, tensor
