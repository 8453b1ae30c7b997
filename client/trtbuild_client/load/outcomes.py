"""The names under which whatever can happen to a request is counted. A request has one outcome, and any number of marks.

Codes are stored, names are shown; both are stable: new ones are added at the end.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag


class Outcome(IntEnum):
    """How a request ended."""

    OK = 0
    #: Nobody listens at the address, or it cannot be resolved.
    CONNECT_FAILED = 1
    #: The address did not accept the connection in time.
    CONNECT_TIMEOUT = 2
    #: The connection broke or was closed before the answer was complete.
    CONNECTION_LOST = 3
    #: The server gave up this stream only (HTTP/2 RST_STREAM).
    STREAM_RESET = 4
    #: The server said that it is going away and had not taken the request (HTTP/2 GOAWAY).
    SERVER_GOING_AWAY = 5
    #: The call ended with a gRPC status other than 0.
    GRPC_STATUS = 6
    #: An error message within the stream.
    SERVER_ERROR = 7
    #: An HTTP status other than 200.
    HTTP_STATUS = 8
    #: HTTP status 200 with an error in its body.
    ERROR_IN_200 = 9
    #: What came is not what the protocol allows.
    PROTOCOL_ERROR = 10
    #: An event that is no JSON, a field or a tensor of another type than it should have, or an answer that ends without ever having been one.
    BAD_EVENT = 11
    #: No token within the deadline of the first one.
    TIMEOUT_FIRST_TOKEN = 12
    #: Tokens came, then none for longer than the deadline between them.
    TIMEOUT_STALL = 13
    #: The deadline of the whole answer passed.
    TIMEOUT_TOTAL = 14
    #: A stream of HTTP events that ended before its end was announced.
    TRUNCATED = 15
    #: Given up by us: the run was interrupted, or a search had decided its rate.
    CANCELLED = 16
    #: Not ended when the time to wait after the last request was over.
    TIMEOUT_DRAIN = 17

    @property
    def label(self) -> str:
        """The name as it is shown and exported."""
        return self.name.lower()


class Mark(IntFlag):
    """What is worth knowing about a request whatever its outcome is."""

    #: Sent to warm the server up, or in the part of the run that does not count.
    WARMUP = 1
    #: The stream was closed without a final response.
    MISSING_FINAL = 2
    #: A second final response.
    DUPLICATE_FINAL = 4
    #: Tokens after the final response.
    LATE_DATA = 8
    #: The text is no valid UTF-8.
    INVALID_UTF8 = 16
    #: Fewer tokens than were asked for.
    SHORT = 32
    #: An answer without any token.
    EMPTY = 64
    #: Sent on a connection that was opened for it.
    NEW_CONNECTION = 128
    #: The server counted tokens for the whole answer only: how many came in each event is not known.
    COUNTED_AT_END = 256

    @property
    def labels(self) -> list[str]:
        """The names of the marks that are set."""
        return [mark.name.lower() for mark in Mark if mark in self and mark.name]


#: Who counted the tokens of an answer. "events" is a lower bound.
COUNTED_BY = ("events", "server", "usage", "tokenizer")
