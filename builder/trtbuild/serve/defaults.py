"""Where a server listens: what the command line says, else the trtbuild.yaml of the build folder, else the defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtbuild.serve.ports import Ports
from trtbuild.spec import Serving, load


@dataclass(frozen=True, slots=True)
class Listen:
    """Address and ports; a port of 0 asks for a free one."""

    address: str
    ports: Ports


def listen_settings(
    folder: Path, *, address: str | None, http_port: int | None, grpc_port: int | None, metrics_port: int | None
) -> Listen:
    """Return where to listen; None means that the command line did not say.

    Args:
        folder: a build folder, or a repository; a repository belongs to the build folder it lies in, if any.
        address, http_port, grpc_port, metrics_port: options of the command line.
    """
    serving = _serving_section(folder)
    return Listen(
        serving.address if address is None else address,
        Ports(
            http=serving.http_port if http_port is None else http_port,
            grpc=serving.grpc_port if grpc_port is None else grpc_port,
            metrics=serving.metrics_port if metrics_port is None else metrics_port,
        ),
    )


def _serving_section(folder: Path) -> Serving:
    places = [folder, folder.resolve().parent] if folder.resolve().name == "repository" else [folder]
    for place in places:
        if (place / "trtbuild.yaml").is_file():
            return load(place / "trtbuild.yaml").serving
    return Serving()
