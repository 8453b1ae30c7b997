"""What the Python models of this repository share: parameters of config.pbtxt, tensors of requests, errors for one request.

Copied beside every model.py that names it; knows Triton's Python backend, knows nothing about tokenizers.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class RequestError(Exception):
    """The request cannot be served; the message is what the client reads.

    Args:
        message: what is wrong, with the value seen and what is allowed.
        code: a code of pb_utils.TritonError; none means that the request is at fault.
    """

    def __init__(self, message: str, code: Any = None) -> None:
        super().__init__(message)
        self.code = pb_utils.TritonError.INVALID_ARG if code is None else code


class Parameters:
    """The `parameters` of a config.pbtxt. A value that cannot be read stops the load, it never becomes a default.

    Args:
        model_config: the JSON text Triton hands to `initialize` as args["model_config"].
    """

    def __init__(self, model_config: str) -> None:
        self.config: dict[str, Any] = json.loads(model_config)
        self._values = {key: entry["string_value"] for key, entry in self.config.get("parameters", {}).items()}

    @property
    def is_decoupled(self) -> bool:
        """Whether a request may get any number of responses."""
        return bool(self.config.get("model_transaction_policy", {}).get("decoupled", False))

    @property
    def inputs(self) -> list[str]:
        """The names of the model's inputs."""
        return [str(tensor["name"]) for tensor in self.config.get("input", [])]

    @property
    def outputs(self) -> list[str]:
        """The names of the model's outputs."""
        return [str(tensor["name"]) for tensor in self.config.get("output", [])]

    def text(self, key: str, default: str = "") -> str:
        """Return a text parameter."""
        return str(self._values.get(key, default))

    def required_text(self, key: str) -> str:
        """Return a text parameter that must be there.

        Raises:
            ValueError: it is missing or empty.
        """
        value = self.text(key)
        if not value:
            raise ValueError(f"parameter '{key}' of model '{self.config.get('name')}' is missing or empty")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a boolean parameter, written true or false.

        Raises:
            ValueError: it is written any other way.
        """
        value = self.text(key, "true" if default else "false").lower()
        if value not in ("true", "false"):
            raise ValueError(f"parameter '{key}' is '{value}', need true or false")
        return value == "true"

    def number(self, key: str, default: int | None = None) -> int:
        """Return a whole number.

        Raises:
            ValueError: it is missing without a default, or no whole number.
        """
        value = self.text(key, "" if default is None else str(default))
        if not value.isascii() or not value.isdigit():
            raise ValueError(f"parameter '{key}' is '{value}', need a whole number")
        return int(value)

    def texts(self, key: str) -> list[str]:
        """Return a JSON list of texts; a missing parameter is an empty list.

        Raises:
            ValueError: it is something else.
        """
        value = json.loads(self.text(key, "[]"))
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ValueError(f"parameter '{key}' must be a JSON list of texts")
        return value


def array(request: Any, name: str) -> np.ndarray[Any, Any] | None:
    """Return an input tensor, or None when the request does not carry it."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else np.asarray(tensor.as_numpy())


def texts(values: np.ndarray[Any, Any], name: str) -> list[str]:
    """Return the elements of a BYTES tensor as text.

    Raises:
        RequestError: an element is not UTF-8.
    """
    try:
        return [item.decode("utf-8") if isinstance(item, bytes) else str(item) for item in values.reshape(-1)]
    except UnicodeDecodeError as error:
        raise RequestError(f"{name} is not valid UTF-8: {error.reason} at byte {error.start}") from error


def byte_strings(values: list[list[str]]) -> np.ndarray[Any, Any]:
    """Return rows of text as a BYTES tensor [rows, columns]."""
    return np.array([[item.encode("utf-8") for item in row] for row in values], dtype=np.object_)


def error_response(error: Exception, model: str) -> Any:
    """Return the error response for one request.

    A RequestError is the client's affair and is passed on as it is. Anything else is a defect: its traceback goes to
    the server's log, its class and message to the client.
    """
    if isinstance(error, RequestError):
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), error.code))
    pb_utils.Logger.log_error(f"{model}: {''.join(traceback.format_exception(error))}")
    message = f"internal error in {model}: {type(error).__name__}: {error}"
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, pb_utils.TritonError.INTERNAL))


def answer_each(requests: list[Any], answer: Callable[[Any], Any], model: str) -> list[Any]:
    """Return one response per request; an exception becomes the error response of its own request only."""
    responses = []
    for request in requests:
        try:
            responses.append(answer(request))
        except Exception as error:  # the edge of the process: one bad request must not fail the others of its batch
            responses.append(error_response(error, model))
    return responses
