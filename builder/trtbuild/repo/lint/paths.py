"""Rules about folders that a configuration names, as the server sees them: engines and tokenizers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from trtbuild.errors import TrtbuildError
from trtbuild.repo.lint.findings import Problem, Rule, Severity
from trtbuild.repo.lint.llmapi import settings
from trtbuild.repo.lint.reading import exists, is_file, is_folder
from trtbuild.repo.lint.repository import Model, Repository
from trtbuild.repo.tokenizer import check_tokenizer
from trtbuild.source import read_json
from trtbuild.trtllm.backend_parameters import BOOLEANS

#: Parameters that name a folder or a file. Not executor_worker_path, which is the container's own.
PATHS = ("gpt_model_path", "encoder_model_path", "tokenizer_dir", "multimodal_model_path", "visual_model_path", "hf_model_path",
         "lora_prefetch_dir", "xgrammar_tokenizer_info_path")  # fmt: skip
#: Those that name a file.
FILES = frozenset(["xgrammar_tokenizer_info_path"])
#: Keys of model.yaml that name a folder, or a model of the hub.
YAML_PATHS = ("model", "tokenizer")
#: A name on the hub: owner/name.
_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
#: End of a JSON file that is looked at.
_END_BYTES = 64
_TOKENIZER_MODELS = ("preprocessing", "postprocessing")


def relative(repository: Repository) -> Iterator[Problem]:
    """Find paths that are looked up on the hub, or in whatever folder the server was started in."""
    for model, key, text in _named(repository):
        if PurePosixPath(text).is_absolute():
            continue
        on_hub = _HUB.fullmatch(text) is not None and key in ("tokenizer_dir", "hf_model_path", "multimodal_model_path")
        yield Problem(
            model.file,
            f"{key} '{text}' is {'looked up on the hub when the server starts' if on_hub else 'no absolute path'}",
            "write the absolute path of the folder, as the server sees it",
            model.parameter_line(key),
            severity="warning" if on_hub else None,
        )
    for _, name, data, _ in settings(repository):
        for key, text in _yaml_paths(data):
            if not PurePosixPath(text).is_absolute() and not _HUB.fullmatch(text):
                yield Problem(name, f"{key} '{text}' is neither an absolute path nor a name on the hub", "write one of the two")  # fmt: skip


def missing(repository: Repository) -> Iterator[Problem]:
    """Find paths at which there is nothing."""
    for model, key, text in _named(repository):
        yield from _missing(repository, model.file, key, text, model.parameter_line(key))
    for _, name, data, _ in settings(repository):
        for key, text in _yaml_paths(data):
            yield from _missing(repository, name, key, text, 0)


def tokenizer(repository: Repository) -> Iterator[Problem]:
    """Find folders named as tokenizers from which none can be loaded."""
    seen: set[tuple[Path, bool]] = set()
    for model in repository.parsed():
        if model.role not in _TOKENIZER_MODELS:
            continue
        folder = _absolute(repository, model.values.get("tokenizer_dir", ""))
        asked = model.values.get("chat_template", "")
        chat = asked == "messages" or BOOLEANS.get(asked, False)
        if folder is None or not is_folder(folder) or (folder, chat) in seen or (folder, True) in seen:
            continue
        seen.add((folder, chat))
        message, fix = _unusable(folder, chat=chat, load=repository.facts.load_tokenizers)
        if message:
            yield Problem(model.file, message, fix, model.parameter_line("tokenizer_dir"))


def tokenizer_folders(repository: Repository) -> Iterator[tuple[str, int, Path]]:
    """Yield the file, its line and the folder of every tokenizer that the repository names and that is here."""
    for model, key, text in _named(repository):
        folder = _absolute(repository, text)
        if key == "tokenizer_dir" and folder is not None and is_folder(folder):
            yield model.file, model.parameter_line(key), folder
    for _, name, data, _ in settings(repository):
        for _, text in _yaml_paths(data):
            folder = _absolute(repository, text)
            if folder is not None and is_folder(folder):
                yield name, 0, folder


def _unusable(folder: Path, *, chat: bool, load: bool) -> tuple[str, str]:
    """Return why a tokenizer cannot be loaded and what to do; empty when it can. Code of its author is another rule's."""
    settings_file, file = folder / "tokenizer_config.json", folder / "tokenizer.json"
    try:
        if is_file(settings_file) and "auto_map" in read_json(settings_file):
            return "", ""
        check_tokenizer(folder, chat_template=chat)
        if is_file(file) and _is_cut_off(file):
            return f"{file} does not end as JSON does: it was cut off", "copy it again from the model"
    except TrtbuildError as error:
        return error.message, error.hint
    except OSError as error:
        return f"{folder} cannot be read: {error.strerror}", "check its permissions"
    if load and is_file(file):
        from tokenizers import Tokenizer

        try:
            Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises Exception itself, with its reason
            return f"{file} cannot be loaded: {error}", "copy it again from the model"
    return "", ""


