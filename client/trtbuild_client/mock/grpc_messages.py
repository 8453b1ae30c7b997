"""Triton's gRPC messages: reading requests, describing models, and writing responses with as little work as possible."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from google.protobuf import json_format

from trtbuild_client.errors import InvalidRequest
from trtbuild_client.mock.counters import Counters
from trtbuild_client.mock.models import Model
from trtbuild_client.mock.replies import Output
from trtbuild_client.tensors import DTYPES, decode
from trtbuild_client.triton_proto import model_config_pb2, service_pb2
from trtbuild_client.wire import TensorSpec

#: Protobuf: tag of field 2 of ModelStreamInferResponse, and of field 6 of ModelInferResponse; both of bytes.
_INFER_RESPONSE, _RAW_OUTPUT = b"\x12", b"\x32"
_CONTENTS = {
    "BOOL": "bool_contents", "INT32": "int_contents", "INT64": "int64_contents", "UINT64": "uint64_contents",
    "FP32": "fp32_contents", "BYTES": "bytes_contents", "UINT32": "uint_contents", "FP64": "fp64_contents",
}  # fmt: skip
_FIXED = {
    "BOOL": struct.Struct("<?"),
    "INT32": struct.Struct("<i"),
    "UINT64": struct.Struct("<Q"),
    "FP32": struct.Struct("<f"),
}


def inputs(request: Any, model: Model) -> dict[str, Sequence[Any]]:
    """Return the elements of each input tensor of a ModelInferRequest.

    Raises:
        InvalidRequest: in the words of Triton, what it refuses.
    """
    raw = request.raw_input_contents
    values: dict[str, Sequence[Any]] = {}
    for index, each in enumerate(request.inputs):
        spec = model.inputs.get(each.name)
        if spec is None:
            raise InvalidRequest(f"unexpected inference input '{each.name}' for model '{model.name}'")
        if each.datatype != spec.dtype:
            raise InvalidRequest(
                f"inference input '{each.name}' data-type is '{each.datatype}', but model '{model.name}' expects '{spec.dtype}'"
            )
        _check_shape(each.name, tuple(each.shape), spec, model)
        values[each.name] = _elements(each, raw[index] if raw else None)
    missing = [name for name, spec in model.inputs.items() if not spec.is_optional and name not in values]
    if missing:
        needed = sum(not spec.is_optional for spec in model.inputs.values())
        raise InvalidRequest(
            f"expected number of inputs between {needed} and {len(model.inputs)} but got {len(values)} inputs for model "
            f"'{model.name}'. Got input(s) {sorted(values)}, but missing required input(s) {missing}"
        )
    return values


def _check_shape(name: str, shape: tuple[int, ...], spec: TensorSpec, model: Model) -> None:
    dims = (-1, *spec.dims) if model.max_batch_size else spec.dims
    if len(dims) != len(shape) or any(want not in (-1, have) for want, have in zip(dims, shape, strict=True)):
        raise InvalidRequest(
            f"unexpected shape for input '{name}' for model '{model.name}'. Expected {list(dims)}, got {list(shape)}"
        )


def _elements(tensor: Any, raw: bytes | None) -> Sequence[Any]:
    if raw is None:
        return list(getattr(tensor.contents, _CONTENTS[tensor.datatype]))
    fixed = _FIXED.get(tensor.datatype)
    if fixed is not None and len(raw) == fixed.size:
        return fixed.unpack(raw)
    if tensor.datatype not in DTYPES and tensor.datatype != "BYTES":
        raise InvalidRequest(f"data type {tensor.datatype} is not known")
    elements: list[Any] = decode(tensor.name, tensor.datatype, tuple(tensor.shape), raw).ravel().tolist()
    return elements


def metadata(model: Model) -> Any:
    """Return the ModelMetadataResponse."""
    response = service_pb2.ModelMetadataResponse(name=model.name, versions=["1"], platform="mock")
    batch = [-1] if model.max_batch_size else []
    for tensors, target in ((model.inputs, response.inputs), (model.outputs, response.outputs)):
        for name, spec in tensors.items():
            target.add(name=name, datatype=spec.dtype, shape=[*batch, *spec.dims])
    return response


def config(model: Model) -> Any:
    """Return the ModelConfigResponse."""
    response = service_pb2.ModelConfigResponse()
    target = response.config
    target.name = model.name
    target.max_batch_size = model.max_batch_size
    target.model_transaction_policy.decoupled = model.is_decoupled
    if model.steps:
        target.platform = "ensemble"
        for step in model.steps:
            target.ensemble_scheduling.step.add(model_name=step, model_version=-1)
    else:
        target.backend = "mock"
    for name, value in model.parameters.items():
        target.parameters[name].string_value = value
    for name, spec in model.inputs.items():
        target.input.add(name=name, data_type=_config_type(spec.dtype), dims=spec.dims, optional=spec.is_optional)
    for name, spec in model.outputs.items():
        target.output.add(name=name, data_type=_config_type(spec.dtype), dims=spec.dims)
    return response


def _config_type(dtype: str) -> Any:
    return model_config_pb2.DataType.Value("TYPE_STRING" if dtype == "BYTES" else f"TYPE_{dtype}")


def statistics_json(names: Sequence[str], counters: Counters) -> dict[str, Any]:
    """Return the statistics of some models as JSON values, in the form of Triton's statistics extension."""
    models = []
    for name in names:
        counted = counters.models[name]
        durations = {
            "success": (counted.ok, counted.ok_ns),
            "fail": (counted.failed + counted.cancelled, counted.failed_ns),
            "queue": (counted.ok, counted.queue_ns),
            "compute_input": (counted.ok, 0),
            "compute_infer": (counted.ok, counted.compute_ns),
            "compute_output": (counted.ok, 0),
        }
        models.append(
            {
                "name": name,
                "version": "1",
                "last_inference": counted.last_ms,
                "inference_count": counted.ok,
                "execution_count": counted.ok,
                "inference_stats": {key: {"count": number, "ns": ns} for key, (number, ns) in durations.items()},
            }
        )
    return {"model_stats": models}


