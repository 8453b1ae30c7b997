"""Which GPUs a server and its models get: lists that were typed, checked and renumbered (field report LM06)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trtbuild.doctor.devices import device_findings
from trtbuild.doctor.subject import ServedModel
from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.nvidia import Gpus

_LIST = re.compile(r"\d+(,\d+)*")


@dataclass(frozen=True, slots=True)
class Assignment:
    """The GPUs of one server.

    Attributes:
        visible: numbers on the machine, in the order of CUDA_VISIBLE_DEVICES; empty: nothing was said.
        renumbered: model -> numbers as the server sees them.
    """

    visible: tuple[int, ...] = ()
    renumbered: Mapping[str, tuple[int, ...]] | None = None

    def describe(self) -> str:
        """Return how the GPUs are renumbered, by CUDA_VISIBLE_DEVICES or by a container, for people."""
        if not self.visible:
            return ""
        pairs = ", ".join(f"GPU {number} is {position}" for position, number in enumerate(self.visible))
        return f"--gpus {','.join(map(str, self.visible))} renumbers; to the server {pairs}"


def assign(models: Sequence[ServedModel], typed: Sequence[str], *, count: int | None) -> Assignment:
    """Return which GPUs the models get.

    Args:
        models: those that need GPUs.
        typed: lists as `--gpus` takes them: "4,5", or "NAME=4,5" for each of several models.
        count: GPUs of the machine, None when not known.

    Raises:
        UsageError: a list is malformed, of the wrong length, repeats a GPU, overlaps another, or names one that is not there.
        TrtbuildError: `gpu_device_ids` in the repository contradict each other, the lists or the machine.
    """
    lists = _parse(models, typed)
    _check(models, lists, count)
    if not lists:
        _check_configured(models, count)
        return Assignment()
    visible = tuple(number for numbers in lists.values() for number in numbers)
    renumbered = {name: tuple(map(visible.index, numbers)) for name, numbers in lists.items()}
    _check_agreement(models, renumbered)
    return Assignment(visible, renumbered)


def total_ranks(model: ServedModel) -> int:
    """Return the GPUs of a model: its ranks, for each of its instances (Triton specification 4.3)."""
    return model.world_size * max(1, len(model.devices))


def _parse(models: Sequence[ServedModel], typed: Sequence[str]) -> dict[str, tuple[int, ...]]:
    names = [model.name for model in models]
    found: dict[str, tuple[int, ...]] = {}
    for text in typed:
        name, _, numbers = text.rpartition("=")
        if not name and len(names) == 1:
            name = names[0]
        if name not in names or name in found or not _LIST.fullmatch(numbers):
            forms = ", ".join(f"--gpus {each}=0,1" for each in names) if len(names) > 1 else "--gpus 0,1"
            raise UsageError(
                f"--gpus {text}: {'given twice' if name in found else 'not a list of GPUs for a model of the repository'}",
                hint=f"write e.g. {forms}" if names else "no model of this repository needs a GPU",
            )
        found[name] = tuple(map(int, numbers.split(",")))
    if found and (missing := [name for name in names if name not in found]):
        raise UsageError(f"--gpus says nothing about {', '.join(missing)}", hint="give a list for each model, or for none")  # fmt: skip
    return found


def _check(models: Sequence[ServedModel], lists: Mapping[str, tuple[int, ...]], count: int | None) -> None:
    problems, owners = [], dict[int, str]()
    ranks = {model.name: total_ranks(model) for model in models}
    for name, numbers in lists.items():
        if len(numbers) != ranks[name]:
            problems.append(f"{name} has {ranks[name]} ranks and gets {len(numbers)} GPUs")
        for number in numbers:
            if count is not None and number >= count:
                problems.append(f"{name} gets GPU {number}; there are 0 to {count - 1}")
            if number in owners:
                other = "more than once" if owners[number] == name else f"and so does {owners[number]}"
                problems.append(f"{name} gets GPU {number} {other}")
            owners.setdefault(number, name)
    if problems:
        raise UsageError("--gpus: " + "; ".join(dict.fromkeys(problems)), hint="one GPU for each rank, each GPU to one model only")  # fmt: skip


def _check_configured(models: Sequence[ServedModel], count: int | None) -> None:
    """Raise TrtbuildError unless the `gpu_device_ids` of the repository can be met as they are."""
    problems = [(each.detail, each.remedy) for each in device_findings(models, Gpus()) if each.status != "ok"]
    listed = {number for model in models for numbers in model.devices for number in numbers}
    if count is not None and (outside := sorted(number for number in listed if number >= count)):
        problems.append((f"gpu_device_ids list GPU {', '.join(map(str, outside))}; there are 0 to {count - 1}", "list GPUs that are there"))  # fmt: skip
    if problems:
        raise TrtbuildError("; ".join(text for text, _ in problems), hint=problems[0][1])


def _check_agreement(models: Sequence[ServedModel], renumbered: Mapping[str, tuple[int, ...]]) -> None:
    """Raise TrtbuildError where a model's `gpu_device_ids` are not what the lists make of them, or are missing and needed."""
    for model in models:
        configured = tuple(number for numbers in model.devices for number in numbers)
        if configured != renumbered[model.name] and (configured or len(models) > 1):
            size = model.world_size
            groups = [renumbered[model.name][at : at + size] for at in range(0, total_ranks(model), size)]
            wanted = ";".join(",".join(map(str, group)) for group in groups)
            said = ",".join(map(str, configured)) or "not set"
            raise TrtbuildError(
                f"gpu_device_ids of {model.name} are {said}; with these lists it has {wanted}: CUDA_VISIBLE_DEVICES renumbers from 0",
                hint=f'write gpu_device_ids "{wanted}" into {model.name}/config.pbtxt',
            )
