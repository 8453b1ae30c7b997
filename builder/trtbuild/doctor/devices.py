"""Whether the device lists of a repository's models fit the GPUs: the right count, in range, disjoint (field report LM06)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtbuild.doctor.finding import Finding, Status
from trtbuild.doctor.subject import ServedModel
from trtbuild.nvidia import Gpus


def device_findings(models: Sequence[ServedModel], gpus: Gpus) -> Iterator[Finding]:
    """Yield what is wrong with `gpu_device_ids`, or how the numbers are to be read.

    Args:
        models: those that need GPUs.
        gpus: with a driver that is not known the numbers are checked among themselves only.
    """
    owners: dict[int, list[str]] = {}
    problems = []
    for model in models:
        for number, ids in enumerate(model.devices):
            label = model.name if len(model.devices) == 1 else f"{model.name}, instance {number}"
            if len(ids) != model.world_size:
                problems.append(f"{label} lists {len(ids)} GPUs ({_join(ids)}) and has {model.world_size} ranks")
            if repeated := sorted({each for each in ids if ids.count(each) > 1}):
                problems.append(f"{label} lists GPU {_join(repeated)} more than once")
            outside = [each for each in ids if each < 0 or (gpus.devices and each >= len(gpus.visible))]
            if outside:
                problems.append(f"{label} lists GPU {_join(outside)}; there are 0 to {len(gpus.visible) - 1}")
            for each in () if model.shares else dict.fromkeys(ids):
                owners.setdefault(each, []).append(label)
    problems += [f"GPU {each} is listed by {' and '.join(who)}" for each, who in sorted(owners.items()) if len(who) > 1]
    remap = ""
    if gpus.restriction is not None and owners:
        remap = f"; CUDA_VISIBLE_DEVICES={gpus.restriction} renumbers: " + ", ".join(f"{position} is GPU {device.index}" for position, device in enumerate(gpus.visible))  # fmt: skip
    if problems:
        hint = "give every instance as many GPUs as it has ranks, each GPU to one instance only, numbered as CUDA_VISIBLE_DEVICES leaves them"
        yield _finding("fail", "; ".join(problems) + remap, hint)
    elif owners:
        listed = "; ".join(f"{model.name} on {_join(ids)}" for model in models for ids in model.devices)
        yield _finding("ok", listed + remap)
    elif sum(not model.shares for model in models) > 1:
        yield _finding(
            "warn",
            f"{', '.join(model.name for model in models)} name no GPUs, so all begin at GPU 0",
            "set gpu_device_ids for each, e.g. '0,1' and '2,3'",
        )


def _join(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids))


def _finding(status: Status, detail: str, remedy: str = "") -> Finding:
    return Finding("gpu_device_ids", status, detail, remedy, "artifact")
