"""What nvidia-smi says about GPUs: kinds, memory, driver, which are visible to CUDA, how they are connected.

Without the tool, devices of the driver are counted instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtbuild.gpus import find_gpu
from trtbuild.nvidia.smi import Smi, SmiFailed
from trtbuild.nvidia.visible import Device, parse_instances, select

_DEVICES = Path("/dev")
_FIELDS = ("index", "name", "memory.total", "memory.free", "driver_version", "uuid", "mig.mode.current", "compute_cap")
#: Drivers before 510 refuse a query that has `compute_cap`; the name says the SM number then.
_OLD_FIELDS = _FIELDS[:-1]
_MIB = 2**20
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_GPU_ROW = re.compile(r"GPU(\d+)\b")
#: Connections of `nvidia-smi topo -m`, the best first: NVLink, then PCIe over ever more of the host (its legend).
LINKS = ("NV", "PIX", "PXB", "PHB", "NODE", "SYS")


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs of a machine.

    Attributes:
        devices: all that nvidia-smi lists.
        visible: those that CUDA will use, in its order: its numbers are positions in here.
        links: pair of indices -> how they are connected, such as "NV18" or "PHB".
        restriction: CUDA_VISIBLE_DEVICES, None when it is not set.
        ignored: why entries of it do not count, or GPUs are not shown; empty when all are.
        is_by_speed: whether numbers in it may mean other GPUs than nvidia-smi's: CUDA puts the fastest first unless CUDA_DEVICE_ORDER is PCI_BUS_ID
            (CUDA C++ Programming Guide, environment variables), which shows where GPUs are of several kinds.
        is_known: whether nvidia-smi answered, so that no devices mean that there are none.
        problem: why nothing is known although there are devices; empty when all is well.
    """

    devices: tuple[Device, ...] = ()
    visible: tuple[Device, ...] = ()
    links: Mapping[tuple[int, int], str] | None = None
    restriction: str | None = None
    ignored: str = ""
    is_by_speed: bool = False
    is_known: bool = False
    problem: str = ""

    @property
    def driver(self) -> str:
        """Version of the driver, empty when not known."""
        return self.devices[0].driver if self.devices else ""

    @property
    def sms(self) -> tuple[int, ...]:
        """SM numbers of the visible GPUs, those that are known."""
        return tuple(device.sm for device in self.visible if device.sm is not None)

    def worst_link(self, count: int) -> str:
        """Return the worst connection among the first visible GPUs; empty when it is not known."""
        used = [device.index for device in self.visible[:count]]
        found = [
            link for (one, other), link in (self.links or {}).items() if one in used and other in used and one < other
        ]
        return max(found, key=_rank, default="")


def _rank(link: str) -> int:
    return next((rank for rank, name in enumerate(LINKS) if link.startswith(name)), len(LINKS))


def read_gpus(smi: Smi, environment: Mapping[str, str], device_folder: Path = _DEVICES) -> Gpus:
    """Return the GPUs of this machine.

    Args:
        smi: asks nvidia-smi.
        environment: for CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER.
        device_folder: /dev or a folder like it.
    """
    restriction = environment.get("CUDA_VISIBLE_DEVICES")
    try:
        devices = _query(smi)
        said = "is missing or does not answer"
    except SmiFailed as failure:
        devices, said = None, f"says: {failure}"
    if not devices:
        nodes = sorted(device_folder.glob("nvidia[0-9]*"))
        problem = f"{len(nodes)} devices in {device_folder}, and nvidia-smi {said if devices is None else 'lists none'}"
        return Gpus(restriction=restriction, is_known=devices is not None, problem=problem if nodes else "")
    instances = None
    if any(device.is_mig for device in devices) and (listing := _answer(smi, ("-L",))):
        instances = parse_instances(listing, devices)
    links = parse_topology(_answer(smi, ("topo", "-m"))) if len(devices) > 1 else {}
    visible = select(devices, instances, restriction)
    several_kinds = len({device.name for device in devices}) > 1
    is_by_speed = several_kinds and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
    return Gpus(devices, visible.devices, links, restriction, visible.ignored, is_by_speed, is_known=True)


def _answer(smi: Smi, arguments: tuple[str, ...]) -> str:
    """Return what nvidia-smi says of something that it need not know; empty when it does not."""
    try:
        return smi(arguments) or ""
    except SmiFailed:
        return ""


def _query(smi: Smi) -> tuple[Device, ...] | None:
    """Return the GPUs, None when nvidia-smi is missing or does not answer.

    Raises:
        SmiFailed: it says that it cannot.
    """
    fields: tuple[str, ...] = _FIELDS
    try:
        answer = smi(_query_of(fields))
    except SmiFailed:
        fields = _OLD_FIELDS
        answer = smi(_query_of(fields))
    if answer is None:
        return None
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.splitlines()]
    return tuple(
        _device(dict(zip(fields, row, strict=True))) for row in rows if len(row) == len(fields) and row[0].isdecimal()
    )


def _query_of(fields: tuple[str, ...]) -> tuple[str, ...]:
    return (f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")


def _device(row: Mapping[str, str]) -> Device:
    return Device(
        index=int(row["index"]),
        name=row["name"],
        memory_bytes=_mib(row["memory.total"]),
        free_bytes=_mib(row["memory.free"]),
        driver=row["driver_version"],
        uuid=row["uuid"],
        sm=_sm(row.get("compute_cap", ""), row["name"]),
        is_mig=row["mig.mode.current"] == "Enabled",
    )


def _mib(text: str) -> int | None:
    """Return a number of MiB in bytes, None for "[N/A]" (a GPU that shares the memory of the host has none of its own)."""
    return int(text) * _MIB if text.isdecimal() else None


def _sm(capability: str, name: str) -> int | None:
    if match := re.fullmatch(r"(\d+)\.(\d)", capability):
        return int(match[1] + match[2])
    try:
        return find_gpu(name).sm
    except ValueError:
        return None


def parse_topology(text: str) -> dict[tuple[int, int], str]:
    """Return pair of indices -> connection from `nvidia-smi topo -m`, in both directions; columns of network cards are left out."""
    lines = [line for line in _ANSI.sub("", text).splitlines() if line.strip()]
    header = next((line for line in lines if line.startswith(("\t", " ")) and _GPU_ROW.search(line)), "")
    columns = [(position, int(match[1])) for position, cell in enumerate(header.split()) if (match := _GPU_ROW.fullmatch(cell))]  # fmt: skip
    links = {}
    for line in lines:
        cells = line.split()
        row = _GPU_ROW.fullmatch(cells[0])
        if row is None or line is header:
            continue
        for position, other in columns:
            if position + 1 < len(cells) and other != int(row[1]):
                links[int(row[1]), other] = cells[position + 1]
    return links
