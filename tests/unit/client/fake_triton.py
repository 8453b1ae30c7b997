"""A Triton server inside the test: gRPC on loopback, answers by script. Scripts wait on events, never on the clock."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

#: Longest time a script waits before the test is declared hung.
PATIENCE_S = 20.0
Script = Callable[[Any, "Session"], Iterable[Any]]

TEXT_INPUTS: dict[str, tuple[str, list[int], bool]] = {
    "text_input": ("BYTES", [1], False),
    "max_tokens": ("INT32", [1], False),
    "bad_words": ("BYTES", [-1], True),
    "stop_words": ("BYTES", [-1], True),
    "exclude_input_in_output": ("BOOL", [1], True),
    "end_id": ("INT32", [1], True),
    "pad_id": ("INT32", [1], True),
    "top_k": ("INT32", [1], True),
    "top_p": ("FP32", [1], True),
    "temperature": ("FP32", [1], True),
    "repetition_penalty": ("FP32", [1], True),
    "presence_penalty": ("FP32", [1], True),
    "frequency_penalty": ("FP32", [1], True),
    "min_tokens": ("INT32", [1], True),
    "seed": ("UINT64", [1], True),
    "return_log_probs": ("BOOL", [1], True),
    "return_perf_metrics": ("BOOL", [1], True),
    "return_num_input_tokens": ("BOOL", [1], True),
    "return_num_output_tokens": ("BOOL", [1], True),
    "beam_width": ("INT32", [1], True),
    "stream": ("BOOL", [1], True),
    "lora_task_id": ("UINT64", [1], True),
}


@dataclass
class Model:
    """A model the server claims to have: input name -> (data type, dims without batch, optional)."""

    inputs: dict[str, tuple[str, list[int], bool]] = field(default_factory=lambda: dict(TEXT_INPUTS))
    max_batch_size: int = 8
    decoupled: bool = True
    steps: tuple[str, ...] = ()
    ready: bool = True
    parameters: dict[str, str] = field(default_factory=dict)


class Session:
    """One request at the server."""

    def __init__(self, context: grpc.ServicerContext, on_cancel: Callable[[], None]) -> None:
        self.cancelled = threading.Event()
        self.is_answered = False
        self._on_cancel = on_cancel
        context.add_callback(self._over)

    def _over(self) -> None:
        self.cancelled.set()
        if not self.is_answered:
            self._on_cancel()

    def hold(self) -> None:
        """Stay silent until the client goes away."""
        assert self.cancelled.wait(PATIENCE_S), "the client never went away"

    def pause(self, time_s: float) -> None:
        """Answer later, by a known time."""
        self.cancelled.wait(time_s)


def pack(*values: str | bytes) -> bytes:
    """Return the BYTES encoding of the values."""
    encoded = [value.encode() if isinstance(value, str) else value for value in values]
    return b"".join(struct.pack("<I", len(value)) + value for value in encoded)


def data(text: str | bytes | None, final: bool | None = False, **outputs: tuple[str, list[int], bytes]) -> Any:
    """Return a response; `final` None leaves the flag away, `text` None the text; outputs: (data type, shape, raw)."""
    message = service_pb2.ModelStreamInferResponse()
    if text is not None:
        outputs = {"text_output": ("BYTES", [1, 1], pack(text)), **outputs}
    for name, (dtype, shape, raw) in outputs.items():
        message.infer_response.outputs.add(name=name, datatype=dtype, shape=shape)
        message.infer_response.raw_output_contents.append(raw)
    if final is not None:
        message.infer_response.parameters["triton_final_response"].bool_param = final
    return message


def int32(value: int) -> tuple[str, list[int], bytes]:
    """Return an INT32 [1, 1] output."""
    return "INT32", [1, 1], struct.pack("<i", value)


def int64(value: int) -> tuple[str, list[int], bytes]:
    """Return an INT64 [1, 1] output."""
    return "INT64", [1, 1], struct.pack("<q", value)


def fp32(*values: float) -> tuple[str, list[int], bytes]:
    """Return an FP32 [1, 1, n] output."""
    return "FP32", [1, 1, len(values)], struct.pack(f"<{len(values)}f", *values)


def end() -> Any:
    """Return the empty final response."""
    return data(None, final=True)


def failure(text: str) -> Any:
    """Return an error within a stream."""
    return service_pb2.ModelStreamInferResponse(error_message=text)


def tokens(*texts: str) -> list[Any]:
    """Return one counted response per text and the empty final response."""
    return [*(data(text, num_output_tokens=int32(1)) for text in texts), end()]


class FakeTriton(service_pb2_grpc.GRPCInferenceServiceServicer):
    """The server: `models`, `script` (model -> script) and what was `received`."""

    def __init__(self) -> None:
        self.models: dict[str, Model] = {"ensemble": Model()}
        self.scripts: dict[str, Script] = {"ensemble": lambda request, session: tokens(" Paris", ".")}
        self.received: list[Any] = []
        self.methods: list[str] = []
        self.ready = True
        self.cancelled = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(32))
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def close(self) -> None:
        self._server.stop(0).wait()

    def answer(self, *messages: Any, model: str = "ensemble") -> None:
        """Answer every request with these messages."""
        self.scripts[model] = lambda request, session: messages

    def inputs(self, index: int = -1) -> dict[str, tuple[str, list[int], bytes]]:
        """Return the tensors of a received request: name -> (data type, shape, raw bytes)."""
        request = self.received[index]
        pairs = zip(request.inputs, request.raw_input_contents, strict=True)
        return {each.name: (each.datatype, list(each.shape), raw) for each, raw in pairs}

    # The methods below carry the names of the service.

    def ServerReady(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerReadyResponse(ready=self.ready)

    def ModelReady(self, request: Any, context: Any) -> Any:
        model = self.models.get(request.name)
        return service_pb2.ModelReadyResponse(ready=model is not None and model.ready)

    def ModelMetadata(self, request: Any, context: Any) -> Any:
        model = self._model(request.name, context)
        response = service_pb2.ModelMetadataResponse(name=request.name, versions=["1"])
        for name, (dtype, dims, _) in model.inputs.items():
            batch = [-1] if model.max_batch_size else []
            response.inputs.add(name=name, datatype=dtype, shape=[*batch, *dims])
        return response

    def ModelConfig(self, request: Any, context: Any) -> Any:
        model = self._model(request.name, context)
        response = service_pb2.ModelConfigResponse()
        response.config.max_batch_size = model.max_batch_size
        response.config.model_transaction_policy.decoupled = model.decoupled
        for name, (_, dims, optional) in model.inputs.items():
            response.config.input.add(name=name, dims=dims, optional=optional)
        for name, value in model.parameters.items():
            response.config.parameters[name].string_value = value
        for step in model.steps:
            response.config.ensemble_scheduling.step.add(model_name=step)
        return response

    def RepositoryIndex(self, request: Any, context: Any) -> Any:
        response = service_pb2.RepositoryIndexResponse()
        for name in self.models:
            response.models.add(name=name, state="READY")
        return response

    def ModelInfer(self, request: Any, context: Any) -> Any:
        self.methods.append("ModelInfer")
        if self._model(request.model_name, context).decoupled:
            text = "ModelInfer RPC doesn't support models with decoupled transaction policy"
            context.abort(grpc.StatusCode.UNIMPLEMENTED, text)
        (message,) = self._run(request, context)
        if message.error_message:
            context.abort(grpc.StatusCode.INTERNAL, message.error_message)
        return message.infer_response

    def ModelStreamInfer(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        self.methods.append("ModelStreamInfer")
        for request in requests:
            yield from self._run(request, context)

    def _run(self, request: Any, context: Any) -> Iterable[Any]:
        self.received.append(request)
        session = Session(context, self.cancelled.set)
        yield from self.scripts[request.model_name](request, session)
        session.is_answered = not session.cancelled.is_set()

    def _model(self, name: str, context: Any) -> Model:
        if name not in self.models:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{name}' is not found")
        return self.models[name]
