"""Triton's gRPC service: which method answers what. Frames are `http2`'s, messages `grpc_messages`'s, time is the engine's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from trtbuild_client.errors import InvalidRequest
from trtbuild_client.hpack import Header
from trtbuild_client.mock import grpc_messages, replies
from trtbuild_client.mock.engine import Engine, Failure
from trtbuild_client.mock.grpc_messages import ResponseWriter
from trtbuild_client.mock.http2_stream import Stream, StreamHandler
from trtbuild_client.mock.ledger import Entry
from trtbuild_client.mock.models import Model
from trtbuild_client.mock.schedule import Piece
from trtbuild_client.triton_proto import service_pb2

_SERVICE = "/inference.GRPCInferenceService/"
#: grpc/statuscodes.md of grpc/grpc.
_STATUS = {
    "OK": 0, "CANCELLED": 1, "INVALID_ARGUMENT": 3, "NOT_FOUND": 5, "UNIMPLEMENTED": 12, "INTERNAL": 13,
    "UNAVAILABLE": 14, "UNAUTHENTICATED": 16,
}  # fmt: skip
EXTENSIONS = (
    "classification", "sequence", "model_repository", "schedule_policy", "model_configuration", "binary_tensor_data",
    "parameters", "statistics", "generate",
)  # fmt: skip
#: HealthCheckResponse with status SERVING (grpc/health/v1/health.proto).
_SERVING = b"\x08\x01"


class _Refused(Exception):
    """What ends a call with a status."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Service:
    """The gRPC side of a mock.

    Args:
        models: by name.
    """

    def __init__(self, engine: Engine, models: dict[str, Model]) -> None:
        self.engine = engine
        self.models = models
        self._unary: dict[str, tuple[Any, Callable[[Any], Any]]] = {
            "ServerLive": (service_pb2.ServerLiveRequest, lambda _: service_pb2.ServerLiveResponse(live=True)),
            "ServerReady": (
                service_pb2.ServerReadyRequest,
                lambda _: service_pb2.ServerReadyResponse(ready=engine.is_ready),
            ),
            "ServerMetadata": (service_pb2.ServerMetadataRequest, self._server_metadata),
            "ModelReady": (service_pb2.ModelReadyRequest, self._model_ready),
            "ModelMetadata": (service_pb2.ModelMetadataRequest, lambda r: grpc_messages.metadata(self.model(r.name))),
            "ModelConfig": (service_pb2.ModelConfigRequest, lambda r: grpc_messages.config(self.model(r.name))),
            "ModelStatistics": (service_pb2.ModelStatisticsRequest, self._statistics),
            "RepositoryIndex": (service_pb2.RepositoryIndexRequest, self._index),
        }

    def open_stream(self, stream: Stream) -> StreamHandler:
        """Return what serves a new stream."""
        path = stream.headers.get(b":path", b"").decode("latin-1")
        method = path.removeprefix(_SERVICE)
        token = self.engine.options.token
        if token is not None and stream.headers.get(b"authorization") != f"Bearer {token}".encode():
            return _Refusal(stream, "UNAUTHENTICATED", "invalid or missing bearer token")
        if method in self._unary:
            return _Unary(stream, *self._unary[method])
        if method in ("ModelInfer", "ModelStreamInfer"):
            return _Infer(stream, self, in_stream=method == "ModelStreamInfer")
        if path == "/grpc.health.v1.Health/Check":
            return _Unary(stream, None, lambda _: _SERVING)
        return _Refusal(stream, "UNIMPLEMENTED", f"the mock has no method {path}")

    def model(self, name: str) -> Model:
        """Return a model.

        Raises:
            _Refused: there is none of that name, or it has not loaded.
        """
        if name not in self.models:
            raise _Refused("NOT_FOUND", f"Request for unknown model: '{name}' is not found")
        if not self.engine.is_ready:
            raise _Refused("UNAVAILABLE", f"Request for unknown model: '{name}' has no available versions")
        return self.models[name]

    def _server_metadata(self, _: Any) -> Any:
        return service_pb2.ServerMetadataResponse(name="trtbuild-mock", version="2.51.0", extensions=EXTENSIONS)

    def _model_ready(self, request: Any) -> Any:
        return service_pb2.ModelReadyResponse(ready=request.name in self.models and self.engine.is_ready)

    def _statistics(self, request: Any) -> Any:
        names = [self.model(request.name).name] if request.name else list(self.models)
        return grpc_messages.statistics(names, self.engine.counters)

    def _index(self, _: Any) -> Any:
        response = service_pb2.RepositoryIndexResponse()
        for name in self.models:
            response.models.add(name=name, version="1", state="READY" if self.engine.is_ready else "LOADING")
        return response


class _Refusal:
    """Answers with a status at once."""

    def __init__(self, stream: Stream, status: str, text: str) -> None:
        stream.finish(_trailers(status, text))

    def message(self, data: bytes) -> None:
        """Ignore it."""

    def half_closed(self) -> None:
        """Ignore it."""

    def lost(self) -> None:
        """Ignore it."""


