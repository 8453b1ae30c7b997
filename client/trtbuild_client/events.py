"""Server-sent events out of a byte stream, however the network divides it. Knows no protocol above it.

The format is that of https://html.spec.whatwg.org/multipage/server-sent-events.html, of which `data` and comments matter here.
"""

from __future__ import annotations

import json
from typing import Any

from trtbuild_client.errors import ServerError

#: Longest event that is waited for; one that never ends must not fill the memory.
_MAX_EVENT_BYTES = 2**30
_QUOTED_BYTES = 200
_DECODER = json.JSONDecoder()


class EventParser:
    """Collects bytes and gives the data of each event that is complete.

    A line ends with LF, CR LF or CR; bytes are only decoded when their line is whole, so no character is ever cut.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._size_bytes = 0

    def push(self, piece: bytes) -> list[bytes]:
        """Return the data of the events that this piece completes; several `data` lines are joined by a line feed.

        Raises:
            ServerError: an event is longer than 1 GiB.
        """
        events: list[bytes] = []
        text = self._rest + piece
        # A CR at the very end may be half of a CR LF, so it waits for what follows.
        held = text[-1:] if text.endswith(b"\r") else b""
        lines = text[: len(text) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop() + held
        for line in lines:
            self._line(line, events)
        if len(self._rest) + self._size_bytes > _MAX_EVENT_BYTES:
            raise ServerError("an event of the stream never ends", hint="Is this an event stream?")
        return events

    def end(self) -> list[bytes]:
        """Return what is left after the last byte: an event whose closing blank line is missing."""
        events: list[bytes] = []
        for line in (self._rest.rstrip(b"\r"), b""):
            self._line(line, events)
        self._rest = b""
        return events

    def _line(self, line: bytes, events: list[bytes]) -> None:
        if line.startswith(b"data:"):
            data = line[6:] if line[5:6] == b" " else line[5:]
            self._data.append(data)
            self._size_bytes += len(data)
        elif line == b"data":
            self._data.append(b"")
        elif not line and self._data:
            events.append(b"\n".join(self._data))
            self._data, self._size_bytes = [], 0


def documents(data: bytes) -> list[Any]:
    """Return the JSON documents of one event: one, or several if the server glued whole ones together.

    Bytes that are not UTF-8 come back as surrogates (`surrogateescape`), so that nothing is lost.

    Raises:
        ServerError: it is not JSON; the message quotes at most 200 bytes of it.
    """
    text = data.decode("utf-8", "surrogateescape")
    found: list[Any] = []
    at = 0
    try:
        while at < len(text):
            document, at = _DECODER.raw_decode(text, at)
            found.append(document)
            at += len(text) - at - len(text[at:].lstrip())
    except (ValueError, RecursionError) as error:
        quoted = data[:_QUOTED_BYTES].decode("utf-8", "replace")
        raise ServerError(
            f"an event of the stream is no JSON: {quoted}", hint="The server, or a proxy before it, broke the stream."
        ) from error
    return found
