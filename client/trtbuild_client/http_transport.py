"""HTTP to Triton's generate endpoints for threads: connections of our own, which any thread may cut."""

from __future__ import annotations

import math
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from typing import Any

from trtbuild_client import http_documents
from trtbuild_client.connection import Connection
from trtbuild_client.durations import LONGEST_S
from trtbuild_client.encryption import tls_context
from trtbuild_client.errors import Cancelled, ClientError, ModelNotFound, NotReady
from trtbuild_client.events import EventParser, documents
from trtbuild_client.faults import no_answer, too_late, too_long
from trtbuild_client.http_wire import ResponseParser, request_bytes
from trtbuild_client.wire import Call, ModelInfo, Reply, WireRequest

_READ_BYTES = 65_536
#: MAX_TCP_KEEPIDLE of Linux (include/net/tcp.h).
_MOST_KEEPIDLE_S = 32_767


class HttpTransport:
    """Connections to one Triton server; safe to use from many threads, each request on a connection of its own.

    Args:
        connection: the server and how it is reached.
        connect_timeout_s: deadline of connecting, and of every question about server or models.

    Raises:
        InvalidRequest: a TLS file cannot be read.
    """

    def __init__(self, connection: Connection, *, connect_timeout_s: float) -> None:
        self.address = connection.address
        self._connection = connection
        self._connect_timeout_s = connect_timeout_s
        self._headers = connection.metadata()
        self._tls = None if connection.tls is None else tls_context(connection.tls)
        self._idle: list[socket.socket] = []
        self._busy: set[_HttpCall] = set()
        self._lock = threading.Lock()
        self._is_closed = False

    def close(self) -> None:
        """Close all connections; running calls are cancelled."""
        with self._lock:
            self._is_closed = True
            idle, busy = self._idle, list(self._busy)
            self._idle = []
        for each in idle:
            each.close()
        for call in busy:
            call.cancel()

    def check_ready(self, model: str) -> None:
        """Return when server and model serve.

        Raises:
            ConnectError: nobody answers.
            NotReady, ModelNotFound: the server answers, but does not serve the model.
        """
        if self._status("/v2/health/ready") != 200:
            raise NotReady(f"server {self.address} is not ready", hint="Models are loading, or one failed to load.")
        if self._status(http_documents.model_path(model, "ready")) != 200:
            self.model_info(model)  # says so if there is no such model
            raise NotReady(f"model '{model}' on {self.address} is not ready", hint="Read the server's log.")

    def model_info(self, model: str) -> ModelInfo:
        """Return inputs, outputs and transaction policy of a model.

        Raises:
            ClientError: see `check_ready`.
        """
        try:
            metadata = self._document(http_documents.model_path(model), model)
        except ModelNotFound as error:
            error.hint = self._known_models() or error.hint
            raise
        config = self._document(http_documents.model_path(model, "config"), model)
        return http_documents.model_info(model, metadata, config, self.address)

    def start(self, request: WireRequest, info: ModelInfo) -> Call:
        """Send a request and return its replies.

        Raises:
            InvalidRequest: it cannot be written as JSON.
        """
        data = http_documents.body(request)
        if len(data) > self._connection.max_message_bytes:
            raise too_long(len(data), self._connection.max_message_bytes)
        path = http_documents.model_path(info.name, http_documents.verb_of(info, request.tensors))
        return _HttpCall(self, request_bytes("POST", path, self.address, self._headers, data), request, info)

    def get(self, path: str) -> tuple[int, bytes]:
        """Return (status, body) of a document of the server.

        Raises:
            ConnectError: nobody answers, or not in time.
            ServerError: in no HTTP.
            Unauthorized: it wants another token.
        """
        return self._ask(path, "")

    def _status(self, path: str) -> int:
        status, _ = self._ask(path, "")
        return status

    def _known_models(self) -> str:
        """Return a hint that names the models of this server, "" when it does not tell."""
        try:
            return http_documents.known_models(*self._ask(http_documents.INDEX_PATH, "", body=b"{}"))
        except ClientError:  # a server may forbid this question; the hint is then a general one
            return ""

    def _document(self, path: str, model: str) -> Any:
        _, data = self._ask(path, model, is_checked=True)
        return http_documents.only_document(data)

    def _ask(self, path: str, model: str, *, is_checked: bool = False, body: bytes | None = None) -> tuple[int, bytes]:
        """Return status and body of the answer to a question: a GET, or with a body a POST."""
        deadline_s = time.monotonic() + self._connect_timeout_s
        parser = ResponseParser(self._connection.max_message_bytes)
        data = b""
        sock = None
        try:
            sock = self.connect(deadline_s)
            method = "GET" if body is None else "POST"
            sock.sendall(request_bytes(method, path, self.address, self._headers, body))
            while not parser.is_done:
                received = read(sock, deadline_s)
                if not received and not parser.eof():
                    raise http_documents.broken(self.address, "", is_unsent=False)
                data += parser.push(received) if received else b""
        except TimeoutError as error:
            raise no_answer(self.address, self._connect_timeout_s, "HTTP") from error
        except OSError as error:
            raise http_documents.broken(self.address, error.strerror or error, is_unsent=sock is None) from error
        finally:
            if sock is not None:
                self.give_back(sock, is_reusable=parser.is_reusable)
        assert parser.head is not None  # the body is complete
        if parser.head.status in (401, 403) or (is_checked and parser.head.status != 200):
            raise http_documents.failure(parser.head, data, address=self.address, model=model)
        return parser.head.status, data

    def connect(self, deadline_s: float) -> socket.socket:
        """Return a connection, an idle one if there is one that still stands.

        Args:
            deadline_s: `time.monotonic` until which it must have come about.
        """
        while True:
            with self._lock:
                idle = self._idle.pop() if self._idle else None
            if idle is None:
                break
            if _stands(idle):
                return idle
            idle.close()
        sock = socket.create_connection((self._connection.host, self._connection.port), _left(deadline_s))
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._connection.keepalive_s is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                if hasattr(socket, "TCP_KEEPIDLE"):
                    idle_s = min(max(round(self._connection.keepalive_s), 1), _MOST_KEEPIDLE_S)
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
            if self._tls is not None:
                tls = self._connection.tls
                name = (tls and tls.server_name) or self._connection.host
                return self._tls.wrap_socket(sock, server_hostname=name)
        except BaseException:
            sock.close()
            raise
        return sock

    def give_back(self, sock: socket.socket, *, is_reusable: bool) -> None:
        """Keep a connection for later, or close it."""
        with self._lock:
            if is_reusable and not self._is_closed and len(self._idle) < self._connection.idle_connections:
                self._idle.append(sock)
                return
        sock.close()

    def began(self, call: _HttpCall) -> None:
        """Remember a running call."""
        with self._lock:
            self._busy.add(call)

    def ended(self, call: _HttpCall) -> None:
        """Forget a call."""
        with self._lock:
            self._busy.discard(call)


