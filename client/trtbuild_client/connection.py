"""How a server is reached: address and scheme, TLS, credentials, keepalive, sizes, retries. Values only; opens nothing."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from trtbuild_client import arguments
from trtbuild_client.deadlines import seconds
from trtbuild_client.errors import ClientError, InvalidRequest

Protocol = Literal["grpc", "http"]
#: scheme -> protocol, and whether it is encrypted.
_SCHEMES: dict[str, tuple[Protocol, bool]] = {
    "grpc": ("grpc", False),
    "grpcs": ("grpc", True),
    "http": ("http", False),
    "https": ("http", True),
}
_MAX_MESSAGE_BYTES = 2**31 - 1
#: A name or an address; one of IPv6 in brackets.
_HOST = re.compile(r"\[[0-9A-Fa-f:.]+(?:%[^\]\s]+)?\]|[^\s/?#@:\[\]]+")
#: RFC 9110, section 5.6.2, "token".
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True)
class Tls:
    """Encryption, and who is believed.

    Attributes:
        ca: PEM file of authorities, None for those of the system.
        cert, key: PEM files with which the client shows who it is; both or neither.
        server_name: name that the server's certificate must carry instead of the host of the address.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        for name in ("ca", "cert", "key"):
            arguments.of_type(name, getattr(self, name), (Path, type(None)), "a pathlib.Path, or None")
        if self.server_name is not None:
            arguments.text("server_name", self.server_name)
        if (self.cert is None) != (self.key is None):
            raise InvalidRequest("a client certificate needs its key, and the other way round", hint="Give both files.")


@dataclass(frozen=True, slots=True)
class Retry:
    """When and how often a request is sent again.

    Only what cannot have been taken up is repeated: no connection came about, or the server refused the request because its
    queue is full or its model is not ready. After anything of an answer has come, and after a connection that broke while a request
    was out, nothing is ever repeated: the server may have worked on it.

    Attributes:
        attempts: further attempts after the first; 0 for none.
        first_s: longest pause before the first of them; it doubles from one to the next.
        most_s: longest pause at all. Each pause is drawn evenly between 0 and its longest, so that many clients do not
            come back together.
    """

    attempts: int = 0
    first_s: float = 0.1
    most_s: float = 2.0

    def __post_init__(self) -> None:
        arguments.whole("attempts", self.attempts, 0, 100)
        for name in ("first_s", "most_s"):
            arguments.of_type(name, getattr(self, name), (int, float), "a number of seconds")
            seconds(getattr(self, name), name)

    def pause_s(self, attempt: int) -> float:
        """Return the pause before further attempt number `attempt` (0, 1 ...), seconds."""
        return random.uniform(0.0, min(self.first_s * 2**attempt, self.most_s))

    def allows(self, error: ClientError, attempt: int) -> bool:
        """Return whether further attempt number `attempt` may follow a failure before the first response."""
        return error.is_unsent and attempt < self.attempts


@dataclass(frozen=True, slots=True)
class Connection:
    """One server.

    Attributes:
        address: host:port.
        protocol: what is spoken there.
        tls: None for no encryption.
        token: sent as `authorization: Bearer ...`; in no log, no error and no `repr`.
        headers: further metadata (gRPC) or headers (HTTP) of every request; in no `repr` either.
        keepalive_s: seconds without traffic after which a connection is tested, None for never. A server refuses tests more
            often than it allows (Triton: one in 300 s while nothing runs) by ending the connection.
        max_message_bytes: longest message in either direction.
        idle_connections: HTTP connections kept open between requests.
    """

    address: str
    protocol: Protocol = "grpc"
    tls: Tls | None = None
    token: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    keepalive_s: float | None = None
    max_message_bytes: int = _MAX_MESSAGE_BYTES
    idle_connections: int = 64

    def __post_init__(self) -> None:
        seconds(self.keepalive_s, "keepalive_s")
        arguments.whole("max_message_bytes", self.max_message_bytes, 1, _MAX_MESSAGE_BYTES)
        for name, value in self.metadata():
            if not _HEADER_NAME.fullmatch(name) or any(sign in value for sign in "\r\n\0") or not value.isascii():
                raise InvalidRequest(
                    f"header '{name}' cannot be sent",
                    hint="Names are letters, digits and hyphens; values are ASCII without line breaks.",
                )

    @property
    def host(self) -> str:
        """The host without its port and without brackets."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port."""
        return int(self.address.rpartition(":")[2])

    def metadata(self) -> list[tuple[str, str]]:
        """Return the headers of every request, names in lower case."""
        own = [("authorization", f"Bearer {self.token}")] if self.token else []
        return [*own, *((name.lower(), value) for name, value in self.headers.items())]


def connection(
    url: str,
    *,
    tls: Tls | None = None,
    token: str | None = None,
    headers: Mapping[str, str] | None = None,
    keepalive_s: float | None = None,
    max_message_bytes: int = _MAX_MESSAGE_BYTES,
) -> Connection:
    """Return what a URL and the settings beside it mean.

    Args:
        url: HOST:PORT (gRPC), or grpc://, grpcs://, http:// or https:// and HOST:PORT.

    Raises:
        InvalidRequest: the address or another argument cannot be, or an encrypted scheme and the lack of `tls` contradict each other.
    """
    arguments.text("url", url)
    arguments.of_type("tls", tls, (Tls, type(None)), "a Tls, or None")
    arguments.of_type("token", token, (str, type(None)), "str, or None")
    if headers is not None:
        arguments.texts("headers", headers)
    scheme, separator, address = url.partition("://")
    scheme, address = (scheme.lower(), address.rstrip("/")) if separator else ("grpcs" if tls else "grpc", url)
    host, _, port = address.rpartition(":")
    if scheme not in _SCHEMES or not _HOST.fullmatch(host) or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidRequest(
            f"url '{url}'",
            hint="It must be HOST:PORT of the gRPC endpoint, such as 127.0.0.1:8001 or [::1]:8001, or http://HOST:PORT for HTTP.",
        )
    protocol, is_encrypted = _SCHEMES[scheme]
    if tls is not None and not is_encrypted:
        raise InvalidRequest(
            f"url '{url}' is not encrypted, but TLS files are given", hint="Write grpcs:// or https://."
        )
    return Connection(
        address,
        protocol,
        (tls or Tls()) if is_encrypted else None,
        token,
        dict(headers or {}),
        keepalive_s,
        max_message_bytes,
    )