def statistics(names: Sequence[str], counters: Counters) -> Any:
    """Return the ModelStatisticsResponse of some models."""
    return json_format.ParseDict(statistics_json(names, counters), service_pb2.ModelStatisticsResponse())


class ResponseWriter:
    """Writes the responses to one request.

    What does not change from token to token is encoded once, by protobuf; the data is put behind it by hand.

    Args:
        in_stream: wrap each as a ModelStreamInferResponse.
    """

    def __init__(self, model: Model, request_id: str, *, in_stream: bool) -> None:
        self._model = model
        self._request_id = request_id
        self._in_stream = in_stream
        self._heads: dict[tuple[Any, ...], bytes] = {}

    def message(self, outputs: Sequence[Output], *, is_final: bool) -> bytes:
        """Return one encoded response."""
        key = (is_final, *((each.name, each.shape) for each in outputs))
        head = self._heads.get(key)
        if head is None:
            head = self._heads[key] = self._head(outputs, is_final=is_final)
        parts = [head]
        for each in outputs:
            raw = each.raw()
            parts += (_RAW_OUTPUT, _varint(len(raw)), raw)
        body = b"".join(parts)
        return b"".join((_INFER_RESPONSE, _varint(len(body)), body)) if self._in_stream else body

    def _head(self, outputs: Sequence[Output], *, is_final: bool) -> bytes:
        response = service_pb2.ModelInferResponse(model_name=self._model.name, model_version="1", id=self._request_id)
        if self._in_stream:
            response.parameters["triton_final_response"].bool_param = is_final
        if self._model.steps:
            response.parameters["sequence_id"].int64_param = 0
            response.parameters["sequence_start"].bool_param = False
            response.parameters["sequence_end"].bool_param = False
        for each in outputs:
            response.outputs.add(name=each.name, datatype=each.dtype, shape=each.shape)
        encoded: bytes = response.SerializeToString()
        return encoded


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