class _HttpCall:
    """A running POST to generate or generate_stream."""

    def __init__(self, transport: HttpTransport, data: bytes, request: WireRequest, info: ModelInfo) -> None:
        self._transport = transport
        self._data = data
        self._request = request
        self._info = info
        self._sock: socket.socket | None = None
        self._is_cancelled = False
        self._lock = threading.Lock()
        self._parser = ResponseParser(transport._connection.max_message_bytes)

    def __iter__(self) -> Iterator[Reply]:
        request = self._request
        start_s = time.monotonic()
        deadline_s = start_s + (request.timeout_s if request.timeout_s is not None else math.inf)
        self._transport.began(self)
        try:
            sock = self._transport.connect(min(deadline_s, start_s + self._transport._connect_timeout_s))
            with self._lock:
                self._sock = sock
            if self._is_cancelled:
                raise OSError("cancelled")
            sock.settimeout(_left(deadline_s))
            sock.sendall(self._data)
            yield from self._replies(sock, deadline_s)
        except (OSError, ClientError) as error:
            raise self._failure(error) from error
        finally:
            self._transport.ended(self)
            self._release()

    def _replies(self, sock: socket.socket, deadline_s: float) -> Iterator[Reply]:
        parser, address = self._parser, self._transport.address
        events, whole = EventParser(), bytearray()
        while not parser.is_done:
            received = read(sock, deadline_s)
            if not received and not parser.eof():
                raise http_documents.broken(address, "", is_unsent=False)
            body = parser.push(received) if received else b""
            if parser.head is not None and parser.head.status == 200 and parser.head.is_event_stream:
                found = events.push(body) + (events.end() if parser.is_done else [])
                for data in found:
                    for document in documents(data):
                        yield http_documents.reply(document, self._info, address)
            else:
                whole += body
        assert parser.head is not None  # the body is complete
        if parser.head.status != 200:
            raise http_documents.failure(parser.head, bytes(whole), address=address, model=self._info.name)
        if not parser.head.is_event_stream:
            yield http_documents.reply(http_documents.only_document(bytes(whole)), self._info, address)

    def cancel(self) -> None:
        """Give the request up: the server sees its connection end."""
        with self._lock:
            self._is_cancelled = True
            if self._sock is not None:
                try:
                    self._sock.shutdown(socket.SHUT_RDWR)
                except OSError:  # it is over already
                    pass

    def finish(self) -> None:
        """Nothing is left to do: the end of the body was the end."""

    def _failure(self, error: OSError | ClientError) -> ClientError:
        address, request = self._transport.address, self._request
        if self._is_cancelled:
            return Cancelled(f"model '{request.model}' on {address}: cancelled", hint="This program cancelled it.")
        if isinstance(error, ClientError):
            return error
        if isinstance(error, TimeoutError):
            if self._sock is None:
                return no_answer(address, self._transport._connect_timeout_s, "HTTP")
            return too_late(address, request)
        return http_documents.broken(address, error.strerror or error, is_unsent=self._sock is None)

    def _release(self) -> None:
        with self._lock:
            sock, self._sock = self._sock, None
        if sock is not None:
            self._transport.give_back(sock, is_reusable=self._parser.is_reusable and not self._is_cancelled)


def read(sock: socket.socket, deadline_s: float) -> bytes:
    """Return what comes next, b"" at the end.

    Raises:
        TimeoutError: nothing came until the deadline.
    """
    sock.settimeout(_left(deadline_s))
    return sock.recv(_READ_BYTES)


def _left(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("the deadline has passed")
    return min(left_s, LONGEST_S)


def _stands(sock: socket.socket) -> bool:
    """Return whether an idle connection can be used: a server that closed it has left its farewell to be read."""
    try:
        sock.settimeout(0)
        sock.recv(1, 0 if isinstance(sock, ssl.SSLSocket) else socket.MSG_PEEK)
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    except OSError:
        return False
    return False  # closed, or it says what nobody asked for
