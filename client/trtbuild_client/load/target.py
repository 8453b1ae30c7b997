"""From an address and a model to an endpoint: asks the server what it is, and refuses what it cannot do before anything is sent."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

from trtbuild_client import defaults
from trtbuild_client.connection import Connection, Tls
from trtbuild_client.deadlines import connect_limit_s
from trtbuild_client.errors import InvalidRequest
from trtbuild_client.load.conversation import Endpoint
from trtbuild_client.load.dataset_fields import MOST_TOKENS
from trtbuild_client.load.endpoints import APIS, Http, TritonGrpc

if TYPE_CHECKING:
    from trtbuild_client.wire import ModelInfo, Tensor

GRPC = "triton-grpc"
NAMES = (GRPC, *APIS)
_GRPC_SCHEMES, _HTTP_SCHEMES = ("grpc", "grpcs"), ("http", "https")
_ENCRYPTED = ("grpcs", "https")
_URL_HINT = "Write HOST:PORT for Triton's gRPC, or http://HOST:PORT for Triton's HTTP and OpenAI servers."
_PORTS = {"http": 80, "https": 443}
#: What the environment calls hosts that need no proxy, and the proxy.
_EXEMPT, _PROXY = ("no_grpc_proxy", "no_proxy"), ("grpc_proxy", "https_proxy", "http_proxy")
_LOOPBACK = re.compile(r"127\.|localhost$|::1$")


@dataclass(frozen=True, slots=True)
class Target:
    """Who is asked, and how.

    Attributes:
        url: HOST:PORT or grpc:// for Triton's gRPC, http:// or https:// for the rest.
        model: its name.
        api: one of `NAMES`, None for what the URL suggests.
        is_streaming: ask for tokens as they come.
        options: sampling parameters, as `Client.generate` takes them.
        tensors: further inputs of a Triton model; further fields of an HTTP request.
        headers: further headers (HTTP) or metadata (gRPC) of every request.
        tls: who is believed, and who the client is; with it an address without scheme is encrypted.
        token: sent as `authorization: Bearer ...`; in no log, no result and no `repr`.
        has_fixed_length: ask for answers of exactly max_tokens, where the server knows how.
        is_cumulative: each response of Triton holds all text so far.
        streams_per_connection: see `TritonGrpc`.
        timeout_s: deadline of a whole answer, seconds; questions about the server have the same, and 10 s at most.
        transport: "auto", "lean" or "grpcio".
    """

    url: str
    model: str
    api: str | None = None
    is_streaming: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: Tls | None = None
    token: str | None = field(default=None, repr=False)
    has_fixed_length: bool = True
    is_cumulative: bool = False
    streams_per_connection: int = 1
    timeout_s: float | None = None
    transport: str = "auto"

    @property
    def kind(self) -> str:
        """The API that is used."""
        return self.api or ("openai-chat" if self._parts.scheme in _HTTP_SCHEMES else GRPC)

    def server(self) -> Connection:
        """Return how the server is reached.

        Raises:
            InvalidRequest: an address or a header that cannot be.
        """
        parts = self._parts
        try:
            port = parts.port or _PORTS.get(parts.scheme)
        except ValueError:
            port = None
        is_http = parts.scheme in _HTTP_SCHEMES
        has_more = (
            parts.query or parts.fragment or parts.username is not None or (parts.path.strip("/") and not is_http)
        )
        if not parts.hostname or port is None or has_more or parts.scheme not in (*_GRPC_SCHEMES, *_HTTP_SCHEMES):
            raise InvalidRequest(f"url '{self.url}'", hint=_URL_HINT)
        is_encrypted = parts.scheme in _ENCRYPTED
        if self.tls is not None and not is_encrypted:
            raise InvalidRequest(
                f"url '{self.url}' is not encrypted, but TLS files are given", hint="Write grpcs:// or https://."
            )
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return Connection(
            f"{host}:{port}",
            "http" if is_http else "grpc",
            (self.tls or Tls()) if is_encrypted else None,
            self.token,
            dict(self.headers),
        )

    @property
    def _parts(self) -> SplitResult:
        scheme = "grpc" if self.tls is None else "grpcs"
        try:
            return urlsplit(self.url if "://" in self.url else f"{scheme}://{self.url}")
        except ValueError as error:  # brackets without their other half
            raise InvalidRequest(f"url '{self.url}'", hint=_URL_HINT) from error

    def open(self) -> tuple[Endpoint, dict[str, Any]]:
        """Return the endpoint, and what it is as JSON values.

        Raises:
            InvalidRequest: the model cannot do what is asked.
            ConnectError, ModelNotFound, NotReady: the server does not serve it.
        """
        server = self.server()
        if self.kind not in NAMES:
            raise InvalidRequest(f"api '{self.kind}'", hint=f"Known: {', '.join(NAMES)}.")
        is_http = self.kind in APIS
        if is_http != (self._parts.scheme in _HTTP_SCHEMES):
            wanted = "http:// or https://" if is_http else "HOST:PORT or grpc://"
            raise InvalidRequest(f"api '{self.kind}' at '{self.url}'", hint=f"Its URL begins with {wanted}.")
        described = {"url": self.url, "model": self.model, "api": self.kind, "streamed": self.is_streaming}
        if is_http:
            return self._http(server), described
        endpoint, transport = self._grpc(server)
        return endpoint, {**described, "transport": transport}

    def max_seq_len(self) -> int | None:
        """Return the longest sequence (prompt and answer) that the server says it takes, None where it does not say.

        Raises:
            ClientError: the server cannot be asked, or does not serve the model.
        """
        from trtbuild_client.load import limits

        server = self.server()
        if self.kind.startswith("openai"):
            return limits.of_openai(server, self._base, self.model, timeout_s=self._question_s)
        return limits.of_triton(self._asker(server), self.model)

    def _asker(self, server: Connection) -> Callable[[str], ModelInfo]:
        """Return what asks a Triton server about a model, in the way in which requests will be sent."""
        if server.protocol == "http":
            return lambda model: _ask_through_http(server, model, timeout_s=self._question_s)
        if self._uses_grpcio(server):
            from trtbuild_client.load.grpcio_endpoint import model_info as ask_through_grpcio

            return lambda model: ask_through_grpcio(server, model, timeout_s=self._question_s)
        from trtbuild_client.load.ask import model_info

        return lambda model: model_info(server, model, timeout_s=self._question_s)

    @property
    def _question_s(self) -> float:
        """How long the server may take for a question about itself, seconds."""
        return connect_limit_s(defaults.CONNECT_TIMEOUT_S, self.timeout_s)

    @property
    def _base(self) -> str:
        """The path before /v1 where the URL has one."""
        return quote(unquote(self._parts.path).rstrip("/").removesuffix("/v1"))

    def _http(self, server: Connection) -> Http:
        api = APIS[self.kind]
        path = api.path.format(model=quote(self.model, safe=""))
        if self.kind.startswith("openai"):
            body = {**api.fixed(self.model, self.is_streaming), **self.options, **self.tensors}
            return Http(server, self._base + path, self.kind, body, _run_id())
        from trtbuild_client.http_documents import json_value

        tensors, lengths = self._tensors(self._asker(server)(self.model))
        body = {each.name: json_value(each) for each in tensors}
        if not self.is_streaming:
            path = path.replace("generate_stream", "generate")
        return Http(server, self._base + path, self.kind, body, _run_id(), lengths)

    def _grpc(self, server: Connection) -> tuple[Endpoint, str]:
        info = self._asker(server)(self.model)
        tensors, lengths = self._tensors(info)
        template = self._template(tensors, lengths)
        shared = (server, template, _run_id(), info.is_decoupled, self.is_cumulative or info.is_cumulative)
        if self._uses_grpcio(server):
            from trtbuild_client.load.grpcio_endpoint import GrpcioEndpoint

            return GrpcioEndpoint(*shared, timeout_s=self.timeout_s), "grpcio"
        return TritonGrpc(*shared, streams_per_connection=self.streams_per_connection, timeout_s=self.timeout_s), "lean"

    def _tensors(self, info: ModelInfo) -> tuple[tuple[Tensor, ...], tuple[str, ...]]:
        """Return the inputs of a request to a Triton model, and the names of those that hold the number of tokens.

        Raises:
            InvalidRequest: the model cannot do what is asked.
        """
        from trtbuild_client.parameters import settle, validate
        from trtbuild_client.request import build, wire_name_of

        given = {"max_tokens": MOST_TOKENS, **self.options}  # each request has its own instead
        lengths = [wire_name_of(info, "max_tokens") or "max_tokens"]
        if self.has_fixed_length and "min_tokens" not in given and wire_name_of(info, "min_tokens"):
            given["min_tokens"] = 1
            lengths.append(wire_name_of(info, "min_tokens") or "")
        if "return_perf_metrics" in info.inputs:  # drafts, reuse of the cache, the server's own times
            given.setdefault("return_perf_metrics", True)
        values, _ = settle(validate(given))
        return build(info, "prompt", values, self.tensors, is_streaming=self.is_streaming), tuple(lengths)

    def _template(self, tensors: Any, lengths: tuple[str, ...]) -> Any:
        from trtbuild_client.load.template import Template

        # Seconds here, microseconds there; the server applies it to the time in its queues only.
        timeout_us = None if self.timeout_s is None else round(self.timeout_s * 1_000_000)
        return Template(self.model, tensors, length_names=lengths, timeout_us=timeout_us)

    def _uses_grpcio(self, server: Connection) -> bool:
        """Say whether the connection is one that our own transport does not speak: TLS, or through a proxy.

        Raises:
            InvalidRequest: our own transport was asked for, and cannot do it.
        """
        if server.tls is not None and self.transport == "lean":
            raise InvalidRequest("transport 'lean' with TLS", hint="It speaks plain gRPC only: take auto or grpcio.")
        if self.transport != "auto":
            return self.transport == "grpcio"
        return server.tls is not None or bool(proxy_of(server.host))


def _run_id() -> str:
    return uuid.uuid4().hex[:8]


def _ask_through_http(server: Connection, model: str, *, timeout_s: float) -> ModelInfo:
    from trtbuild_client.http_transport import HttpTransport

    transport = HttpTransport(server, connect_timeout_s=timeout_s)
    try:
        return transport.model_info(model)
    finally:
        transport.close()


def proxy_of(host: str) -> str | None:
    """Return the proxy that the environment names for gRPC (grpc/grpc, doc/environment_variables.md), None for a direct connection."""
    if _LOOPBACK.match(host):
        return None
    exempt = next((os.environ[name] for name in _EXEMPT if os.environ.get(name)), "")
    if any(
        part and (host == part or host.endswith(f".{part.lstrip('.')}")) for part in map(str.strip, exempt.split(","))
    ):
        return None
    return next(
        (os.environ[name] for name in ("grpc_proxy", "https_proxy", "http_proxy") if os.environ.get(name)), None
    )
