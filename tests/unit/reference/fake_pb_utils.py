"""A stand-in for `triton_python_backend_utils`: what the core model uses of it, with the rules the real one enforces."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1


class TritonError(Exception):
    INTERNAL, INVALID_ARG, CANCELLED = "internal", "invalid", "cancelled"

    def __init__(self, message: str, code: str = INTERNAL) -> None:
        super().__init__(message)
        self.message, self.code = message, code


class Tensor:
    def __init__(self, name: str, values: np.ndarray) -> None:
        assert isinstance(values, np.ndarray)
        self._name, self._values = name, values

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._values


class InferenceResponse:
    def __init__(self, output_tensors: list[Tensor] | None = None, error: TritonError | None = None) -> None:
        self.outputs = {tensor.name(): tensor.as_numpy() for tensor in output_tensors or []}
        self._error = error

    def error(self) -> TritonError | None:
        return self._error


class ResponseSender:
    """Records responses; refuses what the real sender refuses."""

    def __init__(self, *, is_decoupled: bool) -> None:
        self.is_decoupled = is_decoupled
        self.responses: list[InferenceResponse] = []
        self.closed = threading.Event()
        self.has_left = False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        assert not self.closed.is_set(), "Response sender has been closed."
        assert self.is_decoupled or response is not None, "cannot send complete final before sending a response"
        assert self.is_decoupled or flags, "a model that is not decoupled has one response, which is final"
        if response is not None:
            self.responses.append(response)
        if flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL:
            self.closed.set()

    def is_cancelled(self) -> bool:
        return self.has_left


class Request:
    def __init__(self, tensors: dict[str, np.ndarray], request_id: str = "", *, is_decoupled: bool = True) -> None:
        self._tensors, self._id = tensors, request_id
        self.sender = ResponseSender(is_decoupled=is_decoupled)

    def inputs(self) -> list[Tensor]:
        return [Tensor(name, values) for name, values in self._tensors.items()]

    def request_id(self) -> str:
        return self._id

    def get_response_sender(self) -> ResponseSender:
        return self.sender


class Metric:
    """One metric; two threads in it at once would crash the real server."""

    def __init__(self, labels: dict[str, str], buckets: list[float] | None = None) -> None:
        self.labels, self.buckets = labels, buckets
        self.current: float | None = None
        self.observed: list[float] = []
        self._busy = threading.Lock()

    def set(self, value: float) -> None:
        self._alone(lambda: setattr(self, "current", value))

    def observe(self, value: float) -> None:
        self._alone(lambda: self.observed.append(value))

    def _alone(self, change: Callable[[], None]) -> None:
        assert self._busy.acquire(blocking=False), "two threads in one metric"
        change()
        self._busy.release()


class MetricFamily:
    GAUGE, HISTOGRAM = "gauge", "histogram"
    registered: dict[str, MetricFamily] = {}  # noqa: RUF012  # the server's, shared on purpose

    def __init__(self, name: str, description: str, kind: str) -> None:
        self.name, self.description, self.kind = name, description, kind
        self.metrics: list[Metric] = []
        self.registered[name] = self

    def Metric(self, labels: dict[str, str], buckets: list[float] | None = None) -> Metric:  # upstream's name
        self.metrics.append(Metric(labels, buckets))
        return self.metrics[-1]


class Logger:
    messages: list[str] = []  # noqa: RUF012

    @classmethod
    def log_error(cls, message: str) -> None:
        cls.messages.append(message)


def parameters(values: dict[str, Any]) -> dict[str, Any]:
    """Return parameters as Triton hands them over."""
    return {key: {"string_value": str(value)} for key, value in values.items()}
