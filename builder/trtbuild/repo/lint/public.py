"""Rules about the tensors of the core, as its release's backend reads and writes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from trtbuild.repo.lint.findings import Problem, Rule
from trtbuild.repo.lint.repository import Model, Repository
from trtbuild.repo.proto import datatype_name
from trtbuild.trtllm.backend_parameters import nearest
from trtbuild.trtllm.tensors import CHOSEN_TYPES, ENGINE_MODELS, Tensor

_CORE = ENGINE_MODELS["tensorrt_llm"]
#: Without these the backend answers no request (Triton specification 1.2, 1.8).
NEEDED: dict[Literal["input", "output"], tuple[str, ...]] = {
    "input": ("input_ids", "input_lengths", "request_output_len"),
    "output": ("output_ids", "sequence_length"),
}
#: Inputs of the models that take text which a client always sends (Triton specification 1.5).
CLIENT_INPUTS = ("text_input", "max_tokens")
_BLS = "tensorrt_llm_bls"
LOGITS = ("context_logits", "generation_logits")


def missing(repository: Repository) -> Iterator[Problem]:
    """Find cores and BLS models without a tensor that every request needs."""
    for model in (each for each in repository.parsed() if each.role == _BLS):
        declared = {tensor.name for tensor in model.config.input}
        for row in ENGINE_MODELS[_BLS].inputs:
            if not row.optional and row.name not in declared and row.name in CLIENT_INPUTS:
                yield Problem(
                    model.file, f"input '{row.name}' is not declared, and every request needs it", "declare it"
                )
    for model in repository.engine_models():
        for side, names in NEEDED.items():
            declared = {tensor.name for tensor in getattr(model.config, side)}
            for name in (each for each in names if each not in declared):
                yield Problem(model.file, f"{side} '{name}' is not declared, and every request needs it", "declare it")


def renamed(repository: Repository) -> Iterator[Problem]:
    """Find tensors by a name that the release's backend does not look for."""
    release = repository.facts.release
    if release is None:
        return
    for model in repository.engine_models():
        for tensor in model.config.input:
            rows = [row for row in _CORE.inputs if row.name == tensor.name]
            if not rows or any(row.is_in(release) for row in rows):
                continue
            row, line = rows[0], model.tensor_line("input", tensor.name)
            older = next((each for each in _CORE.inputs if each.renamed_to == row.name and each.is_in(release)), None)
            if row.renamed_to:
                yield Problem(
                    model.file,
                    f"input '{row.name}' is '{row.renamed_to}' since TensorRT-LLM {row.until}: {release} does not read it",
                    f"name it '{row.renamed_to}', here and where it is mapped",
                    line,
                )
            else:
                what = f"; there it is '{older.name}'" if older else ""
                yield Problem(
                    model.file,
                    f"input '{row.name}' came with TensorRT-LLM {row.since}: {release} does not read it{what}",
                    "remove it, or serve with such a release",
                    line,
                    severity="warning",
                )


def unknown(repository: Repository) -> Iterator[Problem]:
    """Find inputs of the core that no release's backend reads."""
    known = [tensor.name for tensor in _CORE.inputs]
    for model in repository.engine_models():
        for tensor in model.config.input:
            if tensor.name not in known and tensor.name != "no_repeat_ngram_size":
                near = nearest(tensor.name, known)
                yield Problem(
                    model.file,
                    f"the backend reads no input '{tensor.name}': what clients send has no effect",
                    f"name it '{near}', if that is meant" if near else "remove it",
                    model.tensor_line("input", tensor.name),
                )


def differs(repository: Repository) -> Iterator[Problem]:
    """Find tensors of the core with another type or shape than its backend reads and writes."""
    release = repository.facts.release
    compared = [(model, _CORE) for model in repository.engine_models()]
    compared += [(model, ENGINE_MODELS[_BLS]) for model in repository.parsed() if model.role == _BLS]
    for model, signature in compared:
        for side in ("input", "output"):
            for tensor in getattr(model.config, side):
                rows = [row for row in signature.side(side) if row.name == tensor.name]
                current = [row for row in rows if release is None or row.is_in(release)] or rows
                if current and (what := _difference(model, side, tensor, current)):
                    # Without a release the tables may be of another one than serves it.
                    inferred = release is None or any(row.evidence == "inferred" for row in current)
                    yield Problem(
                        model.file,
                        f"{side} '{tensor.name}' {what}",
                        "declare it as the backend has it",
                        model.tensor_line(side, tensor.name),
                        severity="warning" if inferred else None,
                    )


def _difference(model: Model, side: str, tensor: object, rows: list[Tensor]) -> str:
    dtype = datatype_name(tensor.data_type).removeprefix("TYPE_")  # type: ignore[attr-defined] # a protobuf message
    dims = tuple(tensor.dims)  # type: ignore[attr-defined] # a protobuf message
    types = [name for row in rows for name in row.dtypes]
    if dtype not in types and dtype != "INVALID":
        chosen = any(row.dtype in CHOSEN_TYPES for row in rows)
        return f"is TYPE_{dtype}, the backend {'knows only' if chosen else 'has'} {' or '.join(f'TYPE_{name}' for name in dict.fromkeys(types))}"
    if dims and dims not in [row.dims for row in rows] and 0 not in dims:
        return f"has dims {list(dims)}, the backend has {' or '.join(str(list(row.dims)) for row in rows)}"
    is_scalar = tensor.HasField("reshape") and not tensor.reshape.shape  # type: ignore[attr-defined] # a protobuf message
    may_miss = side == "input" and not tensor.optional and tensor.name not in NEEDED["input"]  # type: ignore[attr-defined] # a protobuf message
    if may_miss and all(row.optional for row in rows):
        return "is not optional, and the backend does without it: requests that leave it out fail"
    if side == "input" and is_scalar != rows[-1].scalar:
        return f"has {'a' if is_scalar else 'no'} reshape to no dimensions, the backend expects {'one' if rows[-1].scalar else 'none'}"
    return ""


RULES: dict[str, Rule] = {
    "missing-tensor": Rule(
        "error", missing, "a core or a BLS model without a tensor that every request needs", "`output_ids tensor must be present in list of output tensors`, and the like (Triton specification 1.8).",
        "Declare it as NVIDIA's template does.",
    ),
    "renamed-tensor": Rule(
        "error", renamed, "inputs of the core by a name that the release's backend does not look for",
        "What clients send there has no effect: `random_seed` is `seed` and `min_length` is `min_tokens` since 0.20 (Triton specification 3.3). A warning where an input "
        "is only newer than the release.",
        "Use the names of the release.", needs_release=True,
    ),
    "unknown-tensor": Rule(
        "warning", unknown, "inputs of the core that no backend reads", "What clients send there has no effect (Triton specification 1.2).",
        "Use the name that is meant, or remove it.",
    ),
    "tensor-differs": Rule(
        "error", differs, "tensors of the core or of the BLS model with another type or shape than its backend reads and writes, or that clients should not have to send",
        "The backend takes the bytes as its own type: numbers are read wrongly, or requests fail. Logits are FP32 or FP16 (Triton specification 1.2, 1.8; field reports CR13, CR14). "
        "A warning where the release is not known, or its type could only be concluded.",
        "Declare it as NVIDIA's template of the release does.",
    ),
}  # fmt: skip
