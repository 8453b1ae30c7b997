"""gRPC to Triton for threads: one request per stream, no threads of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc

from trtbuild_client import grpc_channel, grpc_wire
from trtbuild_client.connection import Connection
from trtbuild_client.errors import ClientError, InvalidRequest, ModelNotFound, NotReady
from trtbuild_client.faults import models_hint, question_error
from trtbuild_client.triton_proto import service_pb2, service_pb2_grpc
from trtbuild_client.wire import Call, ModelInfo, Reply, WireRequest

#: How long the server may take to close a stream after its last response, before the client does.
_CLOSE_GRACE_S = 0.25


class GrpcTransport:
    """A connection to one Triton server; safe to use from many threads.

    Args:
        connection: the server and how it is reached.
        connect_timeout_s: deadline of every call that only asks about server or models.

    Raises:
        InvalidRequest: a TLS file cannot be read.
    """

    def __init__(self, connection: Connection, *, connect_timeout_s: float) -> None:
        self.address = connection.address
        self._connection = connection
        self._connect_timeout_s = connect_timeout_s
        self._metadata = connection.metadata() or None
        options = grpc_channel.channel_options(connection)
        if connection.tls is None:
            self._channel = grpc.insecure_channel(self.address, options=options)
        else:
            self._channel = grpc.secure_channel(self.address, grpc_channel.credentials(connection.tls), options=options)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def close(self) -> None:
        """Close the connection; running calls are cancelled."""
        self._channel.close()

    def check_ready(self, model: str) -> None:
        """Return when server and model serve.

        Raises:
            ConnectError: nobody answers.
            NotReady, ModelNotFound: the server answers, but does not serve the model.
        """
        if not self._ask("ServerReady", service_pb2.ServerReadyRequest(), model).ready:
            raise NotReady(f"server {self.address} is not ready", hint="Models are loading, or one failed to load.")
        if not self._ask("ModelReady", service_pb2.ModelReadyRequest(name=model), model).ready:
            self.model_info(model)  # says so if there is no such model
            raise NotReady(f"model '{model}' on {self.address} is not ready", hint="Read the server's log.")

    def model_info(self, model: str) -> ModelInfo:
        """Return inputs, outputs and transaction policy of a model.

        Raises:
            ClientError: see `check_ready`.
        """
        metadata = self._ask("ModelMetadata", service_pb2.ModelMetadataRequest(name=model), model)
        config = self._ask("ModelConfig", service_pb2.ModelConfigRequest(name=model), model).config
        return grpc_wire.model_info(model, metadata, config)

    def start(self, request: WireRequest, info: ModelInfo) -> Call:
        """Send a request and return its replies; the RPC is the one the model's policy asks for.

        With nothing more to send, the stream is closed for writing at once: the server then closes it after its last
        response, even where it marks none as final.

        Raises:
            InvalidRequest: another thread closed the transport.
        """
        message = grpc_wire.message(request, self._connection)
        options = {"timeout": request.timeout_s, "metadata": self._metadata}
        try:
            if info.is_decoupled:
                call = self._stub.ModelStreamInfer(iter([message]), **options)
            else:
                call = self._stub.ModelInfer.future(message, **options)
        except ValueError as error:  # what grpc says of a channel that another thread has closed meanwhile
            raise InvalidRequest(
                f"request {request.request_id} cannot be sent: {error}", hint="The client was closed."
            ) from error
        return _GrpcCall(call, self.address, request, is_stream=info.is_decoupled)

    def _ask(self, method: str, message: Any, model: str) -> Any:
        try:
            return getattr(self._stub, method)(message, timeout=self._connect_timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            failure = question_error(
                error.details() or "",
                error.code().name,
                address=self.address,
                model=model,
                timeout_s=self._connect_timeout_s,
            )
            if isinstance(failure, ModelNotFound):
                failure.hint = self._known_models() or failure.hint
            raise failure from error

    def _known_models(self) -> str:
        """Return a hint that names the models of this server, "" when it does not tell."""
        question = service_pb2.RepositoryIndexRequest()
        try:
            index = self._stub.RepositoryIndex(question, timeout=self._connect_timeout_s, metadata=self._metadata)
        except grpc.RpcError:  # a server may forbid this call; the hint is then a general one
            return ""
        return models_hint(each.name for each in index.models)


class _GrpcCall:
    """A running ModelStreamInfer or ModelInfer."""

    def __init__(self, call: Any, address: str, request: WireRequest, *, is_stream: bool) -> None:
        self._call = call
        self._address = address
        self._request = request
        self._is_stream = is_stream
        self._closed = threading.Event()
        call.add_done_callback(lambda _: self._closed.set())

    def __iter__(self) -> Iterator[Reply]:
        try:
            if not self._is_stream:
                yield grpc_wire.reply(self._call.result(), is_final=True)
                return
            for message in self._call:
                yield grpc_wire.stream_reply(message, self._address, self._request)
        except grpc.FutureCancelledError as error:
            raise self._error("cancelled", "CANCELLED") from error
        except grpc.RpcError as error:
            raise self._error(error.details() or "", error.code().name) from error

    def cancel(self) -> None:
        """Give the request up."""
        self._call.cancel()

    def finish(self) -> None:
        """Let the server close the stream; close it ourselves if it does not."""
        if not self._closed.wait(_CLOSE_GRACE_S):
            self._call.cancel()

    def _error(self, text: str, status: str) -> ClientError:
        return grpc_wire.call_error(text, status, self._address, self._request)
