"""Rules about one model by itself: its text, its files, its name, its batches."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trtbuild.repo.lint import edits, pbtext
from trtbuild.repo.lint.findings import Edit, Problem, Rule
from trtbuild.repo.lint.names import MODEL_NAME
from trtbuild.repo.lint.repository import ABSENT, CORE, SIGNS, Model, Repository
from trtbuild.trtllm.backend_parameters import find_parameter, nearest

PLACEHOLDER = re.compile(r"\$\{[^}\n]*\}?|\{\{|\{%")
#: Parameters of ours that hold text of the user's, in which anything may stand.
FREE_TEXT = frozenset(["system_prompt", "stop_words"])
_BACKEND = re.compile(r'\bbackend\s*:\s*["\'](?:tensorrtllm|\$\{triton_backend\})["\']')
#: Files in a version folder from which Triton concludes the backend, and for some the whole configuration.
TELLING = frozenset(
    [
        "model.py",
        "model.json",
        "model.onnx",
        "model.plan",
        "model.pt",
        "model.savedmodel",
        "model.graphdef",
        "model.xml",
        "model.dali",
    ]
)
#: Those of which the file alone is enough; of model.py, too, but a language model's cannot do without (seen with Triton 2.51).
COMPLETE = TELLING - {"model.py", "model.json", "model.pt"}
#: Backends of NVIDIA's containers (Triton documentation, "Where can I find all the backends"), and platforms that Triton's core knows. Others may be somebody's own.
BACKENDS = ("tensorrtllm", "python", "vllm", "onnxruntime", "tensorrt", "tensorflow", "pytorch", "openvino", "dali", "fil", "identity", "repeat", "square",
            "redis", "ensemble")  # fmt: skip
PLATFORMS = ("ensemble", "tensorrt_plan", "onnxruntime_onnx", "pytorch_libtorch", "tensorflow_graphdef", "tensorflow_savedmodel")  # fmt: skip
#: How near a name must be to a known one to be taken for a misspelling of it.
_TYPO = 0.8
_BOM = "\N{ZERO WIDTH NO-BREAK SPACE}"


def unfilled(repository: Repository) -> Iterator[Problem]:
    """Find placeholders of a template that nobody filled."""
    for model in repository.models.values():
        text = model.text or ""
        if not any(mark in text for mark in ("${", "{{", "{%")):
            continue
        parameters = list(model.parameter_nodes())
        is_engine = _BACKEND.search(text) is not None
        for match in PLACEHOLDER.finditer(pbtext.without_comments(text)):
            key, node = next(
                ((key, node) for key, node in parameters if node.start <= match.start() < node.end), ("", None)
            )
            if key in FREE_TEXT:
                continue
            effect, edit = _effect(model, key, node, match[0]) if is_engine and node is not None else ("", None)
            number = pbtext.line_of(text, match.start())
            yield Problem(
                model.file,
                f"line {number} still has the placeholder {match[0]}{effect}",
                "render the repository with a value for it",
                number,
                edit,
            )


def _effect(model: Model, key: str, node: pbtext.Node, placeholder: str) -> tuple[str, Edit | None]:
    """Return what the C++ backend does with an unfilled parameter, and the edit after which it does the same without a word."""
    parameter, value = find_parameter(key), node.first("value", "string_value")
    if parameter is None or value is None or value.text(model.text or "") != placeholder:
        return "", None
    if parameter.on_failure == "refused":
        return f": without a value of '{key}' the model does not load", None
    if parameter.name == "gpt_model_path":
        return ": without an engine the model does not load", None
    if parameter.on_failure == "passed":
        return f": the backend takes the text for the value of '{key}'", edits.remove(model, node, f"remove '{key}'")
    effect = f": the backend warns and takes the default of '{key}', {parameter.default or 'not set'}"
    if parameter.key_required_since is not None:
        return effect, edits.set_value(value, "", f"leave '{key}' empty: the key must exist")
    return effect, edits.remove(model, node, f"remove '{key}', so that the default holds")


def readable(repository: Repository) -> Iterator[Problem]:
    """Find configurations Triton cannot read."""
    for model in repository.models.values():
        if model.is_stray or (model.syntax_error == ABSENT and _needs_none(model)):
            continue
        if model.syntax_error:
            place = re.match(r"(\d+):\d+", model.syntax_error)
            has_mark = (model.text or "").startswith(_BOM)
            yield Problem(
                model.file,
                f"it cannot be read: {model.syntax_error}{' (it begins with a byte order mark)' if has_mark else ''}",
                "correct the line, or render again",
                int(place[1]) if place else 0,
                Edit(0, 1, "", "remove the byte order mark") if has_mark else None,
            )


def _needs_none(model: Model) -> bool:
    """Say whether the server makes a configuration itself; of a Python model too, unless it is one of a language model's."""
    is_own = model.folder == CORE or model.folder in SIGNS
    return _has_file(model, COMPLETE) or (not is_own and _has_file(model, frozenset(["model.py"])))


def stray(repository: Repository) -> Iterator[Problem]:
    """Find folders that are no models."""
    for model in repository.models.values():
        if model.is_stray:
            yield Problem(
                model.folder,
                "the folder has no config.pbtxt and no version, and the server takes every folder for a model",
                "move it out of the repository",
            )


def name_differs(repository: Repository) -> Iterator[Problem]:
    """Find models whose folder has another name than the model."""
    for model in repository.parsed():
        if model.config.name not in ("", model.folder):
            node, is_name = model.tree.first("name"), MODEL_NAME.fullmatch(model.folder)
            yield Problem(
                model.file,
                f"the model is named '{model.config.name}', its folder '{model.folder}'",
                "make them equal",
                model.line_of(node),
                edits.set_value(node, model.folder, f"name it {model.folder}") if is_name else None,
            )


