"""Find a tritonserver on this machine. Knows where one can be; starts nothing and imports nothing of it.

Two layouts exist. A *system* install (NVIDIA's containers) keeps `bin/tritonserver` beside `backends/`, complete. A
*carrier* is the unpacked nvidia-pytriton wheel: a real server whose Python backend lacks its stub, because the wheel
holds one stub per Python version in `python_backend_stubs/`. The wheel pins numpy < 2, so it is unpacked without its
dependencies into a folder of its own and never imported.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from trtbuild.errors import TrtbuildError

#: The wheel that carries the server, pinned because its layout is relied upon.
CARRIER_REQUIREMENT = "nvidia-pytriton==0.7.0"
#: Wheel version -> version of the tritonserver inside (the wheel's release notes; 2.51.0 is Triton 24.10).
CARRIER_SERVERS = {"0.7.0": "2.51.0"}
SYSTEM_SERVER = Path("/opt/tritonserver/bin/tritonserver")


@dataclass(frozen=True, slots=True)
class ServerInstall:
    """A tritonserver and what lies around it.

    Attributes:
        binary: the executable.
        kind: "system" (complete) or "carrier" (stubs apart, private libraries in a folder of their own).
        backends: the folder that holds the folder `python`; None when the executable stands alone.
        stubs: carrier only: the folder with one folder per Python version.
        libraries: carrier only: the wheel's private shared libraries.
        version: such as "2.51.0"; None when it is written nowhere.
    """

    binary: Path
    kind: Literal["system", "carrier"]
    backends: Path | None
    stubs: Path | None
    libraries: Path | None
    version: str | None


def share_folder() -> Path:
    """Return the folder of this environment that holds what is unpacked rather than installed."""
    return Path(sys.prefix) / "share" / "trtbuild"


def carrier_folder() -> Path:
    """Return the folder into which the carrier wheel is unpacked."""
    return share_folder() / "tritonserver"


def install_command() -> str:
    """Return the shell command that unpacks the carrier for this environment."""
    pip = [sys.executable, "-m", "pip", "install", "--no-deps"]
    return shlex.join([*pip, "--target", str(carrier_folder()), CARRIER_REQUIREMENT])


def find_server(explicit: Path | None = None) -> ServerInstall:
    """Return the tritonserver to use: the one named, else the system's, else a carrier.

    Raises:
        TrtbuildError: the named file is no executable, or none was found anywhere.
    """
    if explicit is not None:
        if not _is_executable(explicit):
            raise TrtbuildError(
                f"{explicit} is not an executable file",
                hint="name the tritonserver binary itself, such as /opt/tritonserver/bin/tritonserver",
            )
        return _describe(explicit)
    looked_at = [SYSTEM_SERVER, *_carrier_binaries()]
    for binary in looked_at:
        if _is_executable(binary):
            return _describe(binary)
    raise TrtbuildError(
        f"no tritonserver found; looked at {', '.join(map(str, looked_at))}",
        hint=f"install the one that the nvidia-pytriton wheel carries (150 MB): {install_command()}",
    )


def _carrier_binaries() -> Iterator[Path]:
    yield carrier_folder() / "pytriton" / "tritonserver" / "bin" / "tritonserver"
    spec = find_spec("pytriton")  # a top-level name: found without importing the package
    for folder in (spec.submodule_search_locations or []) if spec else []:
        yield Path(folder) / "tritonserver" / "bin" / "tritonserver"


def _is_executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _describe(binary: Path) -> ServerInstall:
    root = binary.absolute().parent.parent
    if not (root / "backends" / "python").is_dir():
        root = binary.resolve().parent.parent  # a link such as /usr/local/bin/tritonserver
    backends, stubs = root / "backends", root / "python_backend_stubs"
    found_backends = backends if (backends / "python").is_dir() else None
    if not stubs.is_dir():
        return ServerInstall(binary, "system", found_backends, None, None, _system_version(root))
    site = root.parent.parent
    return ServerInstall(
        binary, "carrier", found_backends, stubs, site / "nvidia_pytriton.libs", _carrier_version(site)
    )


def _system_version(root: Path) -> str | None:
    file = root / "TRITON_VERSION"
    return file.read_text(encoding="utf-8").strip() if file.is_file() else None


def _carrier_version(site: Path) -> str | None:
    for folder in site.glob("nvidia_pytriton-*.dist-info"):
        return CARRIER_SERVERS.get(folder.name.removeprefix("nvidia_pytriton-").removesuffix(".dist-info"))
    return None
