"""What to tell about a server that has just become ready: for programs on one line, for people on a few."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from trtbuild.console import print_text

if TYPE_CHECKING:
    from trtbuild.serve.supervisor import Server


def announce(server: Server, *, as_json: bool) -> None:
    """Write to stdout where the server is to be found, at once: whoever started us through a pipe waits for it."""
    print_text(as_line(server) if as_json else as_text(server))
    sys.stdout.flush()


def as_line(server: Server) -> str:
    """Return one line of JSON."""
    return json.dumps(
        {
            "event": "ready",
            "pid": server.pid,
            "http_url": server.http_url,
            "grpc_url": server.grpc_url,
            "metrics_url": server.metrics_url,
            "repository": str(server.repository),
            "models": server.models,
            "server_version": server.version,
            "ready_s": round(server.ready_s, 3),
            "log": str(server.log_path),
        },
        ensure_ascii=False,
    )


def as_text(server: Server) -> str:
    """Return the addresses and the commands to go on with."""
    return "\n".join(
        (
            f"ready after {server.ready_s:.1f} s: {', '.join(server.models)}",
            f"  HTTP     {server.http_url}",
            f"  gRPC     {server.grpc_url}",
            f"  metrics  {server.metrics_url}",
            f'  try it   trtbuild generate "The capital of France is" --url {server.grpc_url}',
            "  stop it  Ctrl-C",
        )
    )
