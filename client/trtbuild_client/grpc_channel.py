"""How grpcio opens a channel: options and credentials, from the settings of a connection. Imports grpc and nothing else that is heavy."""

from __future__ import annotations

from typing import Any

import grpc

from trtbuild_client.connection import Connection, Tls
from trtbuild_client.errors import InvalidRequest

_LOOPBACK = ("127.", "localhost", "[::1]")


def channel_options(connection: Connection) -> list[tuple[str, Any]]:
    """Return the options of a channel to this server."""
    options: list[tuple[str, Any]] = [
        ("grpc.max_send_message_length", connection.max_message_bytes),
        ("grpc.max_receive_message_length", connection.max_message_bytes),
        # grpc's own pauses grow to two minutes: a server that comes back would long not be noticed.
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]
    if connection.address.startswith(_LOOPBACK):
        options.append(("grpc.enable_http_proxy", 0))  # a proxy cannot reach our own loopback
    if connection.keepalive_s is not None:
        options += [
            ("grpc.keepalive_time_ms", round(connection.keepalive_s * 1000)),
            ("grpc.http2.max_pings_without_data", 0),  # a long prefill sends nothing, and must not count as silence
        ]
    if connection.tls is not None and connection.tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", connection.tls.server_name))
    return options


def credentials(tls: Tls) -> grpc.ChannelCredentials:
    """Return the credentials of an encrypted channel.

    Raises:
        InvalidRequest: a file cannot be read.
    """
    try:
        ca, key, cert = (None if path is None else path.read_bytes() for path in (tls.ca, tls.key, tls.cert))
    except OSError as error:
        raise InvalidRequest(
            f"TLS file {error.filename} cannot be read ({error.strerror})", hint="Give PEM files."
        ) from error
    return grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=cert)
