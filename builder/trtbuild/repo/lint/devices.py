"""Rules about the GPUs of every instance: as many as its engine has ranks, its own, and there (field report LM06)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trtbuild.repo.lint.findings import Problem, Rule, Severity
from trtbuild.repo.lint.launch_files import LaunchFile
from trtbuild.repo.lint.repository import CORE, Model, Repository
from trtbuild.repo.lint.values import DEVICES, devices

_VISIBLE = (
    (
        "CUDA_VISIBLE_DEVICES",
        re.compile(r"\bCUDA_VISIBLE_DEVICES[=:]\s*[\"']?(\d+(?:,\d+)*)[\"']?(?=\s|$)", re.MULTILINE),
    ),
    ("--gpus", re.compile(r"--gpus[\s=]+[\"']*device=(\d+(?:,\d+)*)")),
)


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a model runs.

    Attributes:
        model: its name, with its repository where that is another one.
        groups: GPUs of every instance.
        is_stated: whether the configuration says so; otherwise it begins at GPU 0.
    """

    model: str
    groups: tuple[tuple[int, ...], ...]
    is_stated: bool


def device_ids(repository: Repository) -> Iterator[Problem]:
    """Find lists of GPUs that do not fit the instances, or the engine."""
    for model in repository.parsed():
        text = model.values.get(DEVICES, "")
        groups = devices(text) if text else None
        count = sum(max(group.count, 1) for group in model.config.instance_group) or 1
        line = model.parameter_line(DEVICES)
        engine = repository.facts.engines.get(model.folder)
        world = engine.artifact.world_size if engine is not None and engine.artifact is not None else None
        if groups is None:
            if count > 1 and not text and (model.runs_engine or model.folder == CORE):
                yield Problem(
                    model.file,
                    f"{count} instances, and no {DEVICES}: all would run on the same GPUs",
                    f'set {DEVICES} to one list for each, e.g. "0,1;2,3"',
                    model.line("instance_group"),
                )
            continue
        if len(groups) != count:
            yield Problem(
                model.file,
                f"{DEVICES} '{text}' has {len(groups)} list(s), and there are {count} instance(s)",
                "give each instance a list",
                line,
            )
        for group in groups:
            if len(set(group)) != len(group):
                yield Problem(model.file, f"{DEVICES} '{text}' names a GPU twice for one instance", "name each once", line)  # fmt: skip
            if world is not None and len(group) != world:
                yield Problem(
                    model.file,
                    f"{DEVICES} '{text}' gives an instance {len(group)} GPU(s), and the engine has {world} rank(s)",
                    f"name {world} for each",
                    line,
                )


def devices_overlap(repository: Repository) -> Iterator[Problem]:
    """Find GPUs that two instances or two models would share, of this repository or of another one on the same machine; a draft model may lie on its target's."""
    taken: dict[int, Placed] = {}
    drafts = {model.values.get("tensorrt_llm_draft_model_name") for model in repository.parsed()}
    for path, models in repository.facts.beside.items():
        for each in _placed(repository, models, f" of {path}"):
            taken |= dict.fromkeys((number for group in each.groups for number in group), each)
    for model in (each for each in repository.parsed() if each.folder not in drafts):
        for each in _placed(repository, [model]):
            owners: dict[int, Placed] = {}
            for group in each.groups:
                owners |= {number: taken[number] for number in group if number in taken}
                taken |= dict.fromkeys(group, each)
            if owners:
                names = sorted({"another instance" if owner is each else owner.model for owner in owners.values()})
                stated = each.is_stated and all(owner.is_stated for owner in owners.values())
                said = f"{DEVICES}:" if each.is_stated else f"without {DEVICES} it begins at GPU 0;"
                severity: Severity | None = None if stated else "warning"
                yield Problem(
                    model.file,
                    f"{said} GPU {', '.join(map(str, sorted(owners)))} is also that of {', '.join(names)}",
                    "give each its own GPUs; ids count from 0 within CUDA_VISIBLE_DEVICES",
                    model.parameter_line(DEVICES),
                    severity=severity,
                )


def devices_missing(repository: Repository) -> Iterator[Problem]:
    """Find GPUs that the server does not see."""
    count, origin = _visible(repository)
    if count is None:
        return
    for model in repository.parsed():
        for each in _placed(repository, [model]):
            outside = sorted({number for group in each.groups for number in group if number >= count})
            if outside:
                wants = f"{DEVICES} names GPU" if each.is_stated else "its ranks need GPU"
                yield Problem(
                    model.file,
                    f"{wants} {', '.join(map(str, outside))}, and the server sees 0 to {count - 1} ({origin})",
                    "name GPUs that are there; ids count from 0 within CUDA_VISIBLE_DEVICES, so 4,5,6,7 become 0 to 3",
                    model.parameter_line(DEVICES),
                )


def _placed(repository: Repository, models: Iterable[Model], suffix: str = "") -> Iterator[Placed]:
    """Yield where models run that are known to need GPUs."""
    for model in models:
        groups = devices(model.values.get(DEVICES, "")) if model.values.get(DEVICES) else None
        if groups is not None and (model.runs_engine or model.folder == CORE):
            yield Placed(model.folder + suffix, tuple(map(tuple, groups)), True)
        elif groups is None and model.runs_engine and not model.values.get(DEVICES):
            engine = repository.facts.engines.get(model.folder) if not suffix else None
            world = engine.artifact.world_size if engine is not None and engine.artifact is not None else 1
            yield Placed(model.folder + suffix, (tuple(range(world)),), False)


def _visible(repository: Repository) -> tuple[int | None, str]:
    """Return how many GPUs the server sees and who says so; None when nobody does, or not everybody the same."""
    if repository.facts.gpus is not None:
        return repository.facts.gpus, "--gpus"
    said = {
        (len(found[1].split(",")), f"{name}={found[1]} in {file.name}")
        for file in repository.launch_files
        if _is_about(file)
        for name, pattern in _VISIBLE
        for found in pattern.finditer(file.text)
    }
    return next(iter(said)) if len(said) == 1 else (None, "")


def _is_about(file: LaunchFile) -> bool:
    return file.starts_server and file.names_repository


RULES: dict[str, Rule] = {
    "device-ids": Rule(
        "error", device_ids, "`gpu_device_ids` that do not fit the instances or the engine's ranks",
        "The k-th instance takes the k-th list, modulo their number; each needs as many GPUs as the engine has ranks, tp times pp. The llmapi model refuses another "
        "number of lists (Triton specification 1.8, 2.4, 7.4; field report LM06).",
        "One list for each instance, `;` between lists: `0,1;2,3`.",
    ),
    "devices-overlap": Rule(
        "error", devices_overlap, "GPUs that two instances or models would share, a draft model apart, also with a repository that is served beside it (`--beside`)",
        "Each takes its share of free memory for the KV cache, and the second finds none. A model without `gpu_device_ids` begins at GPU 0, of which a warning is made "
        "(field report LM06).",
        "Give each its own. With CUDA_VISIBLE_DEVICES=4,5,6,7 ids count from 0 to 3.",
    ),
    "devices-missing": Rule(
        "error", devices_missing, "GPUs that the server does not see",
        "The backend cuts the list off there without a word, or the model does not load. How many there are is said by `--gpus`, or by CUDA_VISIBLE_DEVICES or `--gpus device=` in a "
        "launch file that names the repository; ids count within them (Triton specification 1.8, field report LM06).",
        "Name GPUs from 0 on.",
    ),
}  # fmt: skip
