"""HTTP to Triton's generate endpoints within an event loop: each request on a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from trtbuild_client import http_documents
from trtbuild_client.connection import Connection
from trtbuild_client.encryption import tls_context
from trtbuild_client.errors import Cancelled, ClientError, ModelNotFound, NotReady
from trtbuild_client.events import EventParser, documents
from trtbuild_client.faults import no_answer, too_late, too_long
from trtbuild_client.http_wire import ResponseParser, request_bytes
from trtbuild_client.wire import AsyncCall, ModelInfo, Reply, WireRequest


class _Link(asyncio.Protocol):
    """One connection: what comes goes to whoever reads; no stream objects, no task per read."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.error: Exception | None = None
        self.is_lost = False
        self._received = bytearray()
        self._waiter: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to write."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Keep what came and wake the reader."""
        self._received += data
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        """Remember the end and wake the reader."""
        self.is_lost, self.error = True, error
        self._wake()

    @property
    def is_clean(self) -> bool:
        """Whether another request can use it."""
        return not self.is_lost and not self._received

    async def read(self) -> bytes:
        """Return what has come, waiting for it; b"" at the end.

        Raises:
            OSError: the connection broke.
        """
        while not self._received:
            if self.is_lost:
                if self.error is not None:
                    raise self.error
                return b""
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        data = bytes(self._received)
        self._received.clear()
        return data

    def write(self, data: bytes) -> None:
        """Send."""
        assert self.transport is not None
        self.transport.write(data)

    def close(self) -> None:
        """Close it at once, also for who reads."""
        if self.transport is not None:
            self.transport.abort()
        self.is_lost = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class AsyncHttpTransport:
    """Connections to one Triton server, for one event loop.

    Args:
        connection: the server and how it is reached.
        connect_timeout_s: deadline of connecting, and of every question about server or models.

    Raises:
        InvalidRequest: a TLS file cannot be read.
    """

    def __init__(self, connection: Connection, *, connect_timeout_s: float) -> None:
        self.address = connection.address
        self.connection = connection
        self.connect_timeout_s = connect_timeout_s
        self._headers = connection.metadata()
        self._tls = None if connection.tls is None else tls_context(connection.tls)
        self._idle: list[_Link] = []
        self._busy: set[_Link] = set()

    async def close(self) -> None:
        """Close all connections; running calls are cancelled."""
        for link in [*self._idle, *self._busy]:
            link.close()

    async def check_ready(self, model: str) -> None:
        """Return when server and model serve.

        Raises:
            ConnectError: nobody answers.
            NotReady, ModelNotFound: the server answers, but does not serve the model.
        """
        if (await self._ask("/v2/health/ready"))[0] != 200:
            raise NotReady(f"server {self.address} is not ready", hint="Models are loading, or one failed to load.")
        if (await self._ask(http_documents.model_path(model, "ready")))[0] != 200:
            await self.model_info(model)  # says so if there is no such model
            raise NotReady(f"model '{model}' on {self.address} is not ready", hint="Read the server's log.")

    async def model_info(self, model: str) -> ModelInfo:
        """Return inputs, outputs and transaction policy of a model.

        Raises:
            ClientError: see `check_ready`.
        """
        try:
            _, metadata = await self._ask(http_documents.model_path(model), model)
        except ModelNotFound as error:
            error.hint = await self._known_models() or error.hint
            raise
        _, config = await self._ask(http_documents.model_path(model, "config"), model)
        found = (http_documents.only_document(metadata), http_documents.only_document(config))
        return http_documents.model_info(model, *found, self.address)

    async def start(self, request: WireRequest, info: ModelInfo) -> AsyncCall:
        """Send a request and return its replies.

        Raises:
            InvalidRequest: it cannot be written as JSON.
        """
        data = http_documents.body(request)
        limit_bytes = self.connection.max_message_bytes
        if len(data) > limit_bytes:
            raise too_long(len(data), limit_bytes)
        path = http_documents.model_path(info.name, http_documents.verb_of(info, request.tensors))
        return _AsyncHttpCall(self, request_bytes("POST", path, self.address, self._headers, data), request, info)

    async def _known_models(self) -> str:
        try:
            return http_documents.known_models(*await self._ask(http_documents.INDEX_PATH, body=b"{}"))
        except ClientError:  # a server may forbid this question; the hint is then a general one
            return ""

    async def _ask(self, path: str, model: str | None = None, *, body: bytes | None = None) -> tuple[int, bytes]:
        """Return status and body of the answer to a GET, or with a body to a POST; with a model, a status other than 200 is an error of it."""
        parser = ResponseParser(self.connection.max_message_bytes)
        question = request_bytes("GET" if body is None else "POST", path, self.address, self._headers, body)
        link = None

        async def exchange() -> bytes:
            nonlocal link
            link = await self.connect()
            link.write(question)
            data = b""
            while not parser.is_done:
                received = await link.read()
                if not received and not parser.eof():
                    raise http_documents.broken(self.address, "", is_unsent=False)
                data += parser.push(received) if received else b""
            return data

        try:
            data = await asyncio.wait_for(exchange(), self.connect_timeout_s)
        except asyncio.TimeoutError as error:
            raise no_answer(self.address, self.connect_timeout_s, "HTTP") from error
        except OSError as error:
            raise http_documents.broken(self.address, error.strerror or error, is_unsent=link is None) from error
        finally:
            if link is not None:
                self.give_back(link, is_reusable=parser.is_reusable)
        assert parser.head is not None  # the body is complete
        if parser.head.status in (401, 403) or (model is not None and parser.head.status != 200):
            raise http_documents.failure(parser.head, data, address=self.address, model=model or "")
        return parser.head.status, data

    async def connect(self) -> _Link:
        """Return a connection, an idle one if there is one that still stands."""
        while self._idle:
            link = self._idle.pop()
            if link.is_clean:
                self._busy.add(link)
                return link
            link.close()
        tls = self.connection.tls
        name = ((tls and tls.server_name) or self.connection.host) if self._tls is not None else None
        _, link = await asyncio.get_running_loop().create_connection(
            _Link, self.connection.host, self.connection.port, ssl=self._tls, server_hostname=name
        )
        self._busy.add(link)
        return link

    def give_back(self, link: _Link, *, is_reusable: bool) -> None:
        """Keep a connection for later, or close it."""
        self._busy.discard(link)
        if is_reusable and link.is_clean and len(self._idle) < self.connection.idle_connections:
            self._idle.append(link)
        else:
            link.close()


