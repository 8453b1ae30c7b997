"""A mock server as a whole: opens its ports, serves until it is told to stop, in the foreground or in a thread."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import signal
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild_client.descriptors import raise_limit
from trtbuild_client.errors import ConnectError, InvalidRequest
from trtbuild_client.mock.engine import Engine
from trtbuild_client.mock.grpc_service import Service
from trtbuild_client.mock.http1 import HttpConnection
from trtbuild_client.mock.http2 import Connection
from trtbuild_client.mock.models import models
from trtbuild_client.mock.options import MockOptions
from trtbuild_client.mock.routes import Routes

_log = logging.getLogger(__name__)
#: Between two complaints that connections cannot be accepted.
_QUIET_S = 10.0


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a mock listens: HOST:PORT, None for what it does not open."""

    grpc: str | None
    http: str | None
    metrics: str | None

    def to_json(self) -> dict[str, str | None]:
        """Return them as JSON values."""
        return {"grpc": self.grpc, "http": self.http, "metrics": self.metrics}


class MockServer:
    """One mock server in a running event loop.

    Args:
        options: what it is to be.

    Attributes:
        engine: what works requests off, with the ledger.
    """

    def __init__(self, options: MockOptions) -> None:
        self.options = options
        self.engine = Engine(options)
        self._models = models(options)
        self.engine.counters.members.update({name: model.steps for name, model in self._models.items()})
        self._servers: list[asyncio.Server] = []
        self._connections: set[Connection | HttpConnection] = set()

    async def start(self) -> Addresses:
        """Open the ports.

        Raises:
            ConnectError: a port is taken, or the address is not ours.
            InvalidRequest: a certificate cannot be read.
        """
        options = self.options
        service, routes = Service(self.engine, self._models), Routes(self.engine, self._models)

        def grpc() -> Connection:
            connection = Connection(service.open_stream, self._connections.discard)
            self._connections.add(connection)
            return connection

        def http() -> HttpConnection:
            connection = HttpConnection(routes.serve, self._connections.discard)
            self._connections.add(connection)
            return connection

        return Addresses(
            grpc=await self._listen(options.grpc_port, grpc, alpn=["h2"]),
            http=await self._listen(options.http_port, http, alpn=["http/1.1"]),
            metrics=await self._listen(options.metrics_port, http, alpn=["http/1.1"]),
        )

    async def close(self) -> None:
        """Close ports and connections; what runs is cancelled."""
        for server in self._servers:
            for listener in server.sockets:
                asyncio.get_running_loop().remove_reader(listener)
        # What was accepted just now begins, while its server is open: asyncio would leave its socket open else.
        await asyncio.sleep(0)
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(
        self, port: int | None, protocol: Callable[[], asyncio.Protocol], *, alpn: list[str]
    ) -> str | None:
        if port is None:
            return None
        host = self.options.host
        try:
            server = await asyncio.get_running_loop().create_server(
                protocol, host, port, ssl=_tls(self.options, alpn), backlog=1024
            )
        except OSError as error:
            raise ConnectError(
                f"the mock cannot listen on {host}:{port} ({error.strerror or error})", hint="Port 0 takes a free one."
            ) from error
        self._servers.append(server)
        return f"{host}:{server.sockets[0].getsockname()[1]}"


def serve(options: MockOptions, *, on_ready: Callable[[Addresses], None], schedule_file: Path | None = None) -> None:
    """Serve until SIGTERM or SIGINT; returns when everything is closed.

    Args:
        on_ready: called with the addresses as soon as they are open.
        schedule_file: where the recorded schedule is written in the end, None for nowhere.

    Raises:
        ConnectError, InvalidRequest: the server could not be started.
    """

    async def main() -> None:
        raise_limit()
        server = MockServer(options)
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_Complaints())
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        try:
            on_ready(await server.start())
            await stopped.wait()
        finally:
            await server.close()
        if schedule_file is not None:
            schedule_file.write_text(json.dumps(server.engine.ledger.to_json()), encoding="utf-8")

    asyncio.run(main())


class _Complaints:
    """Says in one line that no connection can be accepted; asyncio would show a trace for each attempt, thousands in a second."""

    def __init__(self) -> None:
        self._quiet_until_s = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
        elif loop.time() >= self._quiet_until_s:
            self._quiet_until_s = loop.time() + _QUIET_S
            _log.warning("connections cannot be accepted: %s; raise `ulimit -n`, or send less at once", error.strerror)


@dataclass(frozen=True, slots=True)
class RunningMock:
    """A mock that runs in a thread of this process.

    Attributes:
        grpc, http, metrics: HOST:PORT of each endpoint, "" for one that is not open.
    """

    grpc: str
    http: str
    metrics: str
    server: MockServer
    loop: asyncio.AbstractEventLoop

    def schedule(self) -> dict[str, Any]:
        """Return the recorded schedule, see `Ledger.to_json`."""

        async def ask() -> dict[str, Any]:
            return self.server.engine.ledger.to_json()

        return asyncio.run_coroutine_threadsafe(ask(), self.loop).result()


@contextmanager
def running(options: MockOptions | None = None) -> Iterator[RunningMock]:
    """Run a mock in a thread while the block runs; for tests, and to try things out.

    Raises:
        ConnectError, InvalidRequest: the server could not be started.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="trtbuild-mock", daemon=True)
    thread.start()

    def wait(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    server = MockServer(options or MockOptions())
    try:
        addresses: Addresses = wait(server.start())
        yield RunningMock(addresses.grpc or "", addresses.http or "", addresses.metrics or "", server, loop)
    finally:
        wait(server.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _tls(options: MockOptions, alpn: list[str]) -> ssl.SSLContext | None:
    if options.tls_cert is None or options.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(options.tls_cert, options.tls_key)
        if options.tls_ca is not None:
            context.load_verify_locations(options.tls_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise InvalidRequest(
            f"certificate {options.tls_cert} or its key cannot be used: {error}", hint="Give PEM files."
        ) from error
    context.set_alpn_protocols(alpn)
    return context
