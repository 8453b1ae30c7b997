"""The outermost layer: ids, tokens, log, counts, and every exception as OpenAI's error object.

Logs hold ids, endpoints, statuses, times and counts. Prompts, answers and tokens are in none: what an exception says is not logged, only
its class and where it was raised, unless it is known to speak of addresses alone.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import traceback
import uuid
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trtbuild.gateway import errors, sse
from trtbuild.gateway.auth import Guard
from trtbuild.gateway.errors import ApiError
from trtbuild.gateway.http_body import Disconnected
from trtbuild.gateway.metrics import Metrics
from trtbuild_client import ClientError

_log = logging.getLogger("trtbuild.gateway")

#: path -> name in log and metrics; other paths are "other", since a path can hold anything.
ENDPOINTS: Mapping[str, str] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/models": "models",
    "/metrics": "metrics",
    "/health": "health",
    "/health/live": "health",
    "/health/ready": "health",
}
#: Open to everybody: an orchestrator has no token.
_OPEN = "health"
_QUIET = frozenset({"health", "metrics"})
_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")
#: How long a broken stream may take to send its error: its caller may have stopped reading.
_LAST_WORDS_S = 1.0
#: What nginx logs when a caller went away.
_GONE = 499


class Edge:
    """Middleware around everything."""

    def __init__(self, app: ASGIApp, *, guard: Guard, metrics: Metrics) -> None:
        self._app = app
        self._guard = guard
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        exchange = Exchange(headers, ENDPOINTS.get(scope["path"], "other"), send)
        scope["exchange"] = exchange
        try:
            if exchange.endpoint != _OPEN:
                self._guard.check(headers)
            await self._app(scope, receive, exchange.send)
        except Disconnected:
            exchange.status = _GONE
            self._metrics.count("disconnects_total")
        except asyncio.CancelledError:
            # Only the end of the drain cancels us. The task ends here either way; raising would print a traceback.
            await exchange.fail(errors.unavailable("the gateway is stopping", code="draining"), "drain time is over")
        except ApiError as error:
            await exchange.fail(error, error.code)
        except ClientError as error:
            await exchange.fail(*errors.from_client(error))
        except Exception as error:
            await exchange.fail(errors.internal(), _place(error))
        finally:
            self._record(exchange)

    def _record(self, exchange: Exchange) -> None:
        passed_s = exchange.passed_s()
        self._metrics.count("requests_total", endpoint=exchange.endpoint, status=exchange.status)
        self._metrics.observe("request_seconds", passed_s, endpoint=exchange.endpoint)
        if exchange.is_broken:
            self._metrics.count("failed_streams_total")
        level = logging.DEBUG if exchange.endpoint in _QUIET else logging.INFO
        level = logging.WARNING if exchange.status >= 500 or exchange.is_broken else level
        more = "".join(f" {name}={value}" for name, value in exchange.notes.items())
        _log.log(
            level, "%s %d %.3fs id=%s%s", exchange.endpoint, exchange.status, passed_s, exchange.request_id, more
        )  # fmt: skip


class Exchange:
    """One request and what has been answered.

    Attributes:
        request_id: the caller's x-request-id when it is a plain word, else a new one.
        status: of the answer; 0 before there is one.
        is_broken: a stream failed after its status had been sent.
        notes: further facts for the log; numbers and fixed words only.
    """

    def __init__(self, headers: Headers, endpoint: str, send: Send) -> None:
        given = headers.get("x-request-id", "")
        self.request_id = given if _ID.fullmatch(given) else f"req-{uuid.uuid4().hex}"
        self.endpoint = endpoint
        self.status = 0
        self.is_stream = False
        self.is_broken = False
        self.notes: dict[str, int | str] = {}
        self._send = send
        self._begun_s = time.monotonic()

    def passed_s(self) -> float:
        """Return the seconds since the head of the request came."""
        return time.monotonic() - self._begun_s

    async def send(self, message: Message) -> None:
        """Pass a message of the answer on, with the id in its head."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            name = b"x-request-id"
            message = {**message, "headers": [*message.get("headers", ()), (name, self.request_id.encode())]}
        await self._send(message)

    async def start_stream(self) -> None:
        """Send the head of a stream of events."""
        self.is_stream = True
        kept_back = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]  # by proxies
        kind = (b"content-type", b"text/event-stream; charset=utf-8")
        await self.send({"type": "http.response.start", "status": 200, "headers": [kind, *kept_back]})

    async def send_part(self, data: bytes, *, is_last: bool = False) -> None:
        """Send a part of the stream."""
        await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})

    async def fail(self, error: ApiError, noted: str) -> None:
        """Answer with an error: as a document, or as the last event of a stream that has begun."""
        self.notes["error"] = noted
        if self.status == 0:
            response: Any = Response(
                sse.document(error.document()), error.status, error.headers, media_type="application/json"
            )
            await response({"type": "http"}, _nothing, self.send)
            return
        self.is_broken = True
        if self.is_stream:
            try:
                await asyncio.wait_for(self.send_part(sse.event(error.document()), is_last=True), _LAST_WORDS_S)
            except (
                asyncio.TimeoutError
            ):  # who stopped reading does not read this either; the server closes the connection
                self.notes["error"] = f"{noted}, and the caller does not read"


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


def _place(error: Exception) -> str:
    """Return class and origin of a defect; not its message, which may quote a request."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    return f"{type(error).__name__} at " + " < ".join(f"{frame.filename}:{frame.lineno}" for frame in reversed(frames))