def _is_cut_off(file: Path) -> bool:
    """Say whether a file does not end with a closing brace; reading all of a tokenizer takes longer than everything else."""
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - _END_BYTES))
        return not stream.read().rstrip().endswith(b"}")


def _missing(repository: Repository, file: str, key: str, text: str, line: int) -> Iterator[Problem]:
    if not PurePosixPath(text).is_absolute():
        return
    view = repository.facts.view
    place = view.find(text)
    # Without a map nobody knows that the server sees the same paths as we do.
    severity: Severity = "error" if view.here is not None else "warning"
    if place is None:
        yield Problem(file, f"{key} '{text}' lies outside of {view.there}, which is all that is mapped",
                      "mount its folder, or name one that is mounted", line, severity=severity)  # fmt: skip
    elif exists(place) and not is_folder(place) and key not in FILES:
        yield Problem(file, f"{key} '{text}' is a file", "name the folder that it lies in", line)
    elif not exists(place):
        where = f" ({place} here)" if view.here is not None else ""
        fix = "correct it" if view.here is not None else "correct it; if a container sees it there, say so with --path-map HERE=THERE"  # fmt: skip
        yield Problem(file, f"{key} '{text}'{where} does not exist", fix, line, severity=severity)


def _absolute(repository: Repository, text: str) -> Path | None:
    return repository.facts.view.find(text) if PurePosixPath(text).is_absolute() else None


def _named(repository: Repository) -> Iterator[tuple[Model, str, str]]:
    for model in repository.parsed():
        for key in PATHS:
            text = model.values.get(key, "")
            if text and "${" not in text:
                yield model, key, text


def _yaml_paths(data: object) -> Iterator[tuple[str, str]]:
    for key in YAML_PATHS:
        text = data.get(key) if isinstance(data, dict) else None
        if isinstance(text, str) and text:
            yield key, text


RULES: dict[str, Rule] = {
    "path-relative": Rule(
        "error", relative, "paths that are not absolute",
        "transformers takes a path that is no folder for a name on the hub and goes there to download it; an engine is looked for in the folder in which the server was started "
        "(field report CR10). A warning for `owner/name`, which may be meant.",
        "Write the absolute path as the server sees it.",
    ),
    "path-missing": Rule(
        "error", missing, "paths at which there is nothing, or a file instead of a folder, seen through `--path-map`",
        "The C++ backend makes a warning of an engine's path that does not exist, and fails later with another message (Triton specification 1.8; field report CR10). A warning "
        "without `--path-map`, since the server may see other folders than this machine.",
        "Correct the path, or mount the folder there.",
    ),
    "tokenizer": Rule(
        "error", tokenizer, "folders from which no tokenizer can be loaded: no files, Git LFS pointers, no end token, no chat template where one is used",
        "Both Python models fail when they start, or no answer ends (field reports CR10, CR11, TK12). Files are looked at, nothing is imported; `--load-tokenizer` also loads "
        "tokenizer.json with the library tokenizers.",
        "Copy the model's tokenizer files there.",
    ),
}  # fmt: skip
