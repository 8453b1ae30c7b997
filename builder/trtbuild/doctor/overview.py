"""What is said of a machine when no artifact is asked about: GPUs, software, limits. Nothing here fails; a CPU machine is fine."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from trtbuild.doctor.finding import Finding, Section, Status
from trtbuild.doctor.software import Software
from trtbuild.doctor.survey import Survey
from trtbuild.doctor.system import System, is_low
from trtbuild.hardware import NOTES, OLDEST_SM
from trtbuild.nvidia import Device, Gpus
from trtbuild.trtllm.compatibility import compare, numbers
from trtbuild.trtllm.versions import RELEASES, Container, release_of_tag

#: Names of GPUs for which CUDA's forward compatibility packages, which let a container run on an older driver, do not exist.
_CONSUMER = ("GeForce", "RTX")


def overview(facts: Survey) -> Iterator[Finding]:
    """Yield one finding per fact."""
    return chain(gpu_findings(facts), software_findings(facts.software), system_findings(facts))


def gpu_findings(facts: Survey) -> Iterator[Finding]:
    """Yield the GPUs, the driver and the connections."""
    gpus = facts.gpus
    if not gpus.devices:
        none = "none, and none is needed: the reference target runs on the CPU"
        remedy = "install the driver's tools; in a container: docker run --gpus all"
        yield Finding(
            "gpu", "warn" if gpus.problem else "ok", gpus.problem or none, remedy if gpus.problem else "", "gpu"
        )
        return
    for device in gpus.devices:
        yield _device(device)
    if gpus.restriction is not None or gpus.ignored:
        yield _visible(gpus)
    if gpus.is_by_speed:
        yield Finding(
            "gpu order",
            "warn",
            "GPUs of several kinds, and CUDA numbers them by speed, not as nvidia-smi does",
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by UUID in CUDA_VISIBLE_DEVICES",
            "gpu",
        )
    release = release_of_tag(facts.software.tag) if facts.software.tag else None
    boxes = [box for box in release.containers if box.tag == facts.software.tag] if release else []
    yield driver_finding(gpus, boxes[0] if boxes else None, section="gpu", consumer="warn")
    if len(gpus.visible) > 1:
        yield link_finding(gpus, len(gpus.visible), section="gpu")


def _visible(gpus: Gpus) -> Finding:
    """Return which GPUs CUDA shows, by its own numbers."""
    given = "" if gpus.restriction is None else f"CUDA_VISIBLE_DEVICES={gpus.restriction}: "
    numbered = ", ".join(
        f"{position} is {'an instance of ' if device.uuid.startswith('MIG-') else ''}GPU {device.index}"
        for position, device in enumerate(gpus.visible)
    )
    shown = f"device {numbered}" if numbered else "every GPU is hidden"
    ignored = f"; {gpus.ignored}" if gpus.ignored else ""
    remedy = ""
    if gpus.ignored:
        remedy = (
            "name the GPUs that are meant, each once, or one instance"
            if given
            else "name an instance in CUDA_VISIBLE_DEVICES"
        )
    elif not numbered:
        remedy = "unset CUDA_VISIBLE_DEVICES"
    return Finding("visible gpus", "warn" if remedy else "ok", f"{given}{shown}{ignored}", remedy, "gpu")


def _device(device: Device) -> Finding:
    memory = "memory not stated (shared with the host)" if device.memory_bytes is None else f"{device.memory_bytes / 2**30:.1f} GiB"  # fmt: skip
    free = "" if device.free_bytes is None else f" ({device.free_bytes / 2**30:.1f} free)"
    sm = f"SM{device.sm}" if device.sm else "SM not known"
    status: Status = "ok"
    remedy = ""
    if device.sm is not None and device.sm < OLDEST_SM:
        status, remedy = (
            "warn",
            f"TensorRT-LLM lists no GPU below SM{OLDEST_SM}; --target reference runs on the CPU",
        )
    elif device.is_mig:
        status, remedy = (
            "warn",
            "MIG is on: a server gets one instance, which has less memory; name it in CUDA_VISIBLE_DEVICES",
        )
    elif device.sm in NOTES:
        remedy = NOTES[device.sm]
    return Finding(f"gpu {device.index}", status, f"{device.name}, {memory}{free}, {sm}", remedy, "gpu")


def driver_finding(gpus: Gpus, box: Container | None, *, section: Section, consumer: Status) -> Finding:
    """Return whether the driver is new enough for a container; without one, for which it is.

    Args:
        gpus: with the driver.
        box: the container.
        section: of the finding.
        consumer: status of a driver that is too old for GPUs that have no forward compatibility.
    """
    driver = gpus.driver
    if box is None:
        fitting = [each.tag for release in RELEASES for each in release.containers if numbers(driver) >= numbers(each.driver)]  # fmt: skip
        detail = f"{driver}: new enough for containers up to {fitting[-1]}" if fitting else f"{driver}: older than any known container wants"  # fmt: skip
        return Finding(
            "driver", "ok" if fitting else "warn", detail, "" if fitting else "install a newer driver", section
        )
    if numbers(driver) >= numbers(box.driver):
        return Finding("driver", "ok", f"{driver}, container {box.tag} wants {box.driver} or newer", "", section)
    is_consumer = any(word in device.name for device in gpus.devices for word in _CONSUMER)
    remedy = f"install driver {box.driver} or newer, or take an older container (`trtbuild versions`)"
    if not is_consumer:
        remedy += "; on data-centre GPUs the container's CUDA forward compatibility may do"
    return Finding(
        "driver",
        consumer if is_consumer else "warn",
        f"{driver} is older than {box.driver}, which container {box.tag} wants",
        remedy,
        section,
    )


def link_finding(gpus: Gpus, count: int, *, section: Section) -> Finding:
    """Return how the first GPUs are connected: the worst pair counts, since every rank waits for it."""
    link = gpus.worst_link(count)
    if not link:
        return Finding("gpu links", "ok", "not known: nvidia-smi topo -m says nothing", "", section)
    if link.startswith("NV"):
        return Finding("gpu links", "ok", f"NVLink ({link})", "", section)
    crosses = link in ("PHB", "NODE", "SYS")
    detail = f"PCIe, {link}" + (": traffic between GPUs crosses the host" if crosses else "")
    remedy = "prefer pipeline parallelism, or GPUs on one PCIe switch; tensor parallelism will be slow" if crosses else ""  # fmt: skip
    return Finding("gpu links", "warn" if crosses else "ok", detail, remedy, section)


def software_findings(software: Software) -> Iterator[Finding]:
    """Yield the container, the versions, and what contradicts itself."""
    kind = f"Triton {software.tag}" if software.tag else "yes, not one of Triton's" if software.is_container else "none"
    yield Finding("container", "ok", kind, "", "software")
    named = [f"{name} {copies[0].version}" for name, copies in software.packages.items()]
    yield Finding("installed", "ok", ", ".join(named) or "nothing of TensorRT-LLM, torch, transformers", "", "software")
    if software.tensorrt:
        place = software.tensorrt_copies[0].path
        yield Finding("tensorrt", "ok", f"{software.tensorrt} is loaded from {place}", "", "software")
    for name, copies in software.packages.items():
        if len({copy.version for copy in copies}) > 1 and not name.startswith("tensorrt"):
            listed = ", ".join(f"{copy.version} in {copy.path}" for copy in copies)
            yield Finding(f"{name} copies", "warn", f"{listed}; the first is imported", "remove the others", "software")
    for mismatch in compare(None, software.installed()):
        yield Finding(mismatch.rule, "warn", mismatch.message, mismatch.remedy, "software")


def system_findings(facts: Survey) -> Iterator[Finding]:
    """Yield ulimits and MPI; low limits matter on a machine with GPUs only."""
    yield from ulimit_findings(facts.system, matter=bool(facts.gpus.devices), section="system")
    root = " (as root it needs --allow-run-as-root)" if facts.system.mpirun and facts.system.is_root else ""
    yield Finding(
        "mpirun", "ok", (facts.system.mpirun or "none; engines of more than one rank need it") + root, "", "system"
    )


def ulimit_findings(system: System, *, matter: bool, section: Section) -> Iterator[Finding]:
    """Yield one finding for each ulimit.

    Args:
        system: with the limits.
        matter: whether a low one is worth a warning.
        section: of the findings.
    """
    raise_it = {
        "memlock": "docker run --ulimit memlock=-1, or ulimit -l unlimited",
        "stack": "docker run --ulimit stack=67108864, or ulimit -s 65536",
        "nofile": "docker run --ulimit nofile=65536, or ulimit -n 65536",
    }
    for name, limit in system.ulimits.items():
        text = "unlimited" if limit < 0 else str(limit)
        low = matter and is_low(name, limit)
        yield Finding(f"ulimit {name}", "warn" if low else "ok", text, raise_it[name] if low else "", section)
