"""Rules about names, of models and of files: none may lead out of the repository (field report SE04)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from trtbuild.repo.lint.findings import Problem, Rule
from trtbuild.repo.lint.reading import is_link
from trtbuild.repo.lint.repository import Model, Repository

#: What Triton's own repositories use, and nothing that a file system gives a meaning (field report SE04).
MODEL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_DRIVE = re.compile(r"[A-Za-z]:")
#: Parameters of the BLS models that name another model; empty means "none", or the default of the first.
MEMBERS = ("tensorrt_llm_model_name", "tensorrt_llm_draft_model_name", "multimodal_encoders_name", "context_model_name", "generation_model_name")  # fmt: skip


def model_name(repository: Repository) -> Iterator[Problem]:
    """Find names, also of ensemble members, that could lead out of the repository."""
    for model in (each for each in repository.models.values() if not each.is_stray):
        for name in (model.folder, *_members(model)):
            if not MODEL_NAME.fullmatch(name):
                yield Problem(
                    model.file,
                    f"'{name}' is not allowed as a model name",
                    "use letters, digits, '_', '-' and '.', no dot first",
                    _line_of_name(model, name),
                )


def bls_member(repository: Repository) -> Iterator[Problem]:
    """Find BLS models that call a model the repository does not have, themselves, or an ensemble."""
    for model in repository.parsed():
        for key in MEMBERS:
            name = model.values.get(key, "")
            called = repository.models.get(name)
            if called is not None and (called is model or (called.config is not None and called.is_ensemble)):
                yield Problem(
                    model.file,
                    f"{key} is '{name}', which is {'the model itself' if called is model else 'an ensemble'}",
                    "name the model that runs the engine",
                    model.parameter_line(key),
                )
            if name and MODEL_NAME.fullmatch(name) and name not in repository.models:
                others = ", ".join(each for each in repository.models if each != model.folder)
                yield Problem(
                    model.file,
                    f"{key} is '{name}', which does not exist",
                    f"name one of: {others}",
                    model.parameter_line(key),
                )


def file_names(repository: Repository) -> Iterator[Problem]:
    """Find names of files in a configuration that lead out of the model's folder."""
    for model in repository.parsed():
        config = model.config
        named = [("default_model_filename", config.default_model_filename)]
        named += [("cc_model_filenames", name) for name in config.cc_model_filenames.values()]
        named += [("label_filename", tensor.label_filename) for tensor in config.output]
        for warmup in config.model_warmup:
            named += [("input_data_file", each.input_data_file) for each in warmup.inputs.values()]
        for field, name in named:
            if name and leads_out(name):
                yield Problem(
                    model.file,
                    f"{field} '{name}' leads out of the model's folder",
                    "name a file in the folder of the version",
                )


def links(repository: Repository) -> Iterator[Problem]:
    """Find symbolic links that lead out of the repository."""
    root = os.path.realpath(repository.path)
    for model in repository.models.values():
        folder = repository.path / model.folder
        places = [folder, folder / "config.pbtxt", *(folder / version for version in model.versions)]
        linked: set[Path] = set()
        for place in (*places, *(repository.path / name for name in model.files)):
            if not is_link(place) or not linked.isdisjoint(place.parents):
                continue
            linked.add(place)
            target = Path(os.path.realpath(place))
            if is_link(target):  # of a loop a link remains
                what = "it is a link that leads to itself"
            elif not target.is_relative_to(root):
                what = f"it is a link to {target}, outside of the repository"
            else:
                continue
            yield Problem(place.relative_to(repository.path).as_posix(), what, "copy what it leads to")


def leads_out(name: str) -> bool:
    """Say whether a file name is absolute, or walks up."""
    parts = PurePosixPath(name.replace("\\", "/")).parts
    return ".." in parts or name.startswith(("/", "\\")) or "\0" in name or _DRIVE.match(name) is not None


def _members(model: Model) -> list[str]:
    if model.config is None:
        return []
    steps = [step.model_name for step in model.config.ensemble_scheduling.step]
    called = [model.values[key] for key in MEMBERS if model.values.get(key) and "${" not in model.values[key]]
    return [*steps, *called]


def _line_of_name(model: Model, name: str) -> int:
    text = model.text or ""
    steps = model.tree.all("ensemble_scheduling", "step", "model_name")
    return model.line_of(next((node for node in steps if node.text(text) == name), None))


RULES: dict[str, Rule] = {
    "model-name": Rule(
        "error", model_name, "names of models or of members that could lead out of the repository",
        "Servers have read outside of the repository for a member named `../x` (field report SE04). Allowed is `[A-Za-z0-9_.-]`, no dot first.",
        "Rename the model.",
    ),
    "file-name": Rule(
        "error", file_names, "names of files in a configuration that lead out of the model's folder",
        "`default_model_filename`, `cc_model_filenames`, `label_filename` and `input_data_file` are joined to the model's folder; one that is absolute or "
        "has `..` reads files of the server that are not the model's (field report SE04).",
        "Put the file into the folder of the version and name it without a path.",
    ),
    "link-leads-out": Rule(
        "warning", links, "symbolic links that lead out of the repository",
        "A container that mounts only the repository does not see what they lead to; and who can write there changes what the server runs (field report SE04).",
        "Copy what the link leads to.",
    ),
    "bls-member": Rule(
        "error", bls_member, "a BLS model that calls a model that does not exist, itself, or an ensemble",
        "Every request to it fails; loading does not show it.",
        "Name a model of the repository.",
    ),
}  # fmt: skip
