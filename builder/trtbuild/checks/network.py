"""Where a server listens: an address that can be one, and ports of its own for each protocol. Opens no socket."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from trtbuild.checks.fault import Fault
from trtbuild.spec import Deployment

#: RFC 1123, 2.1, and the underscore that container networks use.
_HOST = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)*$"
)
_PORTS = ("http_port", "grpc_port", "metrics_port")


def network_faults(deployment: Deployment) -> Iterator[Fault]:
    """Yield what is wrong with address and ports."""
    serving = deployment.serving
    if not _is_address(serving.address):
        yield Fault(
            f"serving.address={serving.address!r} is neither an IPv4 address nor the name of a host",
            "serving.address: e.g. 127.0.0.1 for this machine only, 0.0.0.0 for every network; the port is a key of its own",
        )
    ports = {name: getattr(serving, name) for name in _PORTS}
    for port in dict.fromkeys(value for value in ports.values() if value):
        twins = [f"serving.{name}" for name, value in ports.items() if value == port]
        if len(twins) > 1:
            yield Fault(f"{' and '.join(twins)} are both {port}", f"give {twins[-1]} another port, or 0 for a free one")


def _is_address(text: str) -> bool:
    last = text.rpartition(".")[2]
    if not last.isdigit():
        return _HOST.match(text) is not None
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True
