"""What nvidia-smi says about GPUs: kinds, memory, driver, which are visible to CUDA, how they are connected.

Everything goes through an `Smi`, so that a test can answer in its place. Without the tool, devices of the driver are counted instead.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from trtbuild.gpus import find_gpu

#: Called with the arguments of nvidia-smi; returns what it prints, "" when it fails, None when it is missing or does not answer.
Smi = Callable[[tuple[str, ...]], "str | None"]
_TIMEOUT_S = 10.0
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
class Device:
    """One GPU; what the driver does not say is None.

    Attributes:
        index: number by nvidia-smi, before CUDA_VISIBLE_DEVICES.
        name: product name.
        memory_bytes: all of its memory.
        free_bytes: what nobody uses at the moment.
        driver: version of the NVIDIA driver.
        uuid: "GPU-...".
        sm: compute capability times ten.
        is_mig: whether it is cut into instances (MIG), of which a server gets one.
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
class Gpus:
    """The GPUs of a machine.

    Attributes:
        devices: all that nvidia-smi lists.
        visible: those that CUDA will use, in its order: its numbers are positions in here.
        links: pair of indices -> how they are connected, such as "NV18" or "PHB".
        restriction: CUDA_VISIBLE_DEVICES, None when it is not set.
        problem: why nothing is known although there are devices; empty when all is well.
    """

    devices: tuple[Device, ...] = ()
    visible: tuple[Device, ...] = ()
    links: Mapping[tuple[int, int], str] | None = None
    restriction: str | None = None
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


def ask_nvidia_smi(arguments: tuple[str, ...]) -> str | None:
    """Run nvidia-smi and return what it prints, "" when it fails, None when it is missing or does not answer within ten seconds."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    try:
        answer = subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (subprocess.TimeoutExpired, OSError):
        return None
    return answer.stdout if answer.returncode == 0 else ""


def read_gpus(smi: Smi, environment: Mapping[str, str], device_folder: Path = _DEVICES) -> Gpus:
    """Return the GPUs of this machine.

    Args:
        smi: asks nvidia-smi.
        environment: for CUDA_VISIBLE_DEVICES.
        device_folder: /dev or a folder like it.
    """
    devices = _query(smi)
    restriction = environment.get("CUDA_VISIBLE_DEVICES")
    if not devices:
        nodes = sorted(device_folder.glob("nvidia[0-9]*"))
        problem = f"{len(nodes)} devices in {device_folder}, and nvidia-smi is missing or does not answer"
        return Gpus(restriction=restriction, problem=problem if nodes else "")
    links = parse_topology(smi(("topo", "-m")) or "") if len(devices) > 1 else {}
    return Gpus(devices, _visible(devices, restriction), links, restriction)


def _query(smi: Smi) -> tuple[Device, ...]:
    for fields in (_FIELDS, _OLD_FIELDS):
        answer = smi((f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"))
        if answer is None:  # asking again would only wait again
            return ()
        if answer:
            rows = [line.split(", ") for line in answer.splitlines() if line.strip()]
            return tuple(
                _device(dict(zip(fields, map(str.strip, row), strict=True))) for row in rows if len(row) == len(fields)
            )
    return ()


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


def _visible(devices: tuple[Device, ...], restriction: str | None) -> tuple[Device, ...]:
    """Return the devices that CUDA uses: numbers or the beginnings of UUIDs; what follows an unknown one does not count."""
    if restriction is None:
        return devices
    chosen = []
    for entry in restriction.split(","):
        text = entry.strip()
        found = next(
            (device for device in devices if text and (text == str(device.index) or device.uuid.startswith(text))), None
        )
        if found is None and text.startswith("MIG-"):  # which GPU an instance lies on is not said, nor how large it is
            part = next((device for device in devices if device.is_mig), None)
            found = part and replace(part, memory_bytes=None, free_bytes=None)
        if found is None:
            break
        chosen.append(found)
    return tuple(chosen)


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
