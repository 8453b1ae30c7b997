"""Running a gateway: opens its port, serves until it is told to stop, lets what runs finish."""

from __future__ import annotations

import asyncio
import math
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from trtbuild.errors import TrtbuildError
from trtbuild.gateway.gate import Gate
from trtbuild.gateway.http_app import Gateway
from trtbuild.gateway.settings import Settings

_BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        TrtbuildError: the port is taken, or the address is not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, port))
        opened.listen(_BACKLOG)
    except OSError as error:
        opened.close()
        raise TrtbuildError(
            f"the gateway cannot listen on {host}:{port} ({error.strerror or error})", hint="Port 0 takes a free one."
        ) from error
    return opened


def address(opened: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = opened.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """uvicorn's server, which stops letting requests in as soon as it is told to stop.

    Args:
        gate: of the gateway.
    """

    def __init__(self, config: uvicorn.Config, gate: Gate) -> None:
        super().__init__(config)
        self._gate = gate

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop; a second SIGINT does not wait any more."""
        self._gate.is_draining = True
        super().handle_exit(sig, frame)


def server(gateway: Gateway, on_ready: Callable[[], None]) -> Server:
    """Return the server of a gateway; `serve(sockets=[...])` runs it."""
    config = uvicorn.Config(
        gateway.app(on_ready),
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=math.ceil(gateway.settings.drain_timeout_s),
    )
    return Server(config, gateway.gate)


def serve(settings: Settings, *, on_ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; returns when what ran has finished or the drain time is over.

    Args:
        on_ready: called with the URL as soon as requests are taken.

    Raises:
        TrtbuildError: the port or the tokenizer cannot be used.
    """
    gateway = Gateway(settings)
    opened = listen(settings.host, settings.port)
    # uvicorn raises the signals again when it is done; that is no reason to die by them.
    before = {number: signal.signal(number, _ignore) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        running = server(gateway, lambda: on_ready(address(opened)))
        asyncio.run(running.serve(sockets=[opened]))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        opened.close()


def _ignore(_number: int, _frame: FrameType | None) -> None:
    return None
