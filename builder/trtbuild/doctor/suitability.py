"""Whether this machine can run an artifact: GPUs, memory, versions, backends, shared memory, ports.

A machine without GPUs is told what it lacks, and what could not be compared for that reason. What a container brings along (TensorRT-LLM,
mpirun) is no failure outside of one; the remedy names the image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from trtbuild.doctor.devices import device_findings
from trtbuild.doctor.finding import Finding, Status
from trtbuild.doctor.host import port_finding
from trtbuild.doctor.overview import driver_finding, link_finding, ulimit_findings
from trtbuild.doctor.subject import Subject
from trtbuild.doctor.survey import Survey
from trtbuild.doctor.system import SHM_FLOOR_BYTES
from trtbuild.manifest import worded
from trtbuild.trtllm.compatibility import compare, containers_with
from trtbuild.trtllm.versions import Container

_STATUS: dict[str, Status] = {"error": "fail", "warning": "warn", "notice": "warn"}
#: Target -> Triton backend of its core model.
_BACKEND = {"tensorrt": "tensorrtllm", "pytorch": "python", "reference": "python"}
#: Weights may take this share of the memory that is free; the rest is needed for activations and a KV cache, however small.
_WEIGHTS_SHARE = 0.9


def damage_findings(problems: Sequence[str]) -> Iterator[Finding]:
    """Yield one failed line about files that are missing or cut, and an engine of something else; nothing for an artifact that is whole."""
    if problems:
        yield _finding("contents", "fail", worded(problems), "copy the whole folder again, or run `trtbuild build` again: it does what is missing")  # fmt: skip


def suit(subject: Subject, facts: Survey) -> Iterator[Finding]:
    """Yield the findings about one artifact on this machine."""
    yield _artifact(subject)
    for note in subject.notes:
        yield _finding("note", "warn", note)
    needs_gpus = subject.target != "reference"
    for check in GPU_CHECKS if needs_gpus else CPU_CHECKS:
        yield from check(subject, facts)
    for check in COMMON_CHECKS:
        yield from check(subject, facts)


def _finding(name: str, status: Status, detail: str, remedy: str = "") -> Finding:
    return Finding(name, status, detail, remedy, "artifact")


def _artifact(subject: Subject) -> Finding:
    found, parts = subject.artifact, [f"{subject.kind}, target {subject.target}"]
    ranks = "rank" if subject.world_size == 1 else "ranks"
    parts.append(f"{subject.world_size} {ranks}")
    if found is not None:
        parts += [f"{sum(found.rank_bytes) / 2**30:.2f} GiB"] if found.rank_bytes else []
        parts += [f"built by TensorRT-LLM {found.tensorrt_llm}"] if found.tensorrt_llm else []
        parts += [f"TensorRT {found.tensorrt}"] if found.tensorrt else []
        parts += [f"SM{found.sm}"] if found.sm else []
    unbuilt = found is not None and found.kind == "checkpoint" and subject.target == "tensorrt"
    then = "it is no engine yet: build one with trtllm-build on the GPU that will serve it, or serve it with --target reference on a CPU"
    return _finding("artifact", "warn" if unbuilt else "ok", ", ".join(parts), then if unbuilt else "")


def _count(subject: Subject, facts: Survey) -> Iterator[Finding]:
    visible, needed = len(facts.gpus.visible), subject.world_size
    plural = "GPU" if needed == 1 else "GPUs"
    if visible >= needed:
        yield _finding("gpu count", "ok", f"{visible} visible, {needed} needed")
    elif not facts.gpus.devices:
        detail = facts.gpus.problem or "there is none here"
        yield _finding("gpu count", "fail", f"{needed} {plural} needed; {detail}", "run it on a machine that has them; in a container: docker run --gpus all")  # fmt: skip
    else:
        hidden = f", {len(facts.gpus.devices)} in the machine" if facts.gpus.restriction is not None else ""
        yield _finding("gpu count", "fail", f"{needed} {plural} needed, {visible} visible{hidden}", "one GPU per rank: add GPUs to CUDA_VISIBLE_DEVICES, or build for fewer ranks (tp_size x pp_size)")  # fmt: skip


def _versions(subject: Subject, facts: Survey) -> Iterator[Finding]:
    """Compare what can be; say what cannot."""
    sms = tuple(device.sm for device in facts.gpus.visible[: subject.world_size] if device.sm is not None)
    installed = facts.software.installed(sms)
    found = [each for each in compare(subject.artifact, installed) if each.rule not in ("label", "copies")]
    for each in found:
        yield _finding(each.rule, _STATUS[each.severity], each.message, each.remedy)
    if subject.sm is not None and sms and set(sms) != {subject.sm}:
        seen = ", ".join(f"SM{sm}" for sm in sorted(set(sms)))
        yield _finding("hardware.gpu", "warn", f"trtbuild.yaml says SM{subject.sm}, here is {seen}", "correct hardware.gpu, and plan again")  # fmt: skip
    engine = subject.artifact if subject.artifact and subject.artifact.kind == "engine" else None
    if engine is not None:
        unknown = [name for name, value in (("TensorRT", engine.tensorrt), ("kind of GPU", engine.sm)) if not value]
        if unknown:
            yield _finding("engine", "warn", f"it does not say which {' and which '.join(unknown)} built it", "serve it on the machine and in the image that built it")  # fmt: skip
        if not sms and engine.sm:
            yield _finding("architecture", "warn", f"built for SM{engine.sm}; not compared, there is no GPU here")
        if engine.tensorrt and not installed.tensorrt:
            yield _finding("tensorrt", "warn", f"built by TensorRT {engine.tensorrt}; not compared, there is none here", _pull(subject))  # fmt: skip
    if not installed.tensorrt_llm:
        yield _finding("tensorrt-llm", "warn", "not installed here", _pull(subject))
    elif subject.release is not None and engine is None and subject.release.version.numbers[:3] != _numbers(installed.tensorrt_llm):  # fmt: skip
        yield _finding("tensorrt-llm", "fail", f"trtbuild.yaml states {subject.release}, here is {installed.tensorrt_llm}", f"correct tensorrt_llm, or {_pull(subject)}")  # fmt: skip


def _numbers(version: str) -> tuple[int, ...]:
    from trtbuild.trtllm.versions import Version

    parsed = Version.parse(version)
    return parsed.numbers[:3] if parsed else ()


def _box(subject: Subject) -> Container | None:
    """Return the newest container that can run it, None when none is known."""
    engine = subject.artifact
    if engine is not None and (engine.tensorrt_llm or engine.tensorrt):
        return next(iter(containers_with(tensorrt_llm=engine.tensorrt_llm, tensorrt=engine.tensorrt)), None)
    return subject.needed_release.container if subject.needed_release else None


def _pull(subject: Subject) -> str:
    box = _box(subject)
    return f"run it in {box.image}" if box else "run it in a Triton container with TensorRT-LLM (`trtbuild versions`)"


def _driver(subject: Subject, facts: Survey) -> Iterator[Finding]:
    if facts.gpus.driver:
        yield driver_finding(facts.gpus, _box(subject), section="artifact", consumer="fail")


def _memory(subject: Subject, facts: Survey) -> Iterator[Finding]:
    sizes = subject.artifact.rank_bytes if subject.artifact else ()
    if not sizes:
        return
    if subject.artifact is not None and subject.artifact.kind == "model" and subject.world_size > 1:
        sizes = (-(-sum(sizes) // subject.world_size),) * subject.world_size
    largest = max(sizes)
    known = [(device, size) for device, size in zip(facts.gpus.visible, sizes, strict=False) if device.memory_bytes]
    if not known:
        yield _finding("gpu memory", "warn", f"the largest rank has {largest / 2**30:.2f} GiB of weights; not compared, no GPU memory is known here")  # fmt: skip
        return
    for device, size in known:
        total, free = device.memory_bytes or 0, device.free_bytes if device.free_bytes is not None else device.memory_bytes or 0  # fmt: skip
        detail = f"GPU {device.index}: {size / 2**30:.2f} GiB of weights, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free"  # fmt: skip
        if size > total:
            yield _finding("gpu memory", "fail", detail, "quantize, use more ranks, or a larger GPU (`trtbuild plan`)")
        elif size > _WEIGHTS_SHARE * free:
            yield _finding("gpu memory", "warn", detail, "stop what else uses this GPU; KV cache and activations need room too")  # fmt: skip
        else:
            yield _finding("gpu memory", "ok", detail)


def _several_ranks(subject: Subject, facts: Survey) -> Iterator[Finding]:
    """What matters as soon as ranks talk to each other: shared memory, connections, MPI."""
    if subject.world_size < 2:
        return
    size = facts.system.shm_bytes or 0
    low = size < SHM_FLOOR_BYTES
    detail = f"{size >> 20} MiB in /dev/shm" + (f", less than the {SHM_FLOOR_BYTES >> 20} MiB that {subject.world_size} ranks want: NCCL fails or ends in \"Bus error\"" if low else "")  # fmt: skip
    yield _finding("shared memory", "warn" if low else "ok", detail, "docker run --shm-size=2g, or --ipc=host; Kubernetes: emptyDir of medium Memory at /dev/shm" if low else "")  # fmt: skip
    if len(facts.gpus.visible) > 1:
        yield link_finding(facts.gpus, subject.world_size, section="artifact")
    if facts.system.mpirun:
        root = "; as root it needs --allow-run-as-root" if facts.system.is_root else ""
        yield _finding("mpirun", "ok", facts.system.mpirun + root)
    elif subject.target == "tensorrt":
        inside = facts.software.is_container
        yield _finding("mpirun", "fail" if inside else "warn", f"none; {subject.world_size} ranks are started by it", "use a Triton container with TensorRT-LLM, which brings it along")  # fmt: skip


def _backends(subject: Subject, facts: Survey) -> Iterator[Finding]:
    have, needed = facts.software.backends, {_BACKEND[subject.target], *subject.backends}
    if not have:
        yield _finding("triton backends", "warn", f"no Triton of a container here; needed: {', '.join(sorted(needed))}", _pull(subject))  # fmt: skip
    elif missing := sorted(needed - have):
        yield _finding("triton backends", "fail", f"missing: {', '.join(missing)}; there are {', '.join(sorted(have))}", f"the image without -trtllm has no such backend; {_pull(subject)}")  # fmt: skip
    else:
        yield _finding("triton backends", "ok", ", ".join(sorted(needed)))


def _ulimits(_subject: Subject, facts: Survey) -> Iterator[Finding]:
    yield from ulimit_findings(facts.system, matter=True, section="artifact")


def _cpu(subject: Subject, facts: Survey) -> Iterator[Finding]:
    from trtbuild.doctor import host

    yield _finding("gpu", "ok", "none is needed: the reference target runs on the CPU")
    for finding in host.check_server():
        yield _finding(finding.name, finding.status, finding.detail, finding.remedy)
    size, available = sum(subject.artifact.rank_bytes) if subject.artifact else 0, facts.system.memory_bytes
    enough = size < _WEIGHTS_SHARE * available
    yield _finding(
        "memory", "ok" if enough else "warn", f"{size / 2**30:.2f} GiB of weights, {available / 2**30:.1f} GiB available",
        "" if enough else "the weights do not fit; close other programs, or serve a smaller checkpoint",
    )  # fmt: skip


def _ports(subject: Subject, _facts: Survey) -> Iterator[Finding]:
    if subject.serving is not None:
        finding = port_finding(subject.serving)
        yield _finding(finding.name, finding.status, finding.detail, finding.remedy)


def _devices(subject: Subject, facts: Survey) -> Iterator[Finding]:
    yield from device_findings(subject.models, facts.gpus)


Check = Callable[[Subject, Survey], Iterator[Finding]]
GPU_CHECKS: tuple[Check, ...] = (_count, _devices, _versions, _driver, _memory, _several_ranks, _backends, _ulimits)
CPU_CHECKS: tuple[Check, ...] = (_cpu,)
COMMON_CHECKS: tuple[Check, ...] = (_ports,)
