"""TLS of this package's own sockets, from the settings of a connection. What grpcio does itself is in `grpc_channel`."""

from __future__ import annotations

import ssl

from trtbuild_client.connection import Tls
from trtbuild_client.errors import InvalidRequest


def tls_context(tls: Tls) -> ssl.SSLContext:
    """Return what encrypts HTTP/1.1 connections. Reading the authorities takes milliseconds: make one, not one per connection.

    Raises:
        InvalidRequest: a file cannot be read, or is no PEM file.
    """
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.cert is not None and tls.key is not None:
            context.load_cert_chain(tls.cert, tls.key)
    except (OSError, ssl.SSLError) as error:
        raise InvalidRequest(f"the TLS files cannot be used ({error})", hint="Give PEM files.") from error
    context.set_alpn_protocols(["http/1.1"])
    return context


def tls_failure(error: OSError) -> str:
    """Return why a handshake failed, without the names of OpenSSL's source files."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLEOFError):
        return "the server ended the handshake"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return error.strerror or str(error)
