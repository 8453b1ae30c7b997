"""A machine that answers as a test wants: nvidia-smi, mpirun, files of a container."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from trtbuild.doctor import Survey, survey
from trtbuild.nvidia import Smi, SmiFailed

H100 = "NVIDIA H100 80GB HBM3"


def topology(count: int, link: str) -> str:
    """Return what `nvidia-smi topo -m` prints: underlined header, network cards, affinities, legend."""
    names = [f"GPU{number}" for number in range(count)]
    lines = ["\t\x1b[4m" + "\t".join([*names, "NIC0", "CPU Affinity", "NUMA Affinity"]) + "\x1b[0m"]
    lines += ["\t".join([name, *(" X " if other == name else link for other in names), "PXB", "0-51", "0"]) for name in names]  # fmt: skip
    lines += ["\t".join(["NIC0", *["PXB"] * count, " X "]), "", "Legend:", "", "  X    = Self", "  SYS  = over everything"]  # fmt: skip
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Fake:
    """A machine.

    Attributes:
        gpus: number of GPUs; 0 and nvidia-smi is missing.
        name, memory, free, sm, driver: of each GPU; MiB; SM as "9.0".
        link: between any two.
        mig: whether MIG is on.
        instances: what `nvidia-smi -L` prints.
        old_driver: nvidia-smi refuses to be asked for compute_cap.
        mpirun: what `mpirun --version` prints.
        environment: variables.
        shm_bytes: size of /dev/shm.
        memory_bytes: of the host.
        ulimits: soft limits.
        is_root: whether the user is root.
    """

    root: Path
    gpus: int = 0
    name: str = H100
    memory: str = "81559"
    free: str = "81000"
    sm: str = "9.0"
    driver: str = "590.44.01"
    link: str = "NV18"
    mig: str = "Disabled"
    instances: str = ""
    old_driver: bool = False
    mpirun: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    shm_bytes: int | None = 8 * 2**30
    memory_bytes: int = 64 * 2**30
    ulimits: Mapping[str, int] = field(default_factory=lambda: {"memlock": -1, "stack": 67108864, "nofile": 65536})
    is_root: bool = False

    @property
    def smi(self) -> Smi:
        """nvidia-smi of this machine."""

        def answer(arguments: tuple[str, ...]) -> str | None:
            if not self.gpus:
                return None
            if arguments == ("topo", "-m"):
                return topology(self.gpus, self.link)
            if arguments == ("-L",):
                return self.instances
            fields = arguments[0].removeprefix("--query-gpu=").split(",")
            if self.old_driver and "compute_cap" in fields:
                raise SmiFailed('Field "compute_cap" is not a valid field to query.')
            rows = []
            for number in range(self.gpus):
                values = {
                    "index": str(number), "name": self.name, "memory.total": self.memory, "memory.free": self.free,
                    "driver_version": self.driver, "uuid": f"GPU-{number:08x}-0000-1111-2222-333344445555",
                    "mig.mode.current": self.mig, "compute_cap": self.sm,
                }  # fmt: skip
                rows.append(", ".join(values[name] for name in fields))
            return "\n".join(rows) + "\n"

        return answer

    def survey(self) -> Survey:
        """Return the facts of this machine."""
        found = survey(smi=self.smi, mpirun=lambda _: self.mpirun or None, environment=self.environment, root=self.root)
        system = replace(
            found.system, shm_bytes=self.shm_bytes, memory_bytes=self.memory_bytes, ulimits=self.ulimits, is_root=self.is_root
        )  # fmt: skip
        return replace(found, system=system)


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., Fake]:
    """Return a function that makes a machine whose root folder is empty."""
    root = tmp_path / "root"
    root.mkdir()
    return lambda **facts: Fake(root, **facts)


def add_package(folder: Path, name: str, version: str) -> None:
    """Write the metadata of an installed package."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")


def add_container(root: Path, *, tensorrt_llm: str, tensorrt: str, backends: tuple[str, ...] = ("python", "tensorrtllm")) -> dict[str, str]:  # fmt: skip
    """Write what a Triton container with TensorRT-LLM has, and return its variables."""
    site = root / "usr/local/lib/python3.12/dist-packages"
    add_package(site, "tensorrt-llm", tensorrt_llm)
    add_package(site, "tensorrt", tensorrt)
    libraries = root / "usr/lib/x86_64-linux-gnu"
    libraries.mkdir(parents=True, exist_ok=True)
    short = ".".join(tensorrt.split(".")[:3])
    (libraries / f"libnvinfer.so.{short}").touch()
    (libraries / f"libnvinfer.so.{short.partition('.')[0]}").symlink_to(f"libnvinfer.so.{short}")
    for name in backends:
        (root / "opt/tritonserver/backends" / name).mkdir(parents=True)
    (root / ".dockerenv").touch()
    return {"TRT_VERSION": tensorrt}
