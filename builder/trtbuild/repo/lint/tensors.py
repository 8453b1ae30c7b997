"""Rules about the tensors a model declares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from trtbuild.repo.lint import edits
from trtbuild.repo.lint.code import MOST_BYTES
from trtbuild.repo.lint.findings import Edit, Problem, Rule
from trtbuild.repo.lint.reading import read_lenient
from trtbuild.repo.lint.repository import Model, Repository


def duplicate_tensor(repository: Repository) -> Iterator[Problem]:
    """Find names declared twice; Triton takes one of them."""
    for model in repository.parsed():
        for side in ("input", "output"):
            for name, count in Counter(tensor.name for tensor in getattr(model.config, side)).items():
                if count > 1:
                    yield Problem(
                        model.file,
                        f"{side} '{name}' is declared {count} times",
                        "keep one",
                        model.tensor_line(side, name),
                        _repeated(model, side, name),
                    )


def datatype(repository: Repository) -> Iterator[Problem]:
    """Find tensors without a name or a type."""
    for model, tensor in _tensors(repository):
        if not tensor.name:
            yield Problem(model.file, "a tensor has no name", "name it")
        if tensor.data_type == 0 and not _is_completed(repository, model):
            yield Problem(
                model.file,
                f"tensor '{tensor.name}' has no data_type",
                "give it one, e.g. TYPE_INT32",
                _line(model, tensor),
            )


def dims(repository: Repository) -> Iterator[Problem]:
    """Find shapes Triton refuses."""
    for model, tensor in _tensors(repository):
        if not tensor.dims and not _is_completed(repository, model):
            yield Problem(
                model.file,
                f"tensor '{tensor.name}' has no dims",
                "give it dims, e.g. dims: [ -1 ]",
                _line(model, tensor),
            )
        for size in tensor.dims:
            if size == 0 or size < -1:
                yield Problem(
                    model.file,
                    f"tensor '{tensor.name}' has a dimension of {size}",
                    "use 1 or more, or -1 for any",
                    _line(model, tensor),
                )


def reshape(repository: Repository) -> Iterator[Problem]:
    """Find reshapes to another number of elements."""
    for model, tensor in _tensors(repository):
        if tensor.HasField("reshape") and (
            what := _reshape_problem(model, list(tensor.dims), list(tensor.reshape.shape))
        ):
            yield Problem(
                model.file,
                f"tensor '{tensor.name}' is reshaped from {list(tensor.dims)} to {list(tensor.reshape.shape)}: {what}",
                "keep the number of elements",
                _line(model, tensor),
            )


def _reshape_problem(model: Model, dims: list[int], shape: list[int]) -> str:
    """Return what is wrong with a reshape; empty when nothing is. Between dimensions of any size the elements must be as many on both sides."""
    if any(size == 0 or size < -1 for size in (*shape, *dims)):
        return "a size must be 1 or more, or -1" if any(size == 0 or size < -1 for size in shape) else ""
    if not shape and model.config.max_batch_size == 0:
        return "a model without batches has no tensors without dimensions"
    before, after = _between(dims), _between(shape)
    if len(before) != len(after):
        return "the sizes of -1 are not as many"
    return "" if before == after else "the elements are not as many"


def _between(dims: list[int]) -> list[int]:
    """Return the number of elements of every run of fixed sizes, with -1 between runs."""
    runs = [1]
    for size in dims:
        if size == -1:
            runs.append(1)
        else:
            runs[-1] *= size
    return runs


def _is_completed(repository: Repository, model: Model) -> bool:
    """Say whether the server may find out itself what a declaration leaves out; of a Python model its code says so."""
    if not model.may_complete or model.config.backend != "python":
        return model.may_complete
    files = (repository.path / name for name in model.files if name.endswith(".py"))
    return any("auto_complete_config" in read_lenient(file, most_bytes=MOST_BYTES) for file in files)


def _tensors(repository: Repository) -> Iterator[tuple[Model, Any]]:
    for model in repository.parsed():
        for tensor in (*model.config.input, *model.config.output):
            yield model, tensor


def _line(model: Model, tensor: Any) -> int:
    return model.tensor_line("input", tensor.name) or model.tensor_line("output", tensor.name)


def _repeated(model: Model, side: str, name: str) -> Edit | None:
    """Return an edit that removes the last declaration of a tensor, if it says what the first one says."""
    text = model.text or ""
    nodes = [
        node for node in model.tree.all(side) if (found := node.first("name")) is not None and found.text(text) == name
    ]
    same = len({"".join(node.text(text).split()) for node in nodes}) == 1
    return edits.remove(model, nodes[-1], f"remove the second '{name}'") if nodes and same else None


RULES: dict[str, Rule] = {
    "duplicate-tensor": Rule(
        "error", duplicate_tensor, "tensors declared twice",
        "Triton accepts it and takes one of them (Triton specification 7.3). The stock ensemble lists kv_cache_alloc_total_blocks twice.",
        "Keep one; `--fix` removes a second one that says the same.",
    ),
    "tensor-type": Rule(
        "error", datatype, "tensors without a name or a type", "The server refuses to load the model.",
        "Name it, and give it a `data_type`.",
    ),
    "tensor-dims": Rule(
        "error", dims, "tensors without dims, or with dims that no tensor can have",
        "The server says `must specify 'dims'` or `dimension must be integer >= 1, or -1` (Triton specification 7.3).",
        "Use sizes of 1 and more, or -1 for any.",
    ),
    "tensor-reshape": Rule(
        "error", reshape, "reshapes to another number of elements",
        "`has different size for dims and reshape`, `cannot have empty reshape for non-batching model`: the model does not load (tests of NVIDIA's server).",
        "Keep the number of elements; dims of -1 stay in their order.",
    ),
}  # fmt: skip
