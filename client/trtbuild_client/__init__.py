"""Client for TensorRT-LLM models behind Triton: generate, stream, chat, cancel and measure over gRPC or HTTP.

Names are imported on first use, so that `import trtbuild_client` loads neither grpc nor numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtbuild_client.aio import AsyncClient as AsyncClient
    from trtbuild_client.aio_stream import AsyncStream as AsyncStream
    from trtbuild_client.batch import BatchResult as BatchResult
    from trtbuild_client.client import Client as Client
    from trtbuild_client.connection import Retry as Retry
    from trtbuild_client.connection import Tls as Tls
    from trtbuild_client.errors import Cancelled as Cancelled
    from trtbuild_client.errors import ClientError as ClientError
    from trtbuild_client.errors import ConnectError as ConnectError
    from trtbuild_client.errors import DeadlineExceeded as DeadlineExceeded
    from trtbuild_client.errors import InvalidRequest as InvalidRequest
    from trtbuild_client.errors import ModelNotFound as ModelNotFound
    from trtbuild_client.errors import NotReady as NotReady
    from trtbuild_client.errors import RequestRefused as RequestRefused
    from trtbuild_client.errors import ServerBusy as ServerBusy
    from trtbuild_client.errors import ServerError as ServerError
    from trtbuild_client.errors import StreamingUnsupported as StreamingUnsupported
    from trtbuild_client.errors import Unauthorized as Unauthorized
    from trtbuild_client.probe import Probe as Probe
    from trtbuild_client.records import Generation as Generation
    from trtbuild_client.records import RequestRecord as RequestRecord
    from trtbuild_client.records import StreamChunk as StreamChunk
    from trtbuild_client.stream import Stream as Stream

_HOMES = {
    "Unauthorized": "errors",
    "Tls": "connection",
    "Retry": "connection",
    "BatchResult": "batch",
    "AsyncStream": "aio_stream",
    "AsyncClient": "aio",
    "Client": "client",
    "Cancelled": "errors",
    "ClientError": "errors",
    "ConnectError": "errors",
    "DeadlineExceeded": "errors",
    "InvalidRequest": "errors",
    "ModelNotFound": "errors",
    "NotReady": "errors",
    "RequestRefused": "errors",
    "ServerBusy": "errors",
    "ServerError": "errors",
    "StreamingUnsupported": "errors",
    "Probe": "probe",
    "Generation": "records",
    "RequestRecord": "records",
    "StreamChunk": "records",
    "Stream": "stream",
}

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
