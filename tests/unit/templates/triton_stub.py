"""A stand-in for `triton_python_backend_utils`: tensors, requests and responses as plain objects, models as functions."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

FINAL = 1

#: Model name -> what answers requests made from inside another model.
MODELS: dict[str, Callable[[InferenceRequest, bool], Any]] = {}


class Tensor:
    """A named array; Triton refuses a wrong type, so does this."""

    def __init__(self, name: str, values: np.ndarray) -> None:
        assert isinstance(values, np.ndarray), name
        self._name, self._values = name, values

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._values


class TritonError:
    UNKNOWN, INTERNAL, INVALID_ARG, CANCELLED = range(4)

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        self._message, self._code = message, code

    def message(self) -> str:
        return self._message

    def code(self) -> int:
        return self._code


class InferenceResponse:
    def __init__(self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None) -> None:
        self._tensors, self._error = list(output_tensors), error

    def output_tensors(self) -> list[Tensor]:
        return self._tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error

    def values(self) -> dict[str, Any]:
        """Return the tensors as nested lists, text decoded."""
        return {tensor.name(): _plain(tensor.as_numpy()) for tensor in self._tensors}


class Sender:
    """Collects what a model sends; `cancel` makes it look as if the client had gone."""

    def __init__(self) -> None:
        self.responses: list[InferenceResponse] = []
        self.is_final = False
        self._cancelled = threading.Event()

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        assert not self.is_final, "nothing may follow FINAL"
        if response is not None:
            self.responses.append(response)
        self.is_final = flags == FINAL

    def cancel(self) -> None:
        self._cancelled.set()

    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()


class InferenceRequest:
    def __init__(
        self,
        model_name: str = "",
        requested_output_names: Sequence[str] = (),
        inputs: Sequence[Tensor] = (),
        request_id: str = "",
    ) -> None:
        self.model_name, self.outputs = model_name, list(requested_output_names)
        self.tensors = {tensor.name(): tensor for tensor in inputs}
        self._id = request_id
        self.sender = Sender()

    def request_id(self) -> str:
        return self._id

    def get_response_sender(self) -> Sender:
        return self.sender

    def exec(self, decoupled: bool = False) -> Any:
        return MODELS[self.model_name](self, decoupled)

    def values(self) -> dict[str, Any]:
        """Return the inputs as nested lists, text decoded."""
        return {name: _plain(tensor.as_numpy()) for name, tensor in self.tensors.items()}


class Logger:
    lines: ClassVar[list[str]] = []

    @classmethod
    def log_error(cls, text: str) -> None:
        cls.lines.append(text)

    log_warn = log_error


def request(inputs: dict[str, Any], request_id: str = "") -> InferenceRequest:
    """Return a request of plain values: texts become BYTES, whole numbers INT32, others FP32; arrays stay."""
    return InferenceRequest(
        inputs=[Tensor(name, _array(value)) for name, value in inputs.items()], request_id=request_id
    )


def arguments(
    parameters: dict[str, str], *, decoupled: bool = True, inputs: Iterable[str] = (), outputs: Iterable[str] = ()
) -> dict[str, str]:
    """Return what Triton hands to `initialize`."""
    config = {
        "name": "model",
        "model_transaction_policy": {"decoupled": decoupled},
        "input": [{"name": name} for name in inputs],
        "output": [{"name": name} for name in outputs],
        "parameters": {key: {"string_value": value} for key, value in parameters.items()},
    }
    return {"model_config": json.dumps(config)}


def module() -> ModuleType:
    """Return the stand-in as a module."""
    stub = ModuleType("triton_python_backend_utils")
    for item in (Tensor, TritonError, InferenceResponse, InferenceRequest, Logger):
        setattr(stub, item.__name__, item)
    stub.TRITONSERVER_RESPONSE_COMPLETE_FINAL = FINAL  # type: ignore[attr-defined]  # attributes are all it is made of
    stub.get_input_tensor_by_name = lambda request, name: request.tensors.get(name)  # type: ignore[attr-defined]  # as above
    stub.get_output_tensor_by_name = _output  # type: ignore[attr-defined]  # as above
    return stub


def _output(response: InferenceResponse, name: str) -> Tensor | None:
    return next((tensor for tensor in response.output_tensors() if tensor.name() == name), None)


def _array(value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    flat = list(_leaves(value))
    if any(isinstance(item, (str, bytes)) for item in flat):
        encoded = [item.encode() if isinstance(item, str) else item for item in flat]
        shape = np.array(value, dtype=object).shape
        array = np.empty(len(encoded), dtype=object)
        array[:] = encoded
        return array.reshape(shape)
    kinds = {bool: np.bool_, int: np.int32}
    return np.array(value, dtype=kinds.get(type(flat[0]), np.float32) if flat else np.object_)


def _leaves(value: Any) -> Iterable[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _plain(values: np.ndarray) -> Any:
    if values.dtype == object:
        decoded = [item.decode() if isinstance(item, bytes) else item for item in values.reshape(-1)]
        return np.array(decoded, dtype=object).reshape(values.shape).tolist()
    return values.tolist()
