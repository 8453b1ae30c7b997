"""Asking a server whether it is ready. Readiness only: a server that loads a model is alive and not ready."""

from __future__ import annotations

import http.client
import json
from contextlib import closing

_TIMEOUT_S = 1.0


def connect_address(listen_address: str) -> str:
    """Return the address to connect to for an address that a server listens on."""
    return "127.0.0.1" if listen_address == "0.0.0.0" else listen_address


def is_ready(address: str, port: int, server_id: str | None) -> bool:
    """Say whether the server with this id (None: any) answers on the port and every model in it is ready.

    The id is asked for because another server may have taken the port between our test and the server's bind.
    """
    status, _ = _get(address, port, "/v2/health/ready")
    if status != http.client.OK:
        return False
    status, body = _get(address, port, "/v2")
    try:
        answer = json.loads(body) if status == http.client.OK else None
    except ValueError:
        return False
    return isinstance(answer, dict) and server_id in (None, answer.get("name"))


def _get(address: str, port: int, path: str) -> tuple[int | None, bytes]:
    """Return status and body, or (None, b"") while nothing answers properly; proxies are never used."""
    with closing(http.client.HTTPConnection(address, port, timeout=_TIMEOUT_S)) as connection:
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            return None, b""
