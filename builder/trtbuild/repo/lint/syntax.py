"""Rules about one model by itself: its files, its name, its parameters."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from trtbuild.repo.lint.findings import Problem
from trtbuild.repo.lint.repository import Repository

MODEL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
PLACEHOLDER = re.compile(r"\$\{[^}\n]*\}?|\{\{|\{%|\}\}|%\}")

#: Parameters that must exist but may be empty: the backend looks them up and takes an empty one as "not set".
MAY_BE_EMPTY = frozenset(["tokenizer_dir", "guided_decoding_backend", "xgrammar_tokenizer_info_path"])
#: Models for which even those must have a value.
NEEDS_TOKENIZER = frozenset(["preprocessing", "postprocessing"])


def unfilled(repository: Repository) -> Iterator[Problem]:
    """Find placeholders of a template that nobody filled."""
    for model in repository.models.values():
        for number, line in enumerate((model.text or "").split("\n"), start=1):
            code = line.partition("#")[0] if '"' not in line and "'" not in line else line
            for match in PLACEHOLDER.finditer(code):
                yield Problem(
                    model.file,
                    f"line {number} still has the placeholder {match[0]}",
                    "render the repository with a value for it",
                )


def readable(repository: Repository) -> Iterator[Problem]:
    """Find configurations Triton cannot read."""
    for model in repository.models.values():
        if model.syntax_error:
            yield Problem(model.file, f"it cannot be read: {model.syntax_error}", "correct the line, or render again")


def model_name(repository: Repository) -> Iterator[Problem]:
    """Find names, also of ensemble members, that could lead out of the repository."""
    for model in repository.models.values():
        names = [model.folder]
        if model.config is not None:
            names += [step.model_name for step in model.config.ensemble_scheduling.step]
        for name in names:
            if not MODEL_NAME.fullmatch(name):
                yield Problem(
                    model.file,
                    f"'{name}' is not allowed as a model name",
                    "use letters, digits, '_', '-' and '.', no dot first",
                )


def name_differs(repository: Repository) -> Iterator[Problem]:
    """Find models whose folder has another name than the model."""
    for model in repository.parsed():
        if model.config.name not in ("", model.folder):
            yield Problem(
                model.file, f"the model is named '{model.config.name}', its folder '{model.folder}'", "make them equal"
            )


def has_version(repository: Repository) -> Iterator[Problem]:
    """Find models without a version; an ensemble needs an (empty) one, too."""
    for model in repository.models.values():
        if model.text is not None and not model.versions:
            yield Problem(
                model.file, f"there is no version folder such as {model.folder}/1", f"create {model.folder}/1"
            )


def has_model_file(repository: Repository) -> Iterator[Problem]:
    """Find Python models without their code, on which the server hangs."""
    for model in repository.parsed():
        name = model.config.default_model_filename or "model.py"
        for version in model.versions if model.config.backend == "python" else ():
            if f"{model.folder}/{version}/{name}" not in model.files:
                yield Problem(
                    model.file, f"{model.folder}/{version}/{name} does not exist", "put the model's code there"
                )


def empty_parameter(repository: Repository) -> Iterator[Problem]:
    """Find parameters that are there without a value."""
    for model in repository.parsed():
        for key, value in model.parameters().items():
            may_be_empty = key in MAY_BE_EMPTY and model.folder not in NEEDS_TOKENIZER
            if not value and not may_be_empty:
                yield Problem(model.file, f"parameter '{key}' is empty", "give it a value, or leave the parameter out")


def duplicate_parameter(repository: Repository) -> Iterator[Problem]:
    """Find parameters given twice, of which the last one silently wins."""
    for model in repository.parsed():
        keys = re.findall(r"\bparameters\s*:?\s*\{\s*key\s*:\s*[\"']([^\"']*)[\"']", model.text or "")
        for key, count in Counter(keys).items():
            if count > 1:
                yield Problem(model.file, f"parameter '{key}' is given {count} times", "keep one")


def instance_count(repository: Repository) -> Iterator[Problem]:
    """Find instance groups without a positive count, which Triton takes for 1."""
    for model in repository.parsed():
        for group in model.config.instance_group:
            if group.count < 1:
                yield Problem(model.file, f"an instance_group has the count {group.count}", "use 1 or more")


def batch_size(repository: Repository) -> Iterator[Problem]:
    """Find batch sizes Triton refuses, and batching where there are no batches."""
    for model in repository.parsed():
        config = model.config
        if config.max_batch_size < 0:
            yield Problem(model.file, f"max_batch_size is {config.max_batch_size}", "use 0 (no batching) or more")
        if config.HasField("dynamic_batching") and config.max_batch_size == 0:
            yield Problem(
                model.file, "dynamic_batching needs batches, and max_batch_size is 0", "remove it, or use 1 or more"
            )
        for preferred in config.dynamic_batching.preferred_batch_size:
            if not 0 < preferred <= max(config.max_batch_size, 1):
                yield Problem(
                    model.file,
                    f"preferred_batch_size {preferred} exceeds max_batch_size {config.max_batch_size}",
                    f"use at most {config.max_batch_size}",
                )
