"""Servers a load test can talk to. Each is data that other processes can be given: no socket is open in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from trtbuild_client.connection import Connection as Server
from trtbuild_client.encryption import tls_context
from trtbuild_client.load.connections import Connection
from trtbuild_client.load.exchange import Exchange, Job
from trtbuild_client.load.grpc_connection import GrpcConnection
from trtbuild_client.load.http_connection import HttpConnection
from trtbuild_client.load.outcomes import Mark
from trtbuild_client.load.sse import GenerateExchange, HttpExchange, OpenAiExchange
from trtbuild_client.load.template import Template
from trtbuild_client.load.triton import STREAM_PATH, UNARY_PATH, TritonExchange

if TYPE_CHECKING:
    from trtbuild_client.load.connections import Watcher

#: One for all connections: reading the authorities of the system takes milliseconds.
_tls = lru_cache(maxsize=8)(tls_context)
OnEnd = Callable[[Exchange], None]
OnLate = Callable[[Exchange, Mark], None]


@dataclass(frozen=True, slots=True)
class TritonGrpc:
    """A model of a Triton server over gRPC.

    Attributes:
        server: how it is reached.
        template: makes requests.
        run_id: makes ids of requests unique among runs.
        is_decoupled: the stream RPC is used, otherwise the unary one.
        is_cumulative: each response holds all text so far.
        streams_per_connection: requests that share a connection at the same time. With one, no answer waits behind another one's bytes.
        timeout_s: deadline that the server is told.
    """

    server: Server
    template: Template
    run_id: str
    is_decoupled: bool = True
    is_cumulative: bool = False
    streams_per_connection: int = 1
    timeout_s: float | None = None

    def connect(self, watcher: Watcher, deadline_ns: int) -> Connection:
        """Open a connection."""
        return GrpcConnection(
            self.server,
            watcher,
            deadline_ns,
            make_message=lambda exchange: self.template.message(exchange.job, f"{self.run_id}-{exchange.job.number}"),
            path=STREAM_PATH if self.is_decoupled else UNARY_PATH,
            timeout_s=self.timeout_s,
        )

    def exchange(self, job: Job, due_ns: int, on_end: OnEnd, on_late: OnLate) -> Exchange:
        """Return a request that has not been sent."""
        return TritonExchange(
            job, due_ns, on_end, on_late, is_stream=self.is_decoupled, is_cumulative=self.is_cumulative
        )

    def can_take(self, connection: Connection) -> bool:
        """Say whether another request may be sent on a connection."""
        assert isinstance(connection, GrpcConnection)
        http = connection.http
        most = min(self.streams_per_connection, http.max_streams - 1)
        return connection.active < most and not http.is_going_away and len(http.streams) < http.max_streams

    def descriptors(self, requests: int) -> int:
        """Return how many file descriptors so many requests at the same time take."""
        return -(-requests // self.streams_per_connection)


@dataclass(frozen=True, slots=True)
class Http:
    """An endpoint over HTTP/1.1.

    Attributes:
        server: how it is reached.
        path: of the request.
        body: fields of every request.
        api: key of `APIS`.
        run_id: makes ids of requests unique among runs.
        length_names: fields of the number of tokens, beside those of the API.
    """

    server: Server
    path: str
    api: str
    body: Mapping[str, Any]
    run_id: str
    length_names: tuple[str, ...] = ()

    def connect(self, watcher: Watcher, deadline_ns: int) -> Connection:
        """Open a connection."""
        tls = None if self.server.tls is None else _tls(self.server.tls)
        return HttpConnection(self.server, tls, watcher, deadline_ns, make_message=lambda each: self.message(each.job))

    def exchange(self, job: Job, due_ns: int, on_end: OnEnd, on_late: OnLate) -> Exchange:
        """Return a request that has not been sent."""
        return APIS[self.api].exchange(job, due_ns, on_end, on_late)

    def can_take(self, connection: Connection) -> bool:
        """Say whether another request may be sent on a connection."""
        assert isinstance(connection, HttpConnection)
        return not connection.is_busy

    def descriptors(self, requests: int) -> int:
        """Return how many file descriptors so many requests at the same time take."""
        return requests

    def message(self, job: Job) -> bytes:
        """Return the bytes of a request."""
        api, request_id = APIS[self.api], f"{self.run_id}-{job.number}"
        named = {} if api.id_field is None else {api.id_field: request_id}
        lengths = dict.fromkeys(self.length_names, job.max_tokens)
        text = json.dumps({**self.body, **named, **lengths, **api.fields(job)}, ensure_ascii=False)
        body = text.encode("utf-8", "surrogateescape")
        headers = {
            "host": self.server.address,
            "content-type": "application/json",
            "accept": "text/event-stream, application/json",
            "user-agent": "trtbuild",
            "x-request-id": request_id,
            **dict(self.server.metadata()),
            "content-length": str(len(body)),
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"POST {self.path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body


@dataclass(frozen=True, slots=True)
class Api:
    """A way to ask over HTTP.

    Attributes:
        path: where, with `{model}` for its name.
        exchange: reads the answer.
        fields: of a request, from what is to be asked.
        fixed: fields of every request: whether to stream -> them.
        id_field: the field of the request's id, None where it is in the header X-Request-Id alone.
    """

    path: str
    exchange: type[HttpExchange]
    fields: Callable[[Job], dict[str, Any]]
    fixed: Callable[[str, bool], dict[str, Any]]
    id_field: str | None = None


def _chat(job: Job) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": text} for index, text in enumerate(job.messages)]
    return {"messages": messages, "max_tokens": job.max_tokens}


def _completion(job: Job) -> dict[str, Any]:
    return {"prompt": "\n".join(job.messages), "max_tokens": job.max_tokens}


def _generate(job: Job) -> dict[str, Any]:
    return {"text_input": "\n".join(job.messages)}


def _openai_fixed(model: str, is_streaming: bool) -> dict[str, Any]:
    usage = {"stream_options": {"include_usage": True}} if is_streaming else {}
    return {"model": model, "stream": is_streaming, **usage}


def _nothing_fixed(model: str, is_streaming: bool) -> dict[str, Any]:
    return {}  # the model says what it takes


#: name -> how to ask. The path of "triton-http" is that of generate for answers that are not streamed.
APIS: dict[str, Api] = {
    "openai-chat": Api("/v1/chat/completions", OpenAiExchange, _chat, _openai_fixed),
    "openai-completions": Api("/v1/completions", OpenAiExchange, _completion, _openai_fixed),
    "triton-http": Api("/v2/models/{model}/generate_stream", GenerateExchange, _generate, _nothing_fixed, "id"),
}
