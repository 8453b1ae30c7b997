"""gRPC calls on a non-blocking socket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trtbuild_client.connection import Connection as Server
from trtbuild_client.load.connections import Connection, Watcher
from trtbuild_client.load.exchange import Exchange
from trtbuild_client.load.http2 import Http2
from trtbuild_client.load.http2_stream import Stream
from trtbuild_client.load.outcomes import Outcome

#: How long a call may stay open after its final response; it costs nothing but a stream.
_LINGER_NS = 1_000_000_000


class GrpcConnection(Connection):
    """gRPC calls over HTTP/2 on one socket.

    Args:
        make_message: request of an exchange -> bytes.
        path: of the RPC.
        timeout_s: what the server is told as its deadline.
    """

    def __init__(
        self,
        server: Server,
        watcher: Watcher,
        deadline_ns: int,
        *,
        make_message: Callable[[Any], bytes],
        path: str,
        timeout_s: float | None,
    ) -> None:
        self.http = Http2(server.address, server.metadata())
        self._make_message = make_message
        self._path = path
        self._timeout_s = timeout_s
        self._streams: dict[int, tuple[Stream, Exchange]] = {}
        super().__init__(server, None, watcher, deadline_ns)

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
            self.close(now_ns, http.error or f"{self._server.address} went away")

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