def has_version(repository: Repository) -> Iterator[Problem]:
    """Find models without a version; an ensemble needs an (empty) one, too."""
    for model in repository.models.values():
        if model.text is not None and not model.versions:
            yield Problem(
                model.file, f"there is no version folder such as {model.folder}/1", f"create {model.folder}/1"
            )
        wanted = model.config.version_policy.specific.versions if model.config is not None else ()
        for version in (each for each in wanted if model.versions and str(each) not in model.versions):
            yield Problem(
                model.file,
                f"version_policy names version {version}, which does not exist",
                f"name one of: {', '.join(model.versions)}",
                model.line("version_policy"),
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


def has_backend(repository: Repository) -> Iterator[Problem]:
    """Find models that no backend runs."""
    for model in repository.parsed():
        config = model.config
        is_named = config.backend or config.platform or config.default_model_filename
        if model.is_ensemble and not is_named:
            yield Problem(model.file, "it has ensemble_scheduling, and no platform", 'add platform: "ensemble"')
        elif not is_named and not _has_file(model, TELLING):
            yield Problem(
                model.file,
                "it names no backend, and none can be concluded",
                'name one, e.g. backend: "tensorrtllm" or backend: "python"',
            )
        for field, text, known in (("backend", config.backend, BACKENDS), ("platform", config.platform, PLATFORMS)):
            near = nearest(text, known, cutoff=_TYPO) if text and "${" not in text and text not in known else None
            if near:
                yield Problem(
                    model.file, f"there is no {field} '{text}'", f"write '{near}', if that is meant", model.line(field)
                )


def _has_file(model: Model, names: frozenset[str]) -> bool:
    return any(part in names for file in model.files for part in file.split("/")[2:3])


def batch_size(repository: Repository) -> Iterator[Problem]:
    """Find batch sizes Triton refuses, and batching where there are no batches."""
    for model in repository.parsed():
        config = model.config
        if config.max_batch_size < 0:
            yield Problem(
                model.file,
                f"max_batch_size is {config.max_batch_size}",
                "use 0 (no batching) or more",
                model.line("max_batch_size"),
            )
        if config.HasField("dynamic_batching") and config.max_batch_size == 0:
            yield Problem(
                model.file,
                "dynamic_batching needs batches, and max_batch_size is 0",
                "remove it, or use 1 or more",
                model.line("dynamic_batching"),
            )
        for preferred in config.dynamic_batching.preferred_batch_size:
            if not 0 < preferred <= max(config.max_batch_size, 1):
                yield Problem(
                    model.file,
                    f"preferred_batch_size {preferred} exceeds max_batch_size {config.max_batch_size}",
                    f"use at most {config.max_batch_size}",
                    model.line("dynamic_batching", "preferred_batch_size"),
                )


RULES: dict[str, Rule] = {
    "unfilled": Rule(
        "error", unfilled, "`${…}`, `{{`, `{%` left over from a template",
        "Outside of quotes the text cannot be parsed and the server exits. In quotes the C++ backend mostly warns and takes a default, so that "
        "the server runs with other values than were meant; a few keys stop it (Triton specification 1.7). Comments and the texts of a user "
        "(`system_prompt`, `stop_words`) may hold anything.",
        "Render the repository with a value for every name. `--fix` removes those of which the backend takes the default anyway.",
    ),
    "syntax": Rule(
        "error", readable, "a `config.pbtxt` Triton cannot read, with line and column",
        "The file is parsed with Triton's own protobuf messages; the server agreed in every case that was tried (Triton specification 7.2). A server exits on it.",
        "Correct the line. Usual causes: a value without quotes, `True` in quotes, a comma at the end of a list, `//` for a comment, a byte order mark "
        "(which `--fix` removes).",
    ),
    "stray-folder": Rule(
        "error", stray, "folders that are no models",
        "The server says `Could not determine backend for model 'docs'` and exits; hidden folders, `.git` and `__pycache__` are taken for models, too (seen with Triton 2.51).",
        "Move the folder out of the repository.",
    ),
    "name-differs": Rule(
        "error", name_differs, "a model named unlike its folder",
        "The server says `directory name must equal model name` and does not load it (Triton specification 7.3). No name at all is fine.",
        "Make them equal; `--fix` writes the folder's name into the file.",
    ),
    "no-version": Rule(
        "error", has_version, "a model without a version folder, or without the version that its policy names",
        "`at least one version must be available under the version policy`: also an ensemble needs a folder with a number, which may be empty. "
        "git drops empty folders; put a hidden file in (Triton specification 1, 7.3).",
        "Create the folder `1`.",
    ),
    "no-model-file": Rule(
        "error", has_model_file, "a Python model without `model.py`",
        "The server does not refuse it: it hangs, for more than a minute (Triton specification 7.3).",
        "Put the model's code there, or name it in `default_model_filename`.",
    ),
    "no-backend": Rule(
        "error", has_backend, "a model that names neither backend nor platform, or a misspelt one",
        "Triton does not know what to run it with, unless a file name of the model tells: `unable to find backend library`, `unexpected platform type`. An ensemble needs its "
        "platform, too (seen with Triton 2.51).",
        "Add `backend`, or correct its name; of an ensemble `platform: \"ensemble\"`.",
    ),
    "batch-size": Rule(
        "error", batch_size, "batch sizes Triton refuses, and dynamic batching where there are no batches",
        "The server refuses a negative size and a preferred size above the largest. It accepts dynamic batching without batches, which does nothing "
        "(Triton specification 7.3).",
        "Use sizes from 0 to `max_batch_size`; with 0 remove `dynamic_batching`.",
    ),
}  # fmt: skip
