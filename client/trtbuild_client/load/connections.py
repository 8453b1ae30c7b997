"""A non-blocking socket that connects, reads and writes. Knows the driver only as the one who watches sockets, and no protocol."""

from __future__ import annotations

import errno
import os
import select
import socket
import ssl
import struct
from collections import deque
from contextlib import suppress
from functools import lru_cache
from typing import Any, Protocol

from trtbuild_client.connection import Connection as Server
from trtbuild_client.encryption import tls_failure
from trtbuild_client.load.exchange import Exchange
from trtbuild_client.load.outcomes import Outcome

#: Read at once. Larger buffers would come from the system with every call, at the price of several messages.
_READ_BYTES = 1 << 15
#: Asks Linux to say when data reached this machine (socket(7), SO_TIMESTAMPNS; asm-generic/socket.h: the socket module has no name for it).
_SO_TIMESTAMPNS = 35
_STAMP = struct.Struct("@ll")  # struct timespec: seconds, nanoseconds
_NOTE_BYTES = socket.CMSG_SPACE(_STAMP.size)


class Watcher(Protocol):
    """Tells a connection when its socket is ready.

    Attributes:
        clock_offset_ns: `time.perf_counter_ns` minus `time.time_ns`.
        believed_from_ns: an earlier time of arrival is not believed: the clock of the system was set.
    """

    clock_offset_ns: int
    believed_from_ns: int

    def watch(self, connection: Connection, mask: int) -> None:
        """Report these events of the socket from now on."""

    def unwatch(self, connection: Connection) -> None:
        """Report nothing more: the socket is closed."""

    def free(self, connection: Connection) -> None:
        """Know that the connection may be able to take another request."""


class Connection:
    """A socket that connects, reads and writes without waiting.

    Args:
        server: its addresses are tried one after the other, as a name such as localhost may have one where nobody listens.
        tls: for an encrypted connection.
        watcher: who reports readiness.
        deadline_ns: when connecting must be done.

    Attributes:
        active: requests that have not ended.
        is_closed: it takes no more requests.
        is_idle: the driver keeps it for the next request.

    Raises:
        OSError: the name is not known, or no address can even be tried.
    """

    def __init__(self, server: Server, tls: ssl.SSLContext | None, watcher: Watcher, deadline_ns: int) -> None:
        self.active = 0
        self.is_closed = False
        self.is_idle = False
        self._is_open = self._is_connected = False
        self._is_encrypted = tls is not None
        self.deadline_ns = deadline_ns
        self._watcher = watcher
        self._unsent = b""
        self._server = server
        self._tls = tls
        self._addresses = deque(_addresses(server.host, server.port))
        self.sock = self._connect()
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
                if self._is_encrypted:
                    data, notes = self.sock.recv(_READ_BYTES), None
                else:
                    data, notes, _, _ = self.sock.recvmsg(_READ_BYTES, _NOTE_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError as error:
                self.close(now_ns, f"the connection to {self._server.address} broke: {error.strerror or error}")
                return
            if not data:
                self.close(now_ns, f"{self._server.address} closed the connection")
                return
            if notes:
                seconds, rest_ns = _STAMP.unpack(notes[0][2])
                watcher = self._watcher
                came_ns = seconds * 1_000_000_000 + rest_ns + watcher.clock_offset_ns
                if watcher.believed_from_ns < came_ns < now_ns:
                    now_ns = came_ns
            if len(data) == _READ_BYTES or self._is_encrypted:
                data += self._more()
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
            self.close(now_ns, f"{self._server.address} did not accept the connection in time", Outcome.CONNECT_TIMEOUT)

    def close(self, now_ns: int, text: str = "closed", outcome: Outcome = Outcome.CONNECTION_LOST) -> None:
        """Close the socket; requests that have not ended end now."""
        if self.is_closed:
            return
        self.is_closed = True
        self._watcher.unwatch(self)
        self.sock.close()
        self.ended(now_ns, text, outcome)

    def _connect(self) -> socket.socket:
        """Return a socket that connects to the next address.

        Raises:
            OSError: none can be tried.
        """
        failure = errno.EADDRNOTAVAIL
        while self._addresses:
            family, target = self._addresses.popleft()
            plain = socket.socket(family, socket.SOCK_STREAM)
            try:
                plain.setblocking(False)
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with suppress(OSError):  # a sandbox may not know it; the loop's own times are used then
                    plain.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
                failure = plain.connect_ex(target)
                if failure in (0, errno.EINPROGRESS):
                    return plain if self._tls is None else self._wrapped(self._tls, plain)
            except BaseException:
                plain.close()
                raise
            plain.close()
        raise OSError(failure, f"no connection to {self._server.address} ({os.strerror(failure)})")

    def _wrapped(self, tls: ssl.SSLContext, plain: socket.socket) -> ssl.SSLSocket:
        assert self._server.tls is not None
        name = self._server.tls.server_name or self._server.host
        return tls.wrap_socket(plain, server_hostname=name, do_handshake_on_connect=False)

    def _go_on_connecting(self, now_ns: int) -> None:
        if not self._is_connected:
            failure = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if failure:
                self._try_next(failure, now_ns)
                return
            try:
                self.sock.getpeername()
            except OSError:
                return  # still connecting
            self._is_connected = True
        if isinstance(self.sock, ssl.SSLSocket):
            try:
                self.sock.do_handshake()
            except ssl.SSLWantReadError:
                self._watcher.watch(self, select.EPOLLIN)
                return
            except ssl.SSLWantWriteError:
                self._watcher.watch(self, select.EPOLLOUT)
                return
            except OSError as error:
                text = f"no TLS with {self._server.address}: {tls_failure(error)}"
                self.close(now_ns, text, Outcome.CONNECT_FAILED)
                return
        self._is_open = True
        self._watcher.watch(self, select.EPOLLIN)
        self.flush()

    def _try_next(self, failure: int, now_ns: int) -> None:
        """Go on with the next address of the server after one that refused."""
        if self._addresses:
            self._watcher.unwatch(self)
            self.sock.close()
            try:
                self.sock = self._connect()
            except OSError as error:
                failure = error.errno or failure
            else:
                self.fd = self.sock.fileno()
                self._watcher.watch(self, select.EPOLLIN | select.EPOLLOUT)
                return
        text = f"no connection to {self._server.address} ({os.strerror(failure)})"
        self.close(now_ns, text, Outcome.CONNECT_FAILED)

    def _more(self) -> bytes:
        """Return what else has come, without waiting; what is wrong with the connection is found at the next reading."""
        pieces = []
        try:
            while piece := self.sock.recv(_READ_BYTES):
                pieces.append(piece)
                if len(piece) < _READ_BYTES and not self._is_encrypted:
                    break
        except OSError:
            pass
        return b"".join(pieces)


@lru_cache(maxsize=64)
def _addresses(host: str, port: int) -> tuple[tuple[int, Any], ...]:
    """Return (family, address) of all addresses of a server; asked once, as asking stops the loop."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple((family, address) for family, _, _, _, address in found)
