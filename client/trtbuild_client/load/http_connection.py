"""HTTP/1.1 on a non-blocking socket."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

from trtbuild_client.connection import Connection as Server
from trtbuild_client.load.connections import Connection, Watcher
from trtbuild_client.load.exchange import Exchange
from trtbuild_client.load.outcomes import Outcome


class HttpConnection(Connection):
    """HTTP/1.1 on one socket, one request at a time."""

    def __init__(
        self,
        server: Server,
        tls: ssl.SSLContext | None,
        watcher: Watcher,
        deadline_ns: int,
        *,
        make_message: Callable[[Any], bytes],
    ) -> None:
        self._make_message = make_message
        self._exchange: Any = None
        self._waiting = b""
        super().__init__(server, tls, watcher, deadline_ns)

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
