"""gRPC's messages of Triton to the client's own and back: what sync and asyncio transports share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtbuild_client.connection import Connection
from trtbuild_client.errors import ClientError, ServerError
from trtbuild_client.faults import too_late, too_long, translate
from trtbuild_client.tensors import decode, numbers, object_array
from trtbuild_client.triton_proto import service_pb2
from trtbuild_client.wire import ModelInfo, Reply, TensorSpec, WireRequest

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


def model_info(model: str, metadata: Any, config: Any) -> ModelInfo:
    """Return what metadata and configuration of a model say."""
    optional = {each.name for each in config.input if each.optional}
    skipped = 1 if config.max_batch_size > 0 else 0

    def specs(tensors: Any) -> dict[str, TensorSpec]:
        return {
            each.name: TensorSpec(each.datatype, tuple(each.shape)[skipped:], each.name in optional) for each in tensors
        }

    return ModelInfo(
        name=model,
        inputs=specs(metadata.inputs),
        outputs=specs(metadata.outputs),
        max_batch_size=config.max_batch_size,
        is_decoupled=config.model_transaction_policy.decoupled,
        steps=tuple(step.model_name for step in config.ensemble_scheduling.step),
        parameters={name: value.string_value for name, value in config.parameters.items()},
    )


def message(request: WireRequest, connection: Connection) -> Any:
    """Return the ModelInferRequest.

    Raises:
        InvalidRequest: it is longer than the connection may carry.
    """
    result = service_pb2.ModelInferRequest(model_name=request.model, id=request.request_id)
    result.parameters["triton_enable_empty_final_response"].bool_param = True
    if request.timeout_s is not None:
        # Seconds here, microseconds there; the server applies it to the time in its queues only.
        result.parameters["timeout"].int64_param = round(request.timeout_s * 1_000_000)
    for tensor in request.tensors:
        result.inputs.add(name=tensor.name, datatype=tensor.dtype, shape=tensor.shape)
        result.raw_input_contents.append(tensor.data)
    size_bytes = sum(len(tensor.data) for tensor in request.tensors)
    if size_bytes > connection.max_message_bytes:
        raise too_long(size_bytes, connection.max_message_bytes)
    return result


def stream_reply(response: Any, address: str, request: WireRequest) -> Reply:
    """Return one message of a stream.

    Raises:
        ClientError: it is an error, or could not be read (grpc.aio then gives None).
    """
    if response is None:
        raise ServerError(
            f"{address} sent what is no response of Triton", hint="Is this the gRPC port of a Triton server?"
        )
    if response.error_message:
        raise call_error(response.error_message, "", address, request)
    flag = response.infer_response.parameters.get("triton_final_response")
    return reply(response.infer_response, is_final=flag is not None and flag.bool_param)


def reply(response: Any, *, is_final: bool) -> Reply:
    """Return one response.

    Raises:
        ServerError: an output cannot be read.
    """
    raw = response.raw_output_contents
    if raw and len(raw) != len(response.outputs):
        raise ServerError(
            f"a response has {len(response.outputs)} outputs and {len(raw)} raw tensors", hint="Not readable."
        )
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
    try:
        is_text = output.datatype == "BYTES"
        array = object_array(values) if is_text else numbers(output.name, output.datatype, values)
        return array.reshape(tuple(output.shape))
    except ValueError as error:
        raise ServerError(
            f"output '{output.name}' ({output.datatype} {list(output.shape)}) has {len(values)} values that cannot be read: {error}",
            hint="Not readable.",
        ) from error


def call_error(text: str, status: str, address: str, request: WireRequest) -> ClientError:
    """Return the error of a running request.

    Args:
        status: name of the gRPC status, "" for an error within a stream.
    """
    if status == "DEADLINE_EXCEEDED" and request.timeout_s is not None:
        return too_late(address, request)
    return translate(text, status=status, address=address, model=request.model)
