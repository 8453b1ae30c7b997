"""From an address and a model to an endpoint: asks the server what it is, and refuses what it cannot do before anything is sent."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from trtbuild_client.errors import ConnectError, InvalidRequest
from trtbuild_client.load.conversation import Endpoint
from trtbuild_client.load.endpoints import APIS, Http, TritonGrpc

GRPC = "triton-grpc"
NAMES = (GRPC, *APIS)
_CONNECT_S = 10.0
_GRPC_SCHEMES, _HTTP_SCHEMES = ("grpc", "grpcs"), ("http", "https")
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
        headers: of HTTP requests.
        has_fixed_length: ask for answers of exactly max_tokens, where the server knows how.
        is_cumulative: each response of Triton holds all text so far.
        streams_per_connection: see `TritonGrpc`.
        timeout_s: deadline of a whole answer.
        transport: "auto", "lean" or "grpcio".
    """

    url: str
    model: str
    api: str | None = None
    is_streaming: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    has_fixed_length: bool = True
    is_cumulative: bool = False
    streams_per_connection: int = 1
    timeout_s: float | None = None
    transport: str = "auto"

    @property
    def kind(self) -> str:
        """The API that is used."""
        return self.api or ("openai-chat" if self._parts.scheme in _HTTP_SCHEMES else GRPC)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port.

        Raises:
            InvalidRequest: the URL has none.
        """
        parts = self._parts
        try:
            port = parts.port or _PORTS.get(parts.scheme)
        except ValueError:
            port = None
        if not parts.hostname or port is None or parts.scheme not in (*_GRPC_SCHEMES, *_HTTP_SCHEMES):
            raise InvalidRequest(
                f"url '{self.url}'",
                hint="Write HOST:PORT for Triton's gRPC, or http://HOST:PORT for Triton's HTTP and OpenAI servers.",
            )
        return parts.hostname, port

    @property
    def _parts(self) -> Any:
        return urlsplit(self.url if "://" in self.url else f"grpc://{self.url}")

    def open(self) -> tuple[Endpoint, dict[str, Any]]:
        """Return the endpoint, and what it is as JSON values.

        Raises:
            InvalidRequest: the model cannot do what is asked.
            ConnectError, ModelNotFound, NotReady: the server does not serve it.
        """
        address = self.address
        if self.kind not in NAMES:
            raise InvalidRequest(f"api '{self.kind}'", hint=f"Known: {', '.join(NAMES)}.")
        is_http = self.kind in APIS
        if is_http != (self._parts.scheme in _HTTP_SCHEMES):
            wanted = "http:// or https://" if is_http else "HOST:PORT or grpc://"
            raise InvalidRequest(f"api '{self.kind}' at '{self.url}'", hint=f"Its URL begins with {wanted}.")
        described = {"url": self.url, "model": self.model, "api": self.kind, "streamed": self.is_streaming}
        if is_http:
            return self._http(address), described
        endpoint, transport = self._grpc(address)
        return endpoint, {**described, "transport": transport}

    def max_seq_len(self) -> int | None:
        """Return the longest sequence that an OpenAI server says it takes (`max_model_len` of vLLM), None where it does not say."""
        if not self.kind.startswith("openai"):
            return None
        import http.client

        host, port = self.address
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(host, port, timeout=_CONNECT_S)
        try:
            connection.request("GET", f"{self._base}/v1/models", headers=dict(self.headers))
            models = json.loads(connection.getresponse().read()).get("data", [])
        except (OSError, ValueError, AttributeError, http.client.HTTPException) as error:
            if isinstance(error, ConnectionError):
                raise ConnectError(
                    f"no connection to {host}:{port} ({error.strerror})", hint="Is the server running?"
                ) from error
            return None
        finally:
            connection.close()
        lengths = [
            each.get("max_model_len") for each in models if isinstance(each, dict) and each.get("id") == self.model
        ]
        return next((each for each in lengths if isinstance(each, int)), None)

    @property
    def _base(self) -> str:
        """The path before /v1 where the URL has one."""
        path = str(self._parts.path).rstrip("/")
        return path.removesuffix("/v1")

    def _http(self, address: tuple[str, int]) -> Http:
        api = APIS[self.kind]
        path = api.path.format(model=self.model)
        body = {**api.fixed(self.model, self.is_streaming), **self.options, **self.tensors}
        if not self.is_streaming:
            path = path.replace("generate_stream", "generate")
        return Http(
            address,
            self._base + path,
            self.kind,
            body,
            headers=self.headers,
            is_encrypted=self._parts.scheme == "https",
        )

    def _grpc(self, address: tuple[str, int]) -> tuple[Endpoint, str]:
        from trtbuild_client.load.ask import model_info
        from trtbuild_client.parameters import settle, validate
        from trtbuild_client.request import build, wire_name_of

        if self._uses_grpcio(address):
            from trtbuild_client.load.grpcio_endpoint import GrpcioEndpoint
            from trtbuild_client.load.grpcio_endpoint import model_info as ask_through_grpcio

            is_encrypted = self._parts.scheme == "grpcs"
            info = ask_through_grpcio(address, self.model, is_encrypted=is_encrypted, timeout_s=_CONNECT_S)
        else:
            info = model_info(address, self.model, timeout_s=_CONNECT_S)
        given = {"max_tokens": 1, **self.options}
        lengths = [wire_name_of(info, "max_tokens") or "max_tokens"]
        if self.has_fixed_length and "min_tokens" not in given and wire_name_of(info, "min_tokens"):
            given["min_tokens"] = 1
            lengths.append(wire_name_of(info, "min_tokens") or "")
        if "return_perf_metrics" in info.inputs:  # drafts, reuse of the cache, the server's own times
            given.setdefault("return_perf_metrics", True)
        values, _ = settle(validate(given))
        tensors = build(info, "prompt", values, self.tensors, is_streaming=self.is_streaming)
        template = self._template(tensors, tuple(lengths))
        run_id = uuid.uuid4().hex[:8]
        if self._uses_grpcio(address):
            return GrpcioEndpoint(
                address, template, run_id, info.is_decoupled, self.is_cumulative, is_encrypted, self.timeout_s
            ), "grpcio"
        return TritonGrpc(
            address,
            template,
            run_id,
            is_decoupled=info.is_decoupled,
            is_cumulative=self.is_cumulative,
            streams_per_connection=self.streams_per_connection,
            timeout_s=self.timeout_s,
        ), "lean"

    def _template(self, tensors: Any, lengths: tuple[str, ...]) -> Any:
        from trtbuild_client.load.template import Template

        # Seconds here, microseconds there; the server applies it to the time in its queues only.
        timeout_us = None if self.timeout_s is None else round(self.timeout_s * 1_000_000)
        return Template(self.model, tensors, length_names=lengths, timeout_us=timeout_us)

    def _uses_grpcio(self, address: tuple[str, int]) -> bool:
        """Say whether the connection is one that our own transport does not speak: TLS, or through a proxy."""
        if self.transport != "auto":
            return self.transport == "grpcio"
        if self._parts.scheme == "grpcs":
            return True
        return bool(proxy_of(address[0]))


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
