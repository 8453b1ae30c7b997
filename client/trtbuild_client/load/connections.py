"""Non-blocking sockets and what they carry: HTTP/2 with gRPC, or HTTP/1.1. Knows the driver only as the one who watches sockets."""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable
from typing import Any, Protocol

from trtbuild_client.load.exchange import Exchange
from trtbuild_client.load.http2 import Http2
from trtbuild_client.load.http2_stream import Stream
from trtbuild_client.load.outcomes import Outcome

#: Read at once. Larger buffers would come from the system with every call, at the price of several messages.
_READ_BYTES = 1 << 15
#: How long a call may stay open after its final response; it costs nothing but a stream.
_LINGER_NS = 1_000_000_000


class Watcher(Protocol):
    """Tells a connection when its socket is ready."""

    def watch(self, connection: Connection, mask: int) -> None:
        """Report these events of the socket from now on."""

    def unwatch(self, connection: Connection) -> None:
        """Report nothing more: the socket is closed."""

    def free(self, connection: Connection) -> None:
        """Know that the connection may be able to take another request."""


class Connection:
    """A socket that connects, reads and writes without waiting.

    Args:
        address: host and port.
        tls: for an encrypted connection, with the name that the certificate must have.
        watcher: who reports readiness.
        deadline_ns: when connecting must be done.

    Attributes:
        active: requests that have not ended.
        is_closed: it takes no more requests.
        is_idle: the driver keeps it for the next request.
    """

    def __init__(
        self, address: tuple[str, int], tls: ssl.SSLContext | None, watcher: Watcher, deadline_ns: int
    ) -> None:
        self.active = 0
        self.is_closed = False
        self.is_idle = False
        self._is_open = self._is_connected = False
        self._is_encrypted = tls is not None
        self.deadline_ns = deadline_ns
        self._watcher = watcher
        self._unsent = b""
        self._address = address
        family, _, _, _, target = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        plain = socket.socket(family, socket.SOCK_STREAM)
        plain.setblocking(False)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._failure = plain.connect_ex(target)
        self.sock: socket.socket = (
            plain if tls is None else tls.wrap_socket(plain, server_hostname=address[0], do_handshake_on_connect=False)
        )
        self.fd = self.sock.fileno()
        watcher.watch(self, select.EPOLLIN | select.EPOLLOUT)

    # What subclasses say.

    def receive(self, data: bytes, now_ns: int) -> None:
        """Take bytes that came."""
        raise NotImplementedError

    def ended(self, now_ns: int, text: str, outcome: Outcome) -> None:
        """End all requests: the connection is gone."""
        raise NotImplementedError

    def begin(self, exchange: Any) -> None:
        """Write a request."""
        raise NotImplementedError

    def give_up(self, exchange: Exchange) -> None:
        """Tell the server that a request is not wanted any more."""
        raise NotImplementedError

    def pending(self) -> bytes:
        """Return what is to be written now."""
        raise NotImplementedError

    @property
    def is_settled(self) -> bool:
        """Whether nothing more is to come of requests that have ended."""
        raise NotImplementedError

    # What the driver calls.

    def on_event(self, mask: int, now_ns: int) -> None:
        """Connect, read or write, whatever the socket is ready for."""
        if not self._is_open:
            self._go_on_connecting(now_ns)
            if not self._is_open:
                return
        if mask != select.EPOLLOUT:
            try:
                data = self.sock.recv(_READ_BYTES)
                if len(data) == _READ_BYTES or self._is_encrypted:
                    data += self._more()
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError as error:
                self.close(now_ns, f"the connection to {self._name} broke: {error.strerror or error}")
                return
            if not data:
                self.close(now_ns, f"{self._name} closed the connection")
                return
            self.receive(data, now_ns)
        if mask & select.EPOLLOUT and not self.is_closed:
            self.flush()

    def flush(self) -> None:
        """Write what waits, as far as the socket takes it."""
        if not self._is_open or self.is_closed:
            return
        data = self._unsent + self.pending()
        had_rest = bool(self._unsent)
        if not data and not had_rest:
            return
        try:
            sent = self.sock.send(data)
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            sent = 0
        except OSError:
            return  # reading says what is wrong
        self._unsent = data[sent:]
        if bool(self._unsent) != had_rest:
            self._watcher.watch(self, select.EPOLLIN | (select.EPOLLOUT if self._unsent else 0))

    def check(self, now_ns: int) -> None:
        """Give up connecting when it takes too long."""
        if not self._is_open and now_ns > self.deadline_ns:
            self.close(now_ns, f"{self._name} did not accept the connection in time", Outcome.CONNECT_TIMEOUT)

    def close(self, now_ns: int, text: str = "closed", outcome: Outcome = Outcome.CONNECTION_LOST) -> None:
        """Close the socket; requests that have not ended end now."""
        if self.is_closed:
            return
        self.is_closed = True
        self._watcher.unwatch(self)
        self.sock.close()
        self.ended(now_ns, text, outcome)

    @property
    def _name(self) -> str:
        return f"{self._address[0]}:{self._address[1]}"

    def _go_on_connecting(self, now_ns: int) -> None:
        failure = 0
        if not self._is_connected:
            failure = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if failure == 0:
                try:
                    self.sock.getpeername()
                except OSError:
                    return  # still connecting
                self._is_connected = True
        if failure:
            import os

            self.close(now_ns, f"no connection to {self._name} ({os.strerror(failure)})", Outcome.CONNECT_FAILED)
            return
        if self._is_encrypted:
            try:
                assert isinstance(self.sock, ssl.SSLSocket)
                self.sock.do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except (ssl.SSLError, OSError) as error:
                self.close(now_ns, f"no TLS with {self._name}: {error}", Outcome.CONNECT_FAILED)
                return
        self._is_open = True
        self._watcher.watch(self, select.EPOLLIN)
        self.flush()

    def _more(self) -> bytes:
        """Return what else has come, without waiting."""
        pieces = []
        try:
            while piece := self.sock.recv(_READ_BYTES):
                pieces.append(piece)
                if len(piece) < _READ_BYTES and not self._is_encrypted:
                    break
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        return b"".join(pieces)


