"""The three ports of a server: which are free, which are taken, and free ones on request."""

from __future__ import annotations

import errno
import random
import socket
from contextlib import closing
from dataclasses import dataclass

from trtbuild.errors import TrtbuildError, UsageError

#: Free ports are taken from below the range that Linux gives to outgoing connections (32768 and up), so that no client
#: can be given the port between our test and the server's bind.
FREE_RANGE = range(20000, 32000)
_TRIES = 200


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of one server; 0 stands for a free one until `resolve` has picked it."""

    http: int = 0
    grpc: int = 0
    metrics: int = 0

    def named(self) -> dict[str, int]:
        """Return option name -> port."""
        return {"--http-port": self.http, "--grpc-port": self.grpc, "--metrics-port": self.metrics}


def resolve(address: str, ports: Ports) -> Ports:
    """Return ports that can be bound on the address, with 0 replaced by a free one.

    Raises:
        UsageError: the address is not one of this machine's IPv4 addresses, or a port is given twice.
        TrtbuildError: a port is taken or not allowed; every such port is named with its option.
    """
    given = {option: port for option, port in ports.named().items() if port}
    for option, port in given.items():
        twins = [other for other in given if given[other] == port]
        if len(twins) > 1:
            raise UsageError(
                f"{' and '.join(twins)} are both {port}", hint=f"give {option} another port, or 0 for a free one"
            )
    problems = [f"{option} {port} {problem}" for option, port in given.items() if (problem := _problem(address, port))]
    if problems:
        raise TrtbuildError(
            f"cannot listen on {address}: {'; '.join(problems)}",
            hint="stop what listens there (`ss -ltnp` names it), or pass another port; 0 picks a free one",
        )
    chosen: list[int] = []
    for port in (ports.http, ports.grpc, ports.metrics):
        chosen.append(port or _free_port(address, taken={*given.values(), *chosen}))
    return Ports(*chosen)


def _free_port(address: str, taken: set[int]) -> int:
    for port in random.sample(FREE_RANGE, _TRIES):
        if port not in taken and _problem(address, port) is None:
            return port
    raise TrtbuildError(
        f"no free port found on {address} after {_TRIES} tries between {FREE_RANGE.start} and {FREE_RANGE.stop - 1}",
        hint="name ports yourself with --http-port, --grpc-port and --metrics-port",
    )


def _problem(address: str, port: int) -> str | None:
    """Say why the port cannot be bound, or None when it can.

    Raises:
        UsageError: the address itself is the reason.
    """
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        # Like the server's own sockets: connections of an earlier server that linger in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except socket.gaierror as error:
            raise _bad_address(address, error) from error
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise _bad_address(address, error) from error
            reasons = {errno.EADDRINUSE: "is already in use", errno.EACCES: "needs root (it is below 1024)"}
            return reasons.get(error.errno or 0, f"cannot be bound: {error.strerror}")
    return None


def _bad_address(address: str, error: OSError) -> UsageError:
    return UsageError(
        f"--address {address} cannot be listened on: {error.strerror}",
        hint="give an IPv4 address of this machine: 127.0.0.1 for this machine only, 0.0.0.0 for every network",
    )