class _Unary:
    """Answers one message with one message."""

    def __init__(self, stream: Stream, kind: Any, answer: Callable[[Any], Any]) -> None:
        self._stream = stream
        self._kind = kind
        self._answer = answer

    def message(self, data: bytes) -> None:
        """Answer."""
        try:
            result = self._answer(self._kind.FromString(data) if self._kind is not None else data)
        except _Refused as error:
            self._stream.finish(_trailers(error.status, error.text))
            return
        self._stream.send(result if isinstance(result, bytes) else result.SerializeToString())
        self._stream.finish(_trailers("OK"))

    def half_closed(self) -> None:
        """Nothing more is expected anyway."""

    def lost(self) -> None:
        """Nothing runs."""


class _Infer:
    """ModelInfer or ModelStreamInfer: any number of requests, answered as their tokens become due."""

    def __init__(self, stream: Stream, service: Service, *, in_stream: bool) -> None:
        self.stream = stream
        self.in_stream = in_stream
        self.has_real_errors = stream.headers.get(b"triton_grpc_error") == b"true" or not in_stream
        self._service = service
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_half_closed = False

    def message(self, data: bytes) -> None:
        """Start a request."""
        request = service_pb2.ModelInferRequest.FromString(data)
        engine = self._service.engine
        try:
            model = self._service.model(request.model_name)
            if model.is_decoupled and not self.in_stream:
                raise _Refused(
                    "UNIMPLEMENTED", "ModelInfer RPC doesn't support models with decoupled transaction policy"
                )
            if not model.is_served:
                raise _Refused("UNAVAILABLE", f"the mock only describes model '{model.name}'")
            values = grpc_messages.inputs(request, model)
            sink = _GrpcSink(
                self, request, model, replies.Outputs(model, values), has_final_on_data=engine.options.has_final_on_data
            )
            if values.get("stop", (False,))[0]:
                engine.stop(request.id)
                sink.finish(times=1)
                self.over()
                return
            timeout_us = request.parameters["timeout"].int64_param if "timeout" in request.parameters else 0
            job = replies.job(
                model, values, request_id=request.id, protocol="grpc", timeout_ns=timeout_us * 1000 or None
            )
        except _Refused as error:
            self.fail(error.text, error.status)
        except InvalidRequest as error:
            self.fail(f"[request id: {request.id or '<id_unknown>'}] {error.message}", "INVALID_ARGUMENT")
        else:
            task = engine.start(job, sink)
            self._tasks.add(task)
            task.add_done_callback(self._done)

    def fail(self, text: str, status: str) -> None:
        """Send an error, as a message of the stream or as the status of the call."""
        if self.has_real_errors:
            self.stream.finish(_trailers(status, text))
            self.lost()
        else:
            self.stream.send(service_pb2.ModelStreamInferResponse(error_message=text).SerializeToString())
            self.over()

    def half_closed(self) -> None:
        """End the stream when everything is answered."""
        self._is_half_closed = True
        self.over()

    def over(self) -> None:
        """End the stream if nothing is left to do."""
        if self._is_half_closed and not self._tasks:
            self.stream.finish(_trailers("OK"))

    def lost(self) -> None:
        """Cancel what runs."""
        for task in list(self._tasks):
            task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.result()  # a defect of ours must be seen
        self.over()


class _GrpcSink:
    """Where the answer to one request over gRPC goes."""

    def __init__(
        self, call: _Infer, request: Any, model: Model, outputs: replies.Outputs, *, has_final_on_data: bool
    ) -> None:
        self._call = call
        self._request_id = request.id
        self._outputs = outputs
        self._writer = ResponseWriter(model, request.id, in_stream=call.in_stream)
        self._has_final_on_data = has_final_on_data or not model.is_decoupled
        wanted = request.parameters.get("triton_enable_empty_final_response")
        self._wants_final = wanted is not None and wanted.bool_param and call.in_stream
        self._finals = 0

    def send(self, pieces: Sequence[Piece], *, has_end: bool, entry: Entry) -> None:
        """Send responses that are due."""
        messages = []
        for number, piece in enumerate(pieces, 1):
            is_last = has_end and number == len(pieces)
            is_final = is_last and self._has_final_on_data and entry.fault != "no_final"
            self._finals += is_final
            outputs = self._outputs.of(piece, has_end=is_last, entry=entry)
            messages.append(self._writer.message(outputs, is_final=is_final))
        self._call.stream.send(*messages, stamps=entry.sent_ns)

    def finish(self, *, times: int) -> None:
        """Say that the answer is complete, where the client wants to hear it."""
        if self._wants_final:
            for _ in range(times - self._finals):
                self._call.stream.send(self._writer.message((), is_final=True))

    def fail(self, failure: Failure) -> None:
        """Send the error."""
        name = self._request_id if failure.has_id and self._request_id else "<id_unknown>"
        self._call.fail(f"[request id: {name}] {failure.text}", failure.status)

    def garble(self) -> None:
        """Send a message that protobuf cannot read."""
        self._call.stream.send(b"\xff\xff\xff\xff")

    def reset(self, *, is_connection: bool) -> None:
        """Break the stream or the connection."""
        if is_connection:
            self._call.stream.drop_connection()
        else:
            self._call.stream.reset()
            self._call.lost()


def _trailers(status: str, text: str = "") -> list[Header]:
    trailers: list[Header] = [(b"grpc-status", str(_STATUS[status]).encode())]
    if text:
        trailers.append((b"grpc-message", quote(text, safe=" !#$&'()*+,/:;=?@[]<>\"{}|^`~").encode()))
    return trailers
