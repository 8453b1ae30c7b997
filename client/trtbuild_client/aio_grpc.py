"""gRPC to Triton within an event loop: one request per stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from trtbuild_client import grpc_channel, grpc_wire
from trtbuild_client.connection import Connection
from trtbuild_client.errors import ModelNotFound, NotReady
from trtbuild_client.faults import models_hint, question_error
from trtbuild_client.triton_proto import service_pb2, service_pb2_grpc
from trtbuild_client.wire import AsyncCall, ModelInfo, Reply, WireRequest

#: How long the server may take to close a stream after its last response, before the client does.
_CLOSE_GRACE_S = 0.25


class AsyncGrpcTransport:
    """A connection to one Triton server, for one event loop.

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
            self._channel = grpc.aio.insecure_channel(self.address, options=options)
        else:
            self._channel = grpc.aio.secure_channel(
                self.address, grpc_channel.credentials(connection.tls), options=options
            )
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def close(self) -> None:
        """Close the connection; running calls are cancelled."""
        await self._channel.close()

    async def check_ready(self, model: str) -> None:
        """Return when server and model serve.

        Raises:
            ConnectError: nobody answers.
            NotReady, ModelNotFound: the server answers, but does not serve the model.
        """
        if not (await self._ask("ServerReady", service_pb2.ServerReadyRequest(), model)).ready:
            raise NotReady(f"server {self.address} is not ready", hint="Models are loading, or one failed to load.")
        if not (await self._ask("ModelReady", service_pb2.ModelReadyRequest(name=model), model)).ready:
            await self.model_info(model)  # says so if there is no such model
            raise NotReady(f"model '{model}' on {self.address} is not ready", hint="Read the server's log.")

    async def model_info(self, model: str) -> ModelInfo:
        """Return inputs, outputs and transaction policy of a model.

        Raises:
            ClientError: see `check_ready`.
        """
        metadata = await self._ask("ModelMetadata", service_pb2.ModelMetadataRequest(name=model), model)
        config = (await self._ask("ModelConfig", service_pb2.ModelConfigRequest(name=model), model)).config
        return grpc_wire.model_info(model, metadata, config)

    async def start(self, request: WireRequest, info: ModelInfo) -> AsyncCall:
        """Send a request and return its replies; the RPC is the one the model's policy asks for."""
        message = grpc_wire.message(request, self._connection)
        if info.is_decoupled:
            call = self._stub.ModelStreamInfer(iter([message]), timeout=request.timeout_s, metadata=self._metadata)
        else:
            call = self._stub.ModelInfer(message, timeout=request.timeout_s, metadata=self._metadata)
        return _AsyncGrpcCall(call, self.address, request, is_stream=info.is_decoupled)

    async def _ask(self, method: str, message: Any, model: str) -> Any:
        try:
            return await getattr(self._stub, method)(message, timeout=self._connect_timeout_s, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            failure = question_error(
                error.details() or "",
                error.code().name,
                address=self.address,
                model=model,
                timeout_s=self._connect_timeout_s,
            )
            if isinstance(failure, ModelNotFound):
                failure.hint = await self._known_models() or failure.hint
            raise failure from error

    async def _known_models(self) -> str:
        question = service_pb2.RepositoryIndexRequest()
        try:
            index = await self._stub.RepositoryIndex(question, timeout=self._connect_timeout_s, metadata=self._metadata)
        except grpc.aio.AioRpcError:  # a server may forbid this call; the hint is then a general one
            return ""
        return models_hint(each.name for each in index.models)


class _AsyncGrpcCall:
    """A running ModelStreamInfer or ModelInfer."""

    def __init__(self, call: Any, address: str, request: WireRequest, *, is_stream: bool) -> None:
        self._call = call
        self._address = address
        self._request = request
        self._is_stream = is_stream
        self._is_cancelled = False

    async def __aiter__(self) -> AsyncIterator[Reply]:
        try:
            if not self._is_stream:
                yield grpc_wire.reply(await self._call, is_final=True)
                return
            async for message in self._call:
                yield grpc_wire.stream_reply(message, self._address, self._request)
        except grpc.aio.AioRpcError as error:
            text, status = error.details() or "", error.code().name
            raise grpc_wire.call_error(text, status, self._address, self._request) from error
        except asyncio.CancelledError:
            # grpc.aio raises this for a call that was cancelled by us, too; a cancelled task must see it as it is.
            if not self._is_cancelled:
                raise
            raise grpc_wire.call_error("cancelled", "CANCELLED", self._address, self._request) from None

    def cancel(self) -> None:
        """Give the request up."""
        self._is_cancelled = True
        self._call.cancel()

    async def finish(self) -> None:
        """Let the server close the stream; close it ourselves if it does not."""
        try:
            await asyncio.wait_for(asyncio.shield(self._call.code()), _CLOSE_GRACE_S)
        except asyncio.TimeoutError:
            self._call.cancel()
