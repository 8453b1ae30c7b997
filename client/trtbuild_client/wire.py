"""The messages between client and transport, independent of gRPC and HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a model.

    Attributes:
        dtype: Triton's name: BYTES, INT32, UINT64, FP32, BOOL ...
        dims: shape without the batch dimension, -1 for any size.
        is_optional: whether a request may leave it out.
    """

    dtype: str
    dims: tuple[int, ...]
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a server says about a model.

    Attributes:
        max_batch_size: 0 means that tensors carry no batch dimension.
        is_decoupled: several answers, or none, may follow one request; only the stream RPC works.
        steps: the models an ensemble is made of, empty for other models.
        parameters: of its configuration.
    """

    name: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    max_batch_size: int
    is_decoupled: bool
    steps: tuple[str, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_cumulative(self) -> bool:
        """Whether each streamed response holds all text so far: the LLM API's model, and a BLS that accumulates tokens."""
        accumulates = self.parameters.get("accumulate_tokens", "").strip().lower() in ("true", "1", "t", "y", "yes")
        return accumulates or "sampling_param_max_tokens" in self.inputs

    @property
    def is_batched(self) -> bool:
        """Whether tensors carry a batch dimension."""
        return self.max_batch_size > 0


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input as it is sent.

    Attributes:
        shape: with the batch dimension where the model has one.
        data: little-endian, row-major; BYTES elements each with their length in four bytes before them.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class WireRequest:
    """One request as it is sent.

    Attributes:
        timeout_s: deadline of the whole request, seconds; the server gets it too, in its own unit.
    """

    model: str
    request_id: str
    tensors: tuple[Tensor, ...]
    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class Reply:
    """One response.

    Attributes:
        outputs: arrays by name with the batch dimension; BYTES as arrays of `bytes` objects. May be empty.
        is_final: the server marked it as the last one.
    """

    outputs: Mapping[str, NDArray[np.generic]]
    is_final: bool


class Call(Protocol):
    """One running request: yields replies, raises ClientError, and can be cancelled from any thread."""

    def __iter__(self) -> Iterator[Reply]: ...

    def cancel(self) -> None:
        """Give the request up; the server is told, and a waiting reader gets Cancelled."""

    def finish(self) -> None:
        """Release what the call holds after its last reply."""


class Transport(Protocol):
    """A connection to one server, for any number of threads."""

    def check_ready(self, model: str) -> None:
        """Return when server and model serve; else raise ConnectError, NotReady, ModelNotFound."""

    def model_info(self, model: str) -> ModelInfo:
        """Return inputs, outputs and policy of a model."""

    def start(self, request: WireRequest, info: ModelInfo) -> Call:
        """Send a request and return its replies."""

    def close(self) -> None:
        """Close the connection; running calls are cancelled."""


class AsyncCall(Protocol):
    """One running request in an event loop: yields replies, raises ClientError, and can be cancelled."""

    def __aiter__(self) -> AsyncIterator[Reply]: ...

    def cancel(self) -> None:
        """Give the request up; the server is told, and a waiting reader gets Cancelled."""

    async def finish(self) -> None:
        """Release what the call holds after its last reply."""


class AsyncTransport(Protocol):
    """A connection to one server, within one event loop."""

    async def check_ready(self, model: str) -> None:
        """Return when server and model serve; else raise ConnectError, NotReady, ModelNotFound."""

    async def model_info(self, model: str) -> ModelInfo:
        """Return inputs, outputs and policy of a model."""

    async def start(self, request: WireRequest, info: ModelInfo) -> AsyncCall:
        """Send a request and return its replies."""

    async def close(self) -> None:
        """Close the connection; running calls are cancelled."""
