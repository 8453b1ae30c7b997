"""Responses of HTTP/1.1 (RFC 9112) as they arrive in pieces, and server-sent events in their bodies. Bytes in, bytes out; no socket."""

from __future__ import annotations

import re

_MAX_HEAD_BYTES = 1 << 16
#: RFC 9110, sections 15 and 8.6; a length of more digits would be one that never ends.
_STATUS, _LENGTH = re.compile(r"[0-9]{3}"), re.compile(r"[0-9]{1,18}")
#: Longest chunk, event, or body that is not streamed; one that never ends must not fill the memory.
MAX_BYTES = 1 << 26


class Http1Error(ValueError):
    """The bytes are no HTTP response."""


class Response:
    """One response.

    Attributes:
        status: 0 until the head has come.
        headers: names in lower case.
        is_complete: the whole body has come.
        keeps_connection: another request may follow on the connection.
    """

    __slots__ = ("_chunk", "_length", "_rest", "headers", "is_complete", "keeps_connection", "status")

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_complete = False
        self.keeps_connection = True
        self._rest = b""
        self._length: int | None = None  # of the body that is to come; None: until the connection ends
        self._chunk: int | None = None  # of the chunk that is to come; None when the body is not chunked

    @property
    def ends_with_connection(self) -> bool:
        """Whether only the end of the connection says where the body ends."""
        return bool(self.status) and self._length is None and self._chunk is None

    def feed(self, data: bytes) -> bytes:
        """Take bytes that came; return those of the body.

        Raises:
            Http1Error: they are no HTTP.
        """
        if not self.status:
            data = self._head(self._rest + data)
            if not self.status:
                return b""
        if self._chunk is not None:
            return self._chunked(self._rest + data if self._rest else data)
        if self._length is not None:
            data, beyond = data[: self._length], data[self._length :]
            if beyond:
                raise Http1Error("bytes after the body")
            self._length -= len(data)
            self.is_complete = self._length == 0
        return data

    def _head(self, data: bytes) -> bytes:
        """Read status and headers; return what follows them."""
        while True:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > _MAX_HEAD_BYTES:
                    raise Http1Error("headers without end")
                self._rest = data
                return b""
            lines = data[:end].decode("latin-1").split("\r\n")
            data = data[end + 4 :]
            parts = lines[0].split(" ", 2)
            if not parts[0].startswith("HTTP/1.") or len(parts) < 2 or not _STATUS.fullmatch(parts[1]):
                raise Http1Error(f"a response that begins with {lines[0][:60]!r}")
            if 100 <= int(parts[1]) < 200:  # an interim response; the real one follows
                continue
            self.status = int(parts[1])
            for line in lines[1:]:
                name, _, value = line.partition(":")
                self.headers[name.strip().lower()] = value.strip()
            break
        self._rest = b""
        connection = self.headers.get("connection", "").lower()
        self.keeps_connection = "close" not in connection and (parts[0] != "HTTP/1.0" or "keep-alive" in connection)
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._chunk = 0
        elif _LENGTH.fullmatch(self.headers.get("content-length", "")):
            self._length = int(self.headers["content-length"])
            self.is_complete = self._length == 0
        elif self.status in (204, 304):
            self.is_complete = True
        else:
            self.keeps_connection = False
        return data

    def _chunked(self, data: bytes) -> bytes:
        pieces = []
        position, size = 0, len(data)
        while not self.is_complete:
            end = data.find(b"\r\n", position)
            if end < 0:
                break
            text = data[position:end].split(b";", 1)[0].strip()
            try:
                length = int(text, 16)
            except ValueError as error:
                raise Http1Error(f"a chunk whose length is {text[:20]!r}") from error
            if not 0 <= length <= MAX_BYTES:
                raise Http1Error(f"a chunk of {length} bytes, allowed are {MAX_BYTES}")
            start = end + 2
            if length == 0:  # trailers may follow, and an empty line
                last = data.find(b"\r\n", start)
                while last > start:
                    start, last = last + 2, data.find(b"\r\n", last + 2)
                if last < 0:
                    break
                self.is_complete = True
                position = last + 2
                break
            if start + length + 2 > size:
                break
            pieces.append(data[start : start + length])
            position = start + length + 2
        self._rest = data[position:]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class Events:
    """Server-sent events (WHATWG HTML, section 9.2.6) from pieces of a body: only their data are kept."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of each event that is complete now.

        Raises:
            Http1Error: one is too long.
        """
        data = self._rest + data if self._rest else data
        if b"\r" in data:
            # A carriage return at the very end may be the first half of a line's end.
            data, held = (data[:-1], b"\r") if data.endswith(b"\r") else (data, b"")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n") + held
        *blocks, self._rest = data.split(b"\n\n")
        if len(self._rest) > MAX_BYTES:
            raise Http1Error(f"an event of more than {MAX_BYTES} bytes")
        return [each for block in blocks if (each := _data(block)) is not None]

    @property
    def rest(self) -> bytes:
        """What has come of an event that is not complete."""
        return self._rest


def _data(block: bytes) -> bytes | None:
    """Return the data of one event, None when it has none (a comment, a name)."""
    if b"\n" not in block:
        return block[5:].removeprefix(b" ") if block.startswith(b"data:") else None
    lines = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
