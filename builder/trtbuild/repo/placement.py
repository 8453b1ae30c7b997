"""Where the instances of an engine run, and in which process mode: parameters, environment and number of MPI ranks.

Source: Triton specification 1.8 (gpu_device_ids, participant_ids), 4.2 and 4.3 (leader and orchestrator). A wrong entry of
gpu_device_ids cuts the list short without a word there, so what does not fit is an error here (field report LM06).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from trtbuild.errors import UsageError
from trtbuild.spec import Deployment

Groups = tuple[tuple[int, ...], ...]
_BOTH = "serving.%s of target and draft model"


@dataclass(frozen=True, slots=True)
class Placement:
    """How an engine's instances are started.

    Attributes:
        instances: instances of `tensorrt_llm`.
        gpu_device_ids: of each instance, as the backend reads it; None leaves it to the backend.
        participant_ids: MPI ranks of each instance's workers; None when nobody starts them beforehand.
        environment: variables that the server needs.
        world_size: MPI ranks to start the server with.
    """

    instances: int
    gpu_device_ids: str | None
    participant_ids: str | None
    environment: dict[str, str]
    world_size: int


def placement(deployment: Deployment) -> Placement:
    """Return how the engine of a deployment is placed.

    Raises:
        UsageError: a list of devices or ranks does not fit the engine, the GPUs or the mode.
    """
    serving, ranks = deployment.serving, deployment.parallel.tp_size * deployment.parallel.pp_size
    devices = _groups(serving.gpu_device_ids, "serving.gpu_device_ids")
    _check(devices, "serving.gpu_device_ids", ranks, "GPU")
    count = deployment.hardware.count
    if count is not None and (beyond := sorted({each for group in devices for each in group if each >= count})):
        raise UsageError(
            f"serving.gpu_device_ids names GPU {', '.join(map(str, beyond))}, and hardware.count is {count}",
            hint=f"ids go from 0 to {count - 1}; they count the GPUs that the server sees, so CUDA_VISIBLE_DEVICES renumbers them",
        )
    participants = _groups(serving.participant_ids, "serving.participant_ids")
    _check(participants, "serving.participant_ids", ranks, "rank")
    is_orchestrator, instances = serving.mode == "orchestrator", max(len(devices), 1)
    if not is_orchestrator:
        _check_leader(instances, bool(participants))
    if participants and len(participants) != instances:
        raise UsageError(
            f"serving.participant_ids is for {len(participants)} instances, serving.gpu_device_ids for {instances}",
            hint="write one group per instance in both, e.g. '1;2' and '0;1'",
        )
    if any(each == 0 for group in participants for each in group):
        raise UsageError("serving.participant_ids names rank 0, which is the orchestrator", hint="count workers from 1")
    environment = {"TRTLLM_ORCHESTRATOR": "1"} if is_orchestrator else {}
    if participants:
        environment["TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES"] = "0"
    workers = instances * ranks + 1 if participants else 1
    return Placement(instances, _text(devices), _text(participants), environment, workers if is_orchestrator else ranks)


def beside(target: Placement, draft: Placement, *, mode: str) -> Placement:
    """Return how the server is started that holds two engines (Triton specification 4.3: only an orchestrator does).

    A draft model has GPUs of its own, or lies on some of its target's; ranks are always its own.

    Raises:
        UsageError: the mode is leader, or they name some of the same GPUs or ranks, or only one of them names any.
    """
    require_room_for_two(mode)
    for name in ("gpu_device_ids", "participant_ids"):
        mine, its = (getattr(each, name) for each in (target, draft))
        if (mine is None) != (its is None):
            named, other = ("the target", "the draft model") if its is None else ("the draft model", "the target")
            raise UsageError(
                f"serving.{name} is set for {named} and not for {other}",
                hint="set it in both files, or in neither",
            )
    if target.participant_ids is not None:
        _check_disjoint(_together(target.participant_ids, draft.participant_ids), _BOTH % "participant_ids", "rank")
    if not lies_within(draft, target):
        _check_disjoint(_together(target.gpu_device_ids, draft.gpu_device_ids), _BOTH % "gpu_device_ids", "GPU")
    environment = {**target.environment, **draft.environment}
    workers = target.world_size + draft.world_size - 1 if target.participant_ids else 1
    instances = target.instances + draft.instances
    return Placement(instances, target.gpu_device_ids, target.participant_ids, environment, workers)


def require_room_for_two(mode: str) -> None:
    """Raise UsageError unless a server of a process mode can hold the engines of a target and its draft model."""
    if mode != "orchestrator":
        raise UsageError(
            f"serving.mode={mode} has one engine per server, and with a draft model there are two",
            hint="set serving.mode: orchestrator",
        )


def lies_within(draft: Placement, target: Placement) -> bool:
    """Return whether a draft model's GPUs are all GPUs of its target; where neither names any, both begin at GPU 0."""
    mine, its = ({each for group in _together(ids) for each in group} for ids in (target.gpu_device_ids, draft.gpu_device_ids))  # fmt: skip
    return its <= mine


def _together(*ids: str | None) -> Groups:
    return tuple(group for text in ids for group in _groups(text, ""))


def _check_leader(instances: int, has_participants: bool) -> None:
    if instances > 1:
        raise UsageError(
            f"serving.gpu_device_ids is for {instances} instances, and serving.mode=leader has one engine per server",
            hint="set serving.mode: orchestrator, or start one server per instance",
        )
    if has_participants:
        raise UsageError(
            "serving.participant_ids needs serving.mode: orchestrator",
            hint="leave participant_ids empty, or set the mode",
        )


def _groups(text: str | None, field: str) -> Groups:
    """Read "0,1;2,3"."""
    if text is None:
        return ()
    parts = [[item.strip() for item in group.split(",")] for group in text.split(";")]
    if not all(item.isascii() and item.isdigit() for group in parts for item in group):
        raise UsageError(
            f"{field} = '{text}' is no list of numbers",
            hint="write commas inside an instance and semicolons between: 0,1;2,3",
        )
    return tuple(tuple(int(item) for item in group) for group in parts)


def _check(groups: Groups, field: str, ranks: int, what: str) -> None:
    for group in groups:
        if len(group) != ranks:
            raise UsageError(
                f"{field} gives an instance {len(group)} {what}s ({','.join(map(str, group))}), and tp_size * pp_size is {ranks}",
                hint=f"name {ranks} for each instance",
            )
    _check_disjoint(groups, field, what)


def _check_disjoint(groups: Groups, field: str, what: str) -> None:
    shared = sorted(each for each, times in Counter(each for group in groups for each in group).items() if times > 1)
    if shared:
        raise UsageError(
            f"{field} names {what} {', '.join(map(str, shared))} more than once", hint="give every rank one of its own"
        )


def _text(groups: Groups) -> str | None:
    return ";".join(",".join(map(str, group)) for group in groups) or None
