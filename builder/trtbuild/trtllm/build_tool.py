"""The `trtllm-build` of this machine: where it is, which release it belongs to, and which GPUs it will see.

Knows programs and their answers; imports neither TensorRT-LLM nor CUDA.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trtbuild.errors import ToolFailed, UsageError
from trtbuild.nvidia import Device, ask_nvidia_smi, read_gpus
from trtbuild.trtllm.versions import Release, Version

if TYPE_CHECKING:
    from trtbuild.targets.base import Job

PROGRAM = "trtllm-build"
#: Names the program where it is not on PATH.
VARIABLE = "TRTBUILD_TRTLLM_BUILD"
_PACKAGES = ("tensorrt_llm", "tensorrt")
_ASK_VERSIONS = """
import importlib.metadata as m, json
found = {}
for name in %r:
    try: found[name] = m.version(name)
    except m.PackageNotFoundError: pass
print(json.dumps(found))
"""
_TIMEOUT_S = 30.0


def find_builder(environment: Mapping[str, str] | None = None) -> Path | None:
    """Return the program: what TRTBUILD_TRTLLM_BUILD names, else the one on PATH; None without one.

    Raises:
        UsageError: the variable names no program.
    """
    environment = os.environ if environment is None else environment
    named = environment.get(VARIABLE)
    if not named:
        found = shutil.which(PROGRAM, path=environment.get("PATH"))
        return Path(found) if found else None
    path = Path(named).expanduser()
    if not path.is_file() or not os.access(path, os.X_OK):
        raise UsageError(f"{VARIABLE}={named} is no program that can be run", hint=f"name the file {PROGRAM}")
    return path.absolute()


def missing_builder(release: Release, arguments: Sequence[str], folders: Sequence[Path]) -> ToolFailed:
    """Return the error of a machine without trtllm-build, with the command to run where it is.

    Args:
        release: that must build.
        arguments: of trtllm-build.
        folders: that the command reads and writes.
    """
    command = shlex.join([PROGRAM, *arguments])
    if release.container is not None:
        mounts = " ".join(f"-v {shlex.quote(f'{folder}:{folder}')}" for folder in dict.fromkeys(folders))
        where = f"docker run --rm --gpus all --ipc=host {mounts} {release.container.image} {command}"
    else:
        where = f"{command}  (after pip install tensorrt-llm=={release}; no container of it is known)"
    return ToolFailed(
        f"{PROGRAM} of TensorRT-LLM {release} is not on PATH, and {VARIABLE} names none",
        hint="`trtbuild build --until checkpoint` goes as far as this machine can; then build where the tool is, and have "
        f"`trtbuild build --engine DIR` take the engine over:\n  {where}",
    )


def installed_versions(program: Path) -> dict[str, str]:
    """Return package -> version of tensorrt_llm and tensorrt beside a program; what cannot be told is missing.

    The interpreter in the program's first line is asked; nothing heavy is imported.
    """
    with program.open("rb") as file:
        first = file.readline(4096)
    if not first.startswith(b"#!"):
        return {}
    words = first[2:].decode("utf-8", "replace").split()
    if words and Path(words[0]).name == "env":
        named = next((word for word in words[1:] if not word.startswith("-")), "")
        found = shutil.which(named)
        words = [found] if found else []
    if not words or "python" not in Path(words[0]).name:
        return {}
    try:
        answer = subprocess.run(
            [*words, "-c", _ASK_VERSIONS % (_PACKAGES,)],
            capture_output=True, text=True, timeout=_TIMEOUT_S, check=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        found_versions: dict[str, str] = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
    return found_versions


def check_version(found: str, release: Release, *, where: str) -> list[str]:
    """Compare the version of a builder, or of what it wrote, with the release that was asked for.

    Returns:
        A note when they are of one release and differ in candidate or post number, or when it cannot be told.

    Raises:
        ToolFailed: they are of different releases; the container that fits is named.
    """
    version = Version.parse(found)
    if version is None:
        return [f"{where} says version {found!r}, which cannot be compared with TensorRT-LLM {release}"]
    if version.numbers[:3] != release.version.numbers[:3]:
        fits = (
            f"run it in {release.container.image}" if release.container else f"pip install tensorrt-llm=={release.name}"
        )
        raise ToolFailed(
            f"{where} is of TensorRT-LLM {found}, and trtbuild.yaml asks for {release}",
            hint=f"{fits}, or set tensorrt_llm: {found}; an engine is served by the release that built it",
        )
    if version.numbers != release.version.numbers:
        return [f"{where} is of TensorRT-LLM {found}; {release} was asked for, which is the same release"]
    return []


def visible_gpus(environment: Mapping[str, str] | None = None) -> tuple[Device, ...] | None:
    """Return the GPUs that a program started now would see; None where nvidia-smi is not there or does not answer."""
    environment = os.environ if environment is None else environment
    gpus = read_gpus(partial(ask_nvidia_smi, environment=environment), environment)
    return gpus.visible if gpus.is_known else None


def check_gpus(job: Job, gpus: tuple[Device, ...] | None, workers: int) -> None:
    """Refuse GPUs that would make another engine than was asked for (field report VC04).

    Raises:
        ToolFailed: there is none, they are of several architectures, or not of the one that the deployment names.
    """
    if gpus is None:
        return
    if not gpus:
        raise ToolFailed(
            "no GPU is visible, and trtllm-build needs one of the architecture that will serve",
            hint="start the container with --gpus all; look at CUDA_VISIBLE_DEVICES and nvidia-smi",
        )
    used = gpus[:workers]
    names = ", ".join(sorted({f"{gpu.name} ({_sm(gpu)})" for gpu in used}))
    known = {gpu.sm for gpu in used if gpu.sm}
    if len(known) > 1:
        raise ToolFailed(
            f"the ranks would be built on GPUs of different architectures: {names}",
            hint="pick those that will serve with CUDA_VISIBLE_DEVICES, or set engine.workers: 1",
        )
    if job.gpu is not None and known and known != {job.gpu.sm}:
        raise ToolFailed(
            f"hardware.gpu is {job.gpu}, and this machine has {names}: an engine runs only on the architecture it was built on",
            hint="build on a machine with that GPU, or correct hardware.gpu",
        )


def _sm(gpu: Device) -> str:
    return f"SM{gpu.sm}" if gpu.sm else "SM not known"


def driver_notes(release: Release, gpus: tuple[Device, ...] | None) -> list[str]:
    """Return a note when the driver is older than the release's containers need (field report VC01)."""
    if not gpus or release.container is None:
        return []
    found, needed = (_numbers(text) for text in (gpus[0].driver, release.container.driver))
    if not found or found >= needed:
        return []
    return [
        f"driver {gpus[0].driver} is older than {release.container.driver}, which CUDA {release.cuda} of TensorRT-LLM {release} needs; "
        "data-center GPUs may do with NVIDIA's forward compatibility package"
    ]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def workers_of(job: Job, gpus: tuple[Device, ...] | None) -> int:
    """Return the ranks to build at a time: as given, else one per visible GPU; never more than there are ranks (4.8)."""
    asked, ranks = job.deployment.engine.workers, job.parallel.world_size
    if not gpus:
        return min(asked or 1, ranks)
    return min(asked or len(gpus), len(gpus), ranks)
