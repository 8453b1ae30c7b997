"""gRPC to Triton: the only module that knows grpc and protobuf messages. One request per stream, no threads of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2, service_pb2_grpc

from trtbuild_client.errors import ClientError, ConnectError, DeadlineExceeded, ModelNotFound, NotReady, ServerError
from trtbuild_client.faults import translate
from trtbuild_client.tensors import DTYPES, decode, object_array
from trtbuild_client.wire import Call, ModelInfo, Reply, TensorSpec, WireRequest

_MAX_MESSAGE_BYTES = 2**31 - 1
#: How long the server may take to close a stream after its last response, before the client does.
_CLOSE_GRACE_S = 0.25
_LOOPBACK = ("127.", "localhost", "[::1]")

#: data type -> field of InferTensorContents, for servers that do not send raw bytes.
_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


class GrpcTransport:
    """A connection to one Triton server; safe to use from many threads.

    Args:
        address: host:port of the gRPC endpoint.
        connect_timeout_s: deadline of every call that only asks about server or models.
    """

    def __init__(self, address: str, *, connect_timeout_s: float) -> None:
        self.address = address
        self._connect_timeout_s = connect_timeout_s
        options: list[tuple[str, int]] = [
            ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
            ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
        ]
        if address.startswith(_LOOPBACK):
            options.append(("grpc.enable_http_proxy", 0))  # a proxy cannot reach our own loopback
        self._channel = grpc.insecure_channel(address, options=options)
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
        optional = {each.name for each in config.input if each.optional}
        skipped = 1 if config.max_batch_size > 0 else 0

        def specs(tensors: Any) -> dict[str, TensorSpec]:
            return {
                each.name: TensorSpec(each.datatype, tuple(each.shape)[skipped:], each.name in optional)
                for each in tensors
            }

        return ModelInfo(
            name=model,
            inputs=specs(metadata.inputs),
            outputs=specs(metadata.outputs),
            max_batch_size=config.max_batch_size,
            is_decoupled=config.model_transaction_policy.decoupled,
            steps=tuple(step.model_name for step in config.ensemble_scheduling.step),
        )

    def start(self, request: WireRequest, *, is_decoupled: bool) -> Call:
        """Send a request and return its replies; the RPC is the one the model's policy asks for.

        With nothing more to send, the stream is closed for writing at once: the server then closes it after its last
        response, even where it marks none as final.
        """
        message = _message(request)
        if is_decoupled:
            call = self._stub.ModelStreamInfer(iter([message]), timeout=request.timeout_s)
        else:
            call = self._stub.ModelInfer.future(message, timeout=request.timeout_s)
        return _GrpcCall(call, self.address, request, is_stream=is_decoupled)

    def _ask(self, method: str, message: Any, model: str) -> Any:
        try:
            return getattr(self._stub, method)(message, timeout=self._connect_timeout_s)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise ConnectError(
                    f"no answer from {self.address} within {self._connect_timeout_s:g} s",
                    hint="Is this the gRPC port of a running Triton server?",
                ) from error
            failure = translate(error.details() or "", status=error.code().name, address=self.address, model=model)
            if isinstance(failure, ModelNotFound):
                failure.hint = self._known_models() or failure.hint
            raise failure from error

    def _known_models(self) -> str:
        """Return a hint that names the models of this server, "" when it does not tell."""
        try:
            index = self._stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(), timeout=self._connect_timeout_s)
        except grpc.RpcError:  # a server may forbid this call; the hint is then a general one
            return ""
        return f"Models of this server: {', '.join(sorted({each.name for each in index.models})) or 'none'}."


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
                yield _reply(self._call.result(), is_final=True)
                return
            for message in self._call:
                if message.error_message:
                    raise self._error(message.error_message, "")
                flag = message.infer_response.parameters.get("triton_final_response")
                yield _reply(message.infer_response, is_final=flag is not None and flag.bool_param)
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
        if status == "DEADLINE_EXCEEDED" and self._request.timeout_s is not None:
            return DeadlineExceeded(
                f"no complete answer from model '{self._request.model}' on {self._address} "
                f"within {self._request.timeout_s:g} s",
                phase="total",
                timeout_s=self._request.timeout_s,
                hint="Raise the timeout, ask for fewer tokens, or look at the server's load.",
            )
        return translate(text, status=status, address=self._address, model=self._request.model)


def _message(request: WireRequest) -> Any:
    message = service_pb2.ModelInferRequest(model_name=request.model, id=request.request_id)
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    if request.timeout_s is not None:
        # Seconds here, microseconds there; the server applies it to the time in its queues only.
        message.parameters["timeout"].int64_param = round(request.timeout_s * 1_000_000)
    for tensor in request.tensors:
        message.inputs.add(name=tensor.name, datatype=tensor.dtype, shape=tensor.shape)
        message.raw_input_contents.append(tensor.data)
    return message


def _reply(response: Any, *, is_final: bool) -> Reply:
    raw = response.raw_output_contents
    outputs: Mapping[str, NDArray[np.generic]] = {
        each.name: decode(each.name, each.datatype, tuple(each.shape), raw[index]) if raw else _typed(each)
        for index, each in enumerate(response.outputs)
    }
    return Reply(outputs=outputs, is_final=is_final)


def _typed(output: Any) -> NDArray[np.generic]:
    if output.datatype not in _CONTENTS:
        raise ServerError(
            f"output '{output.name}' has data type {output.datatype} but no raw bytes", hint="Not readable."
        )
    values = list(getattr(output.contents, _CONTENTS[output.datatype]))
    array = object_array(values) if output.datatype == "BYTES" else np.asarray(values, dtype=DTYPES[output.datatype])
    return array.reshape(tuple(output.shape))
