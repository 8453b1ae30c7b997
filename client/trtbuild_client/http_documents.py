"""Triton's JSON documents to the client's own messages and back: metadata, configuration, generate requests and answers."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from trtbuild_client.errors import ClientError, ConnectError, InvalidRequest, NotReady, ServerError
from trtbuild_client.events import documents
from trtbuild_client.faults import models_hint, translate
from trtbuild_client.http_wire import Head
from trtbuild_client.tensors import DTYPES, decode, numbers, object_array
from trtbuild_client.text import encoded
from trtbuild_client.wire import ModelInfo, Reply, Tensor, TensorSpec, WireRequest

#: HTTP status -> name of the gRPC status of the same error (tritonserver, src/http_server.cc).
_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "BUSY",
}


#: Of the question which models a server has: POST (Triton's model repository extension).
INDEX_PATH = "/v2/repository/index"


def model_path(model: str, verb: str = "") -> str:
    """Return the path of a model, or of something it can do."""
    return f"/v2/models/{quote(model, safe='')}" + (f"/{verb}" if verb else "")


def verb_of(info: ModelInfo, tensors: tuple[Tensor, ...]) -> str:
    """Return which endpoint a request goes to: events where not exactly one response is to come, else one document."""
    is_many = any(each.name in ("stream", "streaming", "stop") and each.data == b"\1" for each in tensors)
    return "generate_stream" if info.is_decoupled and is_many else "generate"


def body(request: WireRequest) -> bytes:
    """Return a request as the JSON that generate takes; the batch dimension is the server's to add.

    Raises:
        InvalidRequest: a tensor cannot be written as JSON.
    """
    document: dict[str, Any] = {"id": request.request_id}
    if request.timeout_s is not None:
        document["timeout"] = round(request.timeout_s * 1_000_000)  # microseconds, for the server's queues only
    for tensor in request.tensors:
        document[tensor.name] = json_value(tensor)
    # Text from a command line that was no UTF-8 travels as it came.
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogateescape")


def json_value(tensor: Tensor) -> Any:
    """Return the content of a tensor as generate takes it: one element, or a list.

    Raises:
        InvalidRequest: a data type that JSON has not.
    """
    if tensor.dtype == "FP16":
        raise InvalidRequest(
            f"input '{tensor.name}' has data type FP16, which JSON cannot carry", hint="Use the gRPC endpoint."
        )
    array = decode(tensor.name, tensor.dtype, tensor.shape, tensor.data)
    elements = array.ravel().tolist()
    if tensor.dtype == "BYTES":
        elements = [element.decode("utf-8", "surrogateescape") for element in elements]
    return elements[0] if len(elements) == 1 else elements


def reply(document: Any, info: ModelInfo, address: str) -> Reply:
    """Return one response; what the model does not declare (names, sequence numbers) is left out.

    Raises:
        ClientError: the document is an error, whatever its status was, or no response of this model.
    """
    if isinstance(document, dict) and "error" in document:
        raise translate(_said(document["error"]), status="INTERNAL", address=address, model=info.name)
    if not isinstance(document, dict) or not (
        "model_name" in document or any(name in info.outputs for name in document)
    ):
        raise ServerError(
            f"model '{info.name}' on {address} answered {reprlib.repr(document)}", hint="Is this Triton's generate?"
        )
    outputs = {name: _array(name, document[name], spec) for name, spec in info.outputs.items() if name in document}
    return Reply(outputs=outputs, is_final=False)


def _array(name: str, value: Any, spec: TensorSpec) -> Any:
    """Return an output; texts are taken for numbers too (the LLM API's model sends statistics as texts).

    Raises:
        ServerError: it has another type, or does not fit.
    """
    elements = value if isinstance(value, list) else [value]
    if elements and all(isinstance(each, str) for each in elements):
        return object_array([encoded(each) for each in elements])
    if spec.dtype == "BYTES":
        raise ServerError(f"output '{name}'={reprlib.repr(value)} is no text", hint="Is this the server of that model?")
    return numbers(name, spec.dtype if spec.dtype in DTYPES else "FP32", elements)  # BF16 has no numpy type


def model_info(model: str, metadata: Any, config: Any, address: str) -> ModelInfo:
    """Return what metadata and configuration of a model say.

    Raises:
        ServerError: they are not what Triton writes.
    """
    try:
        max_batch_size = int(config.get("max_batch_size", 0))
        optional = {each["name"] for each in config.get("input", ()) if each.get("optional")}
        skipped = 1 if max_batch_size > 0 else 0

        def specs(key: str) -> Mapping[str, TensorSpec]:
            return {
                _text(each["name"]): TensorSpec(
                    _text(each["datatype"]),
                    tuple(int(size) for size in each["shape"])[skipped:],
                    each["name"] in optional,
                )
                for each in metadata.get(key, ())
            }

        return ModelInfo(
            name=model,
            inputs=specs("inputs"),
            outputs=specs("outputs"),
            max_batch_size=max_batch_size,
            is_decoupled=bool(config.get("model_transaction_policy", {}).get("decoupled", False)),
            steps=tuple(_text(step["model_name"]) for step in config.get("ensemble_scheduling", {}).get("step", ())),
            parameters={
                name: str(value.get("string_value", "")) for name, value in config.get("parameters", {}).items()
            },
        )
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ServerError(
            f"{address} describes model '{model}' in an unknown way ({type(error).__name__}: {error!s:.200})",
            hint="Is this the HTTP port of Triton?",
        ) from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{reprlib.repr(value)} is no text")
    return value


def _said(error: object) -> str:
    """Return what an error says: Triton's is a text, that of a server before it may be an object with `message`."""
    said = error.get("message", error) if isinstance(error, dict) else error
    return said if isinstance(said, str) else reprlib.repr(said)


def known_models(status: int, data: bytes) -> str:
    """Return a hint that names the models of a server, "" where it does not tell.

    Args:
        status, data: of the answer at `INDEX_PATH`.
    """
    try:
        index = json.loads(data) if status == 200 else None
    except (ValueError, RecursionError):
        return ""
    names = [each.get("name") for each in index if isinstance(each, dict)] if isinstance(index, list) else []
    return models_hint(name for name in names if isinstance(name, str)) if isinstance(index, list) else ""


def only_document(data: bytes) -> Any:
    """Return the one JSON document of a body.

    Raises:
        ServerError: it is none.
    """
    found = documents(data)
    if len(found) != 1:
        raise ServerError(f"the answer holds {len(found)} documents", hint="Is this the HTTP port of a Triton server?")
    return found[0]


def failure(head: Head, data: bytes, *, address: str, model: str) -> ClientError:
    """Return the error of an answer with a status that is not 200."""
    text = data[:400].decode("utf-8", "replace")
    try:
        document = json.loads(data)
        if isinstance(document, dict) and "error" in document:
            text = _said(document["error"])
    except (ValueError, RecursionError):  # a proxy's page, or nothing: it is quoted as it is
        pass
    status = _STATUS.get(head.status, "INTERNAL")
    if head.status == 503 and "queue" not in text and "timeout" not in text:
        return NotReady(f"model '{model}' on {address}: {text or 'HTTP 503'}", hint="The server cannot serve now.")
    return translate(text or f"HTTP {head.status}", status=status, address=address, model=model)


def broken(address: str, reason: object, *, is_unsent: bool) -> ConnectError:
    """Return the error for a connection that did not come about, or broke."""
    what = "no connection to" if is_unsent else "the connection broke:"
    said = str(reason or "closed by the server")
    error = ConnectError(
        f"{what} {address} ({said})",
        reason=said,
        hint="Start the server (`trtbuild serve REPOSITORY`), or give its address with --url (HTTP is usually port 8000).",
    )
    error.is_unsent = is_unsent
    return error
