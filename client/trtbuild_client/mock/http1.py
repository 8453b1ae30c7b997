"""HTTP/1.1 for a server in one event loop: one request after the other on a connection, answers whole or in chunks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

_END_OF_HEAD = b"\r\n\r\n"
_MAX_HEAD_BYTES = 65_536
_REASONS = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed",
    500: "Internal Server Error", 501: "Not Implemented", 503: "Service Unavailable",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request.

    Attributes:
        headers: names in lower case.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class HttpConnection(asyncio.Protocol):
    """One client's connection.

    Args:
        serve: answers a request; cancelled when the client goes away.
        on_lost: called once when the connection is gone.
    """

    def __init__(
        self,
        serve: Callable[[HttpRequest, HttpConnection], Awaitable[None]],
        on_lost: Callable[[HttpConnection], None] = lambda _: None,
    ) -> None:
        self._serve = serve
        self._on_lost = on_lost
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_chunked = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to write."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        """Cancel what still answers."""
        self._transport = None
        if self._task is not None:
            self._task.cancel()
        self._on_lost(self)

    def data_received(self, data: bytes) -> None:
        """Take bytes as they come."""
        self._buffer += data
        self._next()

    def close(self) -> None:
        """Close after what was written."""
        if self._transport is not None:
            self._transport.close()

    def drop(self) -> None:
        """Break the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def answer(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        """Send a whole answer."""
        self._write(_head(status, content_type, f"Content-Length: {len(body)}") + body)

    def answer_json(self, status: int, value: Any) -> None:
        """Send JSON."""
        self.answer(status, json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogateescape"))

    def begin(self, content_type: str) -> None:
        """Begin an answer in chunks."""
        self._is_chunked = True
        self._write(_head(200, content_type, "Transfer-Encoding: chunked\r\nCache-Control: no-cache"))

    def chunk(self, *parts: bytes) -> None:
        """Send chunks, together."""
        self._write(b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts))

    def end(self) -> None:
        """End an answer in chunks."""
        self._is_chunked = False
        self._write(b"0\r\n\r\n")

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _next(self) -> None:
        """Serve the next request if it is there and the one before is answered."""
        if self._task is not None or self._transport is None:
            return
        end = self._buffer.find(_END_OF_HEAD)
        if end < 0:
            if len(self._buffer) > _MAX_HEAD_BYTES:
                self.drop()
            elif self._buffer and not self._buffer[:1].isalpha():  # no method begins so, but TLS and HTTP/2's frames do
                self._refuse()
            return
        lines = self._buffer[:end].decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        length = headers.get("content-length", "0")
        if len(words) != 3 or not length.isdecimal():
            self._refuse()
            return
        body_end = end + len(_END_OF_HEAD) + int(length)
        if len(self._buffer) < body_end:
            if headers.get("expect", "").lower() == "100-continue" and len(self._buffer) == end + len(_END_OF_HEAD):
                self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return
        request = HttpRequest(words[0], words[1], headers, bytes(self._buffer[end + len(_END_OF_HEAD) : body_end]))
        del self._buffer[:body_end]
        self._task = asyncio.get_running_loop().create_task(self._run(request))
        self._task.add_done_callback(lambda task: self._done(task, request))

    def _refuse(self) -> None:
        self.answer_json(400, {"error": "this is no HTTP request"})
        self.close()

    async def _run(self, request: HttpRequest) -> None:
        await self._serve(request, self)

    def _done(self, task: asyncio.Task[None], request: HttpRequest) -> None:
        self._task = None
        if not task.cancelled():
            task.result()  # a defect of ours must be seen
        if self._is_chunked or request.headers.get("connection", "").lower() == "close":
            self.close()
        self._next()


def _head(status: int, content_type: str, more: str) -> bytes:
    reason = _REASONS.get(status, "Error")
    return f"HTTP/1.1 {status} {reason}\r\nContent-Type: {content_type}\r\n{more}\r\n\r\n".encode("latin-1")
