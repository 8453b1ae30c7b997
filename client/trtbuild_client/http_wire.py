"""HTTP/1.1 from a client's side without input and output: bytes of requests, and a parser of responses.

Threads and event loops share it; reading, waiting and cancelling are theirs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from trtbuild_client.errors import ServerError

_MAX_HEAD_BYTES = 65_536
#: RFC 9110, sections 15 and 8.6; more digits than 18 are longer than any body.
_STATUS, _LENGTH = re.compile(r"[0-9]{3}"), re.compile(r"[0-9]{1,18}")


def request_bytes(
    method: str, path: str, host: str, headers: Sequence[tuple[str, str]], body: bytes | None = None
) -> bytes:
    """Return a request as it is sent."""
    lines = [f"{method} {path} HTTP/1.1", f"host: {host}", "accept-encoding: identity"]
    lines += [f"{name}: {value}" for name, value in headers]
    if body is not None:
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers of a response, names in lower case."""

    status: int
    headers: dict[str, str]

    @property
    def is_event_stream(self) -> bool:
        """Whether the body is a stream of events."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower() == "text/event-stream"


class ResponseParser:
    """Reads one response out of bytes as they come.

    Args:
        max_bytes: longest body that is taken.

    Attributes:
        head: None until it is complete.
        is_done: the body is complete.
    """

    def __init__(self, max_bytes: int) -> None:
        self.head: Head | None = None
        self.is_done = False
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._left_bytes: int | None = None
        self._is_chunked = False
        self._is_in_trailers = False
        self._has_any = False

    @property
    def has_begun(self) -> bool:
        """Whether any byte has come."""
        return self._has_any

    @property
    def is_reusable(self) -> bool:
        """Whether the connection can carry another request."""
        if not self.is_done or self.head is None or self._buffer:
            return False
        return self.head.headers.get("connection", "").lower() != "close"

    def push(self, data: bytes) -> bytes:
        """Take bytes and return those of the body that they hold.

        Raises:
            ServerError: it is no HTTP response, or longer than allowed.
        """
        self._has_any = True
        self._buffer += data
        if self.head is None and not self._take_head():
            return b""
        return self._take_chunks() if self._is_chunked else self._take_plain()

    def eof(self) -> bool:
        """Note that the connection is at its end; return whether the response is complete."""
        if self.head is not None and self._left_bytes is None and not self._is_chunked:
            self.is_done = True  # neither length nor chunks: the end of the connection is the end of the body
        return self.is_done

    def _take_head(self) -> bool:
        while True:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > _MAX_HEAD_BYTES:
                    raise _broken("its head never ends")
                return False
            lines = self._buffer[:end].decode("latin-1").split("\r\n")
            del self._buffer[: end + 4]
            words = lines[0].split(" ", 2)
            if len(words) < 2 or not words[0].startswith("HTTP/1.") or not _STATUS.fullmatch(words[1]):
                raise _broken(f"it begins with {lines[0][:80]!r}")
            status = int(words[1])
            if status >= 200:
                break
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        self.head = Head(status, headers)
        self._is_chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        length = headers.get("content-length")
        if not self._is_chunked and length is not None:
            if not _LENGTH.fullmatch(length) or int(length) > self._max_bytes:
                raise _broken(
                    f"its length is {length[:40]} bytes, more than max_message_bytes={self._max_bytes} or none"
                )
            self._left_bytes = int(length)
            self.is_done = self._left_bytes == 0
        if status == 204:
            self.is_done = True
        return True

    def _take_plain(self) -> bytes:
        if self._left_bytes is None:
            data = bytes(self._buffer)
            self._buffer.clear()
            return data
        data = bytes(self._buffer[: self._left_bytes])
        del self._buffer[: len(data)]
        self._left_bytes -= len(data)
        self.is_done = self._left_bytes == 0
        return data

    def _take_chunks(self) -> bytes:
        body = bytearray()
        while not self.is_done:
            if self._left_bytes:  # within a chunk; the line end behind it counts as part of it
                taken = self._buffer[: self._left_bytes]
                del self._buffer[: len(taken)]
                body += taken[: max(self._left_bytes - 2, 0)]
                self._left_bytes -= len(taken)
                if self._left_bytes:
                    break
                continue
            end = self._buffer.find(b"\r\n")
            if end < 0:
                break
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 2]
            if self._is_in_trailers:
                self.is_done = not line
                continue
            try:
                size = int(line.partition(b";")[0], 16)
            except ValueError as error:
                raise _broken(f"a chunk begins with {line[:40]!r}") from error
            if not 0 <= size <= self._max_bytes:
                raise _broken(f"a chunk of {size} bytes is longer than max_message_bytes={self._max_bytes}")
            self._is_in_trailers = size == 0
            self._left_bytes = size + 2 if size else None
        return bytes(body)


def _broken(what: str) -> ServerError:
    return ServerError(
        f"the server's HTTP response cannot be read: {what}", hint="Is this the HTTP port of a Triton server?"
    )
