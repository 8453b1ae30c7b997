"""Rules about the `parameters` of a model: what is there, twice or not at all, and what its backend makes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator

from trtbuild.repo.lint import edits
from trtbuild.repo.lint.findings import Problem, Rule
from trtbuild.repo.lint.repository import CORE, Model, Repository
from trtbuild.repo.lint.values import FLAGS, wrong
from trtbuild.trtllm.backend_parameters import (
    BACKEND_PARAMETERS,
    RENAMINGS,
    find_parameter,
    nearest,
)

#: Parameters that the stock Python models beside the core read, and those of ours (Triton specification 1.1, 1.3, 1.5).
PYTHON_PARAMETERS: dict[str, tuple[str, ...]] = {
    "preprocessing": ("tokenizer_dir", "add_special_tokens", "multimodal_model_path", "gpt_model_path", "max_num_images", "hf_model_path",
                      "chat_template", "system_prompt", "stop_words", "vocab_size", "max_seq_len"),
    "postprocessing": ("tokenizer_dir", "skip_special_tokens", "vocab_size"),
    "tensorrt_llm_bls": ("accumulate_tokens", "tensorrt_llm_model_name", "tensorrt_llm_draft_model_name", "multimodal_encoders_name",
                         "exclude_input_in_output", "stop_words", "cancellation_check_period_ms", "max_draft_len", "draft_logits"),
}  # fmt: skip
#: Flags of Python models -> what they take besides true and false.
PYTHON_FLAGS: dict[str, tuple[str, ...]] = {
    "add_special_tokens": (), "skip_special_tokens": (), "accumulate_tokens": (), "draft_logits": (), "chat_template": ("messages",),
}  # fmt: skip
#: Those that are whole numbers, and those of ours that are JSON lists; the models do not load with anything else.
PYTHON_NUMBERS = frozenset(["vocab_size", "max_seq_len", "max_num_images", "cancellation_check_period_ms"])
PYTHON_LISTS = frozenset(["stop_words"])
#: Models that do not load without a folder of a tokenizer.
NEEDS_TOKENIZER = frozenset(["preprocessing", "postprocessing"])
#: Parameters that must all be there when decoding_mode is lookahead.
LOOKAHEAD = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")
_MAY_BE_EMPTY = frozenset(each.name for each in BACKEND_PARAMETERS if each.key_required_since and each.name != "gpt_model_type")  # fmt: skip
#: How near an unknown name must be for a Python model, of which nobody knows everything that it reads.
_TYPO = 0.86


def empty(repository: Repository) -> Iterator[Problem]:
    """Find parameters that are there without a value."""
    for model in repository.parsed():
        for key, value in model.values.items():
            may_be_empty = key in _MAY_BE_EMPTY and model.role not in NEEDS_TOKENIZER
            if not value and not may_be_empty and (model.runs_engine or model.role or model.folder == CORE):
                known = find_parameter(key) if model.runs_engine else None
                node = next((node for _, node in model.parameter_nodes(key)), None)
                is_safe = known is not None and known.on_failure == "default" and known.key_required_since is None
                yield Problem(
                    model.file,
                    f"parameter '{key}' is empty",
                    "give it a value, or leave the parameter out",
                    model.line_of(node),
                    edits.remove(model, node, f"remove '{key}', so that the default holds") if is_safe else None,
                )


def duplicate(repository: Repository) -> Iterator[Problem]:
    """Find parameters given twice, of which the last one silently wins."""
    for model in repository.parsed():
        seen: dict[str, list[object]] = {}
        nodes = list(model.parameter_nodes())
        for key, _ in nodes:
            seen.setdefault(key, []).append(key)
        for key in (key for key, found in seen.items() if len(found) > 1):
            first = next(node for name, node in nodes if name == key)
            yield Problem(
                model.file,
                f"parameter '{key}' is given {len(seen[key])} times",
                "keep one",
                model.line_of(first),
                edits.remove(model, first, f"remove the first '{key}': the last one counts"),
            )


def unknown(repository: Repository) -> Iterator[Problem]:
    """Find keys that the backend does not read, or that look like a misspelling of one that the model reads."""
    for model in repository.parsed():
        renamed = {each.old for each in RENAMINGS if each.model in (model.folder, CORE)}
        known = PYTHON_PARAMETERS.get(model.role, ())
        for key in model.values:
            if model.runs_engine and find_parameter(key) is None:
                near = nearest(key)
                yield _unknown(model, key, near, None if near else "warning")
            elif not model.runs_engine and known and key not in (*known, *renamed):
                near = nearest(key, known, cutoff=_TYPO)
                if near and near not in model.values:
                    yield _unknown(model, key, near, "warning")


def _unknown(model: Model, key: str, near: str | None, severity: object) -> Problem:
    return Problem(
        model.file,
        f"the backend reads no parameter '{key}': it has no effect"
        if model.runs_engine
        else f"parameter '{key}' is not one that this model is known to read",
        f"write '{near}', if that is meant" if near else "remove it",
        model.parameter_line(key),
        severity="warning" if severity == "warning" else None,
    )


def renamed(repository: Repository) -> Iterator[Problem]:
    """Find keys that have another name since a release."""
    release = repository.facts.release
    for model in repository.parsed():
        for each in RENAMINGS:
            is_model = model.folder == each.model if each.model != CORE else model.runs_engine
            if not is_model or each.old not in model.values:
                continue
            renaming = f"parameter '{each.old}' is '{each.new}' since TensorRT-LLM {each.since}"
            if release is None and each.model != CORE:
                yield Problem(model.file, renaming, f"write '{each.new}', unless an older release serves this",
                              model.parameter_line(each.old), severity="warning")  # fmt: skip
            elif release is None or each.is_made_by(release):
                node = next((node for _, node in model.parameter_nodes(each.old)), None)
                edit = edits.set_value(
                    node.first("key") if node else None, each.new, f"rename '{each.old}' to '{each.new}'"
                )
                yield Problem(model.file, f"{renaming}: the old name has no effect", f"write '{each.new}'", model.line_of(node),
                              edit if each.new not in model.values else edits.remove(model, node, f"remove '{each.old}'"))  # fmt: skip


def missing(repository: Repository) -> Iterator[Problem]:
    """Find keys without which a model does not load."""
    release = repository.facts.release
    for model in repository.parsed():
        values = model.values
        if model.role in NEEDS_TOKENIZER and "tokenizer_dir" not in values:
            yield Problem(model.file, "parameter 'tokenizer_dir' is missing", "name the folder of the tokenizer")
        if not model.runs_engine:
            continue
        for each in BACKEND_PARAMETERS:
            is_required = each.name == "gpt_model_type" or (release is not None and each.is_key_required_by(release))
            if is_required and each.name not in values:
                line = f'parameters {{ key: "{each.name}" value {{ string_value: "" }} }}'
                yield Problem(
                    model.file,
                    f"parameter '{each.name}' is missing: TensorRT-LLM{f' {release}' if release else ''} does not load the model without the key",
                    f"give it {'one of ' + ', '.join(each.allowed) if each.name == 'gpt_model_type' else 'a value, or an empty one'}",
                    edit=None if each.name == "gpt_model_type" else edits.append(model, line, f"add an empty '{each.name}'"),
                )  # fmt: skip
        if not (values.get("gpt_model_path") or values.get("encoder_model_path")):
            yield Problem(
                model.file,
                "neither 'gpt_model_path' nor 'encoder_model_path' names an engine",
                "set gpt_model_path to the folder that trtllm-build wrote",
            )
        if values.get("decoding_mode") == "lookahead":
            for key in (key for key in LOOKAHEAD if not values.get(key)):
                yield Problem(
                    model.file,
                    f"decoding_mode is lookahead, and '{key}' is missing",
                    f"set {', '.join(LOOKAHEAD)}",
                    model.parameter_line("decoding_mode"),
                )


def unread(repository: Repository) -> Iterator[Problem]:
    """Find keys that the release does not read, although another one does, or that have no effect in any."""
    release = repository.facts.release
    renamed_keys = {each.old for each in RENAMINGS}
    for model in repository.engine_models():
        for key in model.values:
            parameter = find_parameter(key)
            if parameter is None or key in renamed_keys:
                continue
            node = next((node for _, node in model.parameter_nodes(key)), None)
            if parameter.on_failure == "ignored":
                edit = edits.remove(model, node, f"remove '{key}'")
                yield Problem(model.file, f"parameter '{key}' has no effect", "remove it", model.line_of(node), edit)
            elif release is not None and not parameter.is_read_by(release):
                since = f"from {parameter.since} on" if parameter.until is None else f"before {parameter.until}"
                yield Problem(
                    model.file,
                    f"TensorRT-LLM {release} does not read '{key}': releases {since} do",
                    "remove it, or serve with such a release",
                    model.line_of(node),
                )


def value(repository: Repository) -> Iterator[Problem]:
    """Find values that the backend does not take, or takes for something else, mostly without more than a line in its log."""
    for model in repository.parsed():
        is_core = model.runs_engine or (model.folder == CORE and "gpt_model_type" in model.values)
        for key, text in model.values.items():
            if not text or "${" in text:
                continue
            parameter = find_parameter(key) if is_core else None
            problem = wrong(parameter, text) if parameter is not None else ""
            if model.role in PYTHON_PARAMETERS:
                problem = problem or _wrong_for_python(key, text)
            if problem:
                yield Problem(
                    model.file,
                    f"{key} = '{text}' {problem}",
                    "write one that is allowed" if parameter is None or not parameter.allowed else f"use {', '.join(parameter.allowed)}",
                    model.parameter_line(key),
                )  # fmt: skip


def _wrong_for_python(key: str, text: str) -> str:
    """Return what is wrong with a value of the Python models beside the core; empty when it is as it should be."""
    if key in PYTHON_FLAGS and text.lower() not in (*FLAGS, *PYTHON_FLAGS[key]):
        return "is no boolean; the model warns and takes true"
    if key in PYTHON_NUMBERS and not (text.isascii() and text.strip().isdigit()):
        return "is no whole number; the model does not load"
    if key in PYTHON_LISTS and not _is_list(text):
        return "is no JSON list; the model does not load"
    return ""


def _is_list(text: str) -> bool:
    try:
        return isinstance(json.loads(text), list)
    except (ValueError, RecursionError):
        return False


RULES: dict[str, Rule] = {
    "empty-parameter": Rule(
        "error", empty, "parameters without a value",
        "The server accepts them; what the backend makes of an empty text is rarely what was meant. `tokenizer_dir`, `guided_decoding_backend` and "
        "`xgrammar_tokenizer_info_path` of the C++ backend may be empty: their keys must exist (Triton specification 1.7).",
        "Give it a value, or leave it out; `--fix` removes those of which the backend takes the default anyway.",
    ),
    "duplicate-parameter": Rule(
        "error", duplicate, "parameters given twice", "The last one wins without a word (Triton specification 7.3).",
        "Keep one; `--fix` keeps the last.",
    ),
    "unknown-parameter": Rule(
        "error", unknown, "keys that the C++ backend does not read; the nearest one that it reads is named",
        "The backend passes over them, so that a misspelt key means the default of the right one (Triton specification 1.8). A warning where no known key is "
        "near, and for Python models, which may read more than is known.",
        "Write the key that is meant, or remove it.",
    ),
    "renamed-parameter": Rule(
        "error", renamed, "keys that have another name since a release",
        "`worker_path` is `executor_worker_path` since 0.10; `visual_model_path` of preprocessing is `multimodal_model_path` since 0.19 (Triton specification 3.3).",
        "Write the new name; `--fix` does.",
    ),
    "missing-parameter": Rule(
        "error", missing, "keys without which a model does not load",
        "`Cannot find parameter with name: …`: the guided-decoding keys must exist since 0.19, even empty; `gpt_model_type` always must have a value, and so must "
        "the path of an engine, the tokenizer of pre- and postprocessing, and all three sizes for lookahead (Triton specification 1.7, 1.8).",
        "Add it; `--fix` adds those that may be empty.",
    ),
    "unread-parameter": Rule(
        "warning", unread, "keys that the stated release does not read, or that have no effect in any",
        "They are passed over without a word (Triton specification 1.8, 3.3).",
        "Remove it, or serve with a release that reads it; `--fix` removes those without effect.",
    ),
    "parameter-value": Rule(
        "error", value, "values that the backend drops, cuts short or takes for something else",
        "A failed conversion is a warning in the server's log and the default: `yes` is no boolean, `1e9` as a number is 1, `4abc` is 4, a wrong list of devices is cut "
        "off at the wrong entry. The stock Python models take any flag that they cannot read for true (Triton specification 1.1, 1.8).",
        "Write one of the values that the message lists.",
    ),
}  # fmt: skip