class _AsyncHttpCall:
    """A running POST to generate or generate_stream."""

    def __init__(self, transport: AsyncHttpTransport, data: bytes, request: WireRequest, info: ModelInfo) -> None:
        self._transport = transport
        self._data = data
        self._request = request
        self._info = info
        self._link: _Link | None = None
        self._is_cancelled = False
        self._is_late = False

    async def __aiter__(self) -> AsyncIterator[Reply]:
        transport, request = self._transport, self._request
        parser = ResponseParser(transport.connection.max_message_bytes)
        timer = None
        if request.timeout_s is not None:
            timer = asyncio.get_running_loop().call_later(request.timeout_s, self._expire)
        try:
            limit_s = min(transport.connect_timeout_s, request.timeout_s or transport.connect_timeout_s)
            self._link = await asyncio.wait_for(transport.connect(), limit_s)
            self._link.write(self._data)
            async for reply in self._replies(self._link, parser):
                yield reply
        except (OSError, asyncio.TimeoutError, ClientError) as error:
            raise self._failure(error) from error
        finally:
            if timer is not None:
                timer.cancel()
            if self._link is not None:
                transport.give_back(self._link, is_reusable=parser.is_reusable and not self._is_cancelled)

    async def _replies(self, link: _Link, parser: ResponseParser) -> AsyncIterator[Reply]:
        address, info = self._transport.address, self._info
        events, whole = EventParser(), bytearray()
        while not parser.is_done:
            received = await link.read()
            if not received and not parser.eof():
                raise http_documents.broken(address, "", is_unsent=False)
            body = parser.push(received) if received else b""
            if parser.head is not None and parser.head.status == 200 and parser.head.is_event_stream:
                for data in events.push(body) + (events.end() if parser.is_done else []):
                    for document in documents(data):
                        yield http_documents.reply(document, info, address)
            else:
                whole += body
        assert parser.head is not None  # the body is complete
        if parser.head.status != 200:
            raise http_documents.failure(parser.head, bytes(whole), address=address, model=info.name)
        if not parser.head.is_event_stream:
            yield http_documents.reply(http_documents.only_document(bytes(whole)), info, address)

    def cancel(self) -> None:
        """Give the request up: the server sees its connection end."""
        self._is_cancelled = True
        if self._link is not None:
            self._link.close()

    async def finish(self) -> None:
        """Nothing is left to do: the end of the body was the end."""

    def _expire(self) -> None:
        self._is_late = True
        if self._link is not None:
            self._link.close()

    def _failure(self, error: Any) -> ClientError:
        address, request = self._transport.address, self._request
        if self._is_late:
            return too_late(address, request)
        if self._is_cancelled:
            return Cancelled(f"model '{request.model}' on {address}: cancelled", hint="This program cancelled it.")
        if isinstance(error, ClientError):
            return error
        if isinstance(error, asyncio.TimeoutError):
            return no_answer(address, self._transport.connect_timeout_s, "HTTP")
        return http_documents.broken(address, error.strerror or error, is_unsent=self._link is None)
