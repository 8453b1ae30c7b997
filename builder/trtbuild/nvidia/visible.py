"""Which GPUs CUDA shows to a program: CUDA_VISIBLE_DEVICES and MIG.

Sources: CUDA C++ Programming Guide, environment variables (an invalid entry ends the list); torch/cuda/__init__.py,
`_parse_visible_devices` and `_transform_uuid_to_ordinals` (numbers are read as strtoul does, one kind of entry per list, what is listed twice or
means several GPUs); NVIDIA MIG user guide, "CUDA Device Enumeration" (a program sees one compute instance, and no other GPU beside it).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

#: What strtoul reads of an entry.
_NUMBER = re.compile(r"[+-]?\d+")
_KINDS = ("GPU-", "MIG-")
#: GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-...)  and below it   MIG 3g.40gb     Device  0: (UUID: MIG-...)  of `nvidia-smi -L`.
_LISTED_GPU = re.compile(r"GPU (\d+):")
_LISTED_INSTANCE = re.compile(r"\s+MIG\s+(\S+)\s+Device\s+\d+:\s*\(UUID:\s*(MIG-[^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU, or one instance of a cut one (MIG); what the driver does not say is None.

    Attributes:
        index: number by nvidia-smi, before CUDA_VISIBLE_DEVICES.
        name: product name, with the profile of an instance.
        memory_bytes: all of its memory.
        free_bytes: what nobody uses at the moment.
        driver: version of the NVIDIA driver.
        uuid: "GPU-...", or "MIG-..." of an instance.
        sm: compute capability times ten.
        is_mig: whether it is cut into instances, of which a program gets one, or such an instance.
    """

    index: int
    name: str
    memory_bytes: int | None
    free_bytes: int | None
    driver: str
    uuid: str
    sm: int | None
    is_mig: bool


@dataclass(frozen=True, slots=True)
class Visible:
    """What CUDA shows.

    Attributes:
        devices: in CUDA's order.
        ignored: why entries of CUDA_VISIBLE_DEVICES do not count; empty when all do.
    """

    devices: tuple[Device, ...]
    ignored: str = ""


def parse_instances(listing: str, devices: Sequence[Device]) -> dict[int, tuple[Device, ...]]:
    """Return index of a GPU -> its instances from `nvidia-smi -L`, in the order of CUDA; their memory is not said.

    Args:
        listing: what nvidia-smi prints.
        devices: the GPUs.
    """
    parents = {device.index: device for device in devices}
    found: dict[int, tuple[Device, ...]] = {}
    parent = None
    for line in listing.splitlines():
        if match := _LISTED_GPU.match(line):
            parent = parents.get(int(match[1]))
        elif parent is not None and (match := _LISTED_INSTANCE.match(line)):
            name = f"{parent.name} MIG {match[1]}"
            instance = replace(parent, name=name, uuid=match[2], memory_bytes=None, free_bytes=None)
            found[parent.index] = (*found.get(parent.index, ()), instance)
    return found


def select(
    devices: Sequence[Device], instances: Mapping[int, tuple[Device, ...]] | None, restriction: str | None
) -> Visible:
    """Return what CUDA shows of the GPUs of a machine.

    Args:
        devices: all, by their numbers.
        instances: of those that are cut, None when that is not known.
        restriction: CUDA_VISIBLE_DEVICES, None when it is not set; "" shows nothing.
    """
    if restriction is None:
        return _with_one_instance(Visible(tuple(devices)), instances)
    chosen: list[Device] = []
    entries = [entry.strip() for entry in restriction.split(",")]
    kind = next((kind for kind in _KINDS if entries[0].startswith(kind)), "")
    for position, entry in enumerate(entries):
        found, why = _find(entry, kind, devices, instances)
        if found is None:
            return _with_one_instance(Visible(tuple(chosen), _ended(entries[position:], why)), instances)
        if found in chosen:
            return Visible((), f"{entry} is listed twice, for which CUDA shows none at all")
        chosen.append(found)
    return _with_one_instance(Visible(tuple(chosen)), instances)


def _find(
    entry: str, kind: str, devices: Sequence[Device], instances: Mapping[int, tuple[Device, ...]] | None
) -> tuple[Device | None, str]:
    """Return the device of an entry, or None and the reason."""
    if not kind:
        number = _NUMBER.match(entry)
        index = int(number[0]) if number else -1
        found = [device for device in devices if device.index == index]
        return (
            (found[0], "") if found else (None, "is no GPU of this machine" if number and index >= 0 else "means none")
        )
    if not entry.startswith(kind):
        return None, f"does not begin with {kind} as the first does"
    if kind == "MIG-" and instances is None:  # which GPU an instance lies on is not said
        cut = next((device for device in devices if device.is_mig), None)
        if cut is None:
            return None, "is an instance, and no GPU is cut"
        return replace(cut, uuid=entry, memory_bytes=None, free_bytes=None), ""
    all_of_them = devices if kind == "GPU-" else [each for part in (instances or {}).values() for each in part]
    fitting = [device for device in all_of_them if device.uuid.startswith(entry)]
    if len(fitting) == 1:
        return fitting[0], ""
    return None, "means several" if fitting else "is not on this machine"


def _ended(entries: Sequence[str], why: str) -> str:
    """Say what does not count; "" and -1 alone are how one hides every GPU."""
    if len(entries) == 1 and entries[0] in ("", "-1", "NoDevFiles", "none", "void"):
        return ""
    rest = f", and what follows it ({', '.join(entries[1:])}) does not count" if len(entries) > 1 else ""
    return f"'{entries[0]}' {why}{rest}"


def _with_one_instance(visible: Visible, instances: Mapping[int, tuple[Device, ...]] | None) -> Visible:
    """Return what is left where GPUs are cut: the first instance alone."""
    if not any(device.is_mig for device in visible.devices):
        return visible
    whole = tuple(device for device in visible.devices if not device.is_mig)
    for device in visible.devices:
        if not device.is_mig:
            continue
        if device.uuid.startswith("MIG-"):
            parts: tuple[Device, ...] = (device,)
        elif instances is None:
            parts = (replace(device, memory_bytes=None, free_bytes=None),)
        else:
            parts = instances.get(device.index, ())
        if parts:
            others = len(visible.devices) + len(parts) > 2
            return Visible(
                parts[:1],
                visible.ignored or ("MIG is on: CUDA shows one instance, and no GPU beside it" if others else ""),
            )
    return Visible(whole, visible.ignored or "a GPU with MIG and without instances is none")