class GrpcConnection(Connection):
    """gRPC calls over HTTP/2 on one socket.

    Args:
        make_message: request of an exchange -> bytes.
        path: of the RPC.
        timeout_s: what the server is told as its deadline.
    """

    def __init__(
        self,
        address: tuple[str, int],
        watcher: Watcher,
        deadline_ns: int,
        *,
        make_message: Callable[[Any], bytes],
        path: str,
        timeout_s: float | None,
    ) -> None:
        self.http = Http2(f"{address[0]}:{address[1]}")
        self._make_message = make_message
        self._path = path
        self._timeout_s = timeout_s
        self._streams: dict[int, tuple[Stream, Exchange]] = {}
        super().__init__(address, None, watcher, deadline_ns)

    def begin(self, exchange: Any) -> None:
        """Write a request."""
        stream = self.http.start(self._path, self._make_message(exchange), exchange, self._timeout_s)
        self._streams[stream.number] = stream, exchange
        self.flush()

    def give_up(self, exchange: Exchange) -> None:
        """Reset the stream of a request."""
        for number, (stream, each) in list(self._streams.items()):
            if each is exchange:
                del self._streams[number]
                self.http.reset(stream)
        self.flush()

    def pending(self) -> bytes:
        """Return the frames that wait."""
        out = self.http.out
        if not out:
            return b""
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        return data

    def receive(self, data: bytes, now_ns: int) -> None:
        """Take frames."""
        http = self.http
        http.receive(data, now_ns)
        if http.out:
            self.flush()
        if http.error is not None or (http.is_going_away and not http.streams):
            self.close(now_ns, http.error or f"{self._name} went away")

    def ended(self, now_ns: int, text: str, outcome: Outcome) -> None:
        """End all streams."""
        self._streams.clear()
        self.http.close(now_ns, text, outcome)

    @property
    def is_settled(self) -> bool:
        """Whether all calls are over."""
        return not self.http.streams

    def check(self, now_ns: int) -> None:
        """Also forget calls that ended, and close those that the server leaves open after their final response."""
        super().check(now_ns)
        for number, (stream, exchange) in list(self._streams.items()):
            if number not in self.http.streams:
                del self._streams[number]
            elif exchange.outcome is not None and now_ns > exchange.end_ns + _LINGER_NS:
                del self._streams[number]
                self.http.reset(stream)
        if self.http.out:
            self.flush()


class HttpConnection(Connection):
    """HTTP/1.1 on one socket, one request at a time."""

    def __init__(
        self,
        address: tuple[str, int],
        tls: ssl.SSLContext | None,
        watcher: Watcher,
        deadline_ns: int,
        *,
        make_message: Callable[[Any], bytes],
    ) -> None:
        self._make_message = make_message
        self._exchange: Any = None
        self._waiting = b""
        super().__init__(address, tls, watcher, deadline_ns)

    def begin(self, exchange: Any) -> None:
        """Write a request."""
        self._exchange = exchange
        self._waiting = self._make_message(exchange)
        self.flush()

    def give_up(self, exchange: Exchange) -> None:
        """Close the connection: HTTP/1.1 has no other way to cancel a request."""
        if exchange is self._exchange:
            self._exchange = None
            self.close(exchange.end_ns)

    def pending(self) -> bytes:
        """Return the request, once."""
        data, self._waiting = self._waiting, b""
        return data

    def receive(self, data: bytes, now_ns: int) -> None:
        """Take a part of a response."""
        exchange = self._exchange
        if exchange is None:  # nothing was asked
            self.close(now_ns, "an answer to no request")
            return
        exchange.receive(data, now_ns)
        if exchange.is_read:
            self._exchange = None
            if exchange.keeps_connection:
                self._watcher.free(self)
            else:
                self.close(now_ns)

    def ended(self, now_ns: int, text: str, outcome: Outcome) -> None:
        """End the request."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.lost(now_ns, text, outcome)

    @property
    def is_settled(self) -> bool:
        """Whether no response is being read."""
        return self._exchange is None

    @property
    def is_busy(self) -> bool:
        """Whether a response is still being read."""
        return self._exchange is not None
