"""Questions to a Triton server over gRPC without grpcio, whose import alone takes longer than many a load test's work."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence

from trtbuild_client.connection import Connection
from trtbuild_client.errors import ClientError, ModelNotFound, NotReady, ServerError
from trtbuild_client.faults import models_hint, no_answer, question_error, unreachable
from trtbuild_client.load.http2 import Http2
from trtbuild_client.load.model_messages import model_policy, tensor_specs
from trtbuild_client.load.outcomes import Outcome
from trtbuild_client.load.protowire import WireError, field, fields
from trtbuild_client.wire import ModelInfo, TensorSpec

_SERVICE = "/inference.GRPCInferenceService/"
#: Names of gRPC's status codes, in their order (grpc/grpc, doc/statuscodes.md).
STATUS_NAMES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip


class _Answer:
    """Takes one unary answer: see `http2.Handler`."""

    def __init__(self) -> None:
        self.data: bytes = b""
        self.failure: tuple[str, str] | None = None  # status name, text
        self.is_done = False

    def message(self, data: bytes, start: int, end: int, now_ns: int) -> None:
        self.data = data[start:end]

    def trailers(self, status: int, text: str, now_ns: int) -> None:
        self.is_done = True
        if status:
            self.failure = STATUS_NAMES[status] if status < len(STATUS_NAMES) else "UNKNOWN", text

    def broken(self, outcome: Outcome, now_ns: int, text: str, code: int) -> None:
        self.is_done = True
        self.failure = "UNAVAILABLE", text


def ask(server: Connection, calls: Sequence[tuple[str, bytes]], *, model: str, timeout_s: float) -> list[bytes]:
    """Return the answers to some unary calls.

    Args:
        server: how it is reached; without TLS.
        calls: (method, request) of GRPCInferenceService.
        model: for messages.
        timeout_s: for all of them.

    Raises:
        ConnectError: nobody answers, or not in time.
        ClientError: the server says no; see `faults.translate`.
    """
    where = server.address
    deadline = time.monotonic() + timeout_s
    try:
        with socket.create_connection((server.host, server.port), timeout_s) as sock:
            http = Http2(where, server.metadata())
            answers = [_Answer() for _ in calls]
            for (method, request), answer in zip(calls, answers, strict=True):
                http.start(_SERVICE + method, request, answer, timeout_s)
            while not all(answer.is_done for answer in answers):
                sock.sendall(b"".join(http.out))
                http.out.clear()
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError
                sock.settimeout(left_s)
                data = sock.recv(1 << 16)
                if not data:
                    raise unreachable(where, "it closed the connection")
                http.receive(data, 0)
    except TimeoutError as error:
        raise no_answer(where, timeout_s, "gRPC") from error
    except OSError as error:
        raise unreachable(where, error.strerror or str(error)) from error
    for answer in answers:
        if answer.failure is not None:
            status, text = answer.failure
            raise question_error(text, status, address=where, model=model, timeout_s=timeout_s)
    return [answer.data for answer in answers]


def model_info(server: Connection, model: str, *, timeout_s: float) -> ModelInfo:
    """Return inputs, outputs and policy of a model that is ready.

    Raises:
        ConnectError, NotReady, ModelNotFound: the server does not serve it.
    """

    def call(method: str, request: bytes) -> bytes:
        return ask(server, [(method, request)], model=model, timeout_s=timeout_s)[0]

    return model_info_through(call, model, server.address)


def model_info_through(call: Callable[[str, bytes], bytes], model: str, where: str) -> ModelInfo:
    """Return what a server says about a model.

    Args:
        call: method of GRPCInferenceService, request -> answer.
        model: its name.
        where: the server, for messages.

    Raises:
        NotReady: server or model are not.
        ServerError: it answers with what is no description of a model.
    """
    try:
        return _described(call, model, where)
    except (WireError, UnicodeDecodeError) as error:
        raise ServerError(
            f"{where} describes model '{model}' in an unknown way ({error})", hint="Is this the gRPC port of Triton?"
        ) from error


def _described(call: Callable[[str, bytes], bytes], model: str, where: str) -> ModelInfo:
    named = field(1, model)
    if dict(fields(call("ServerReady", b""))).get(1) != 1:
        raise NotReady(f"server {where} is not ready", hint="Models are loading, or one failed to load.")
    is_ready = dict(fields(call("ModelReady", named))).get(1) == 1
    try:
        metadata = call("ModelMetadata", named)  # says so if there is no such model
    except ModelNotFound as error:
        error.hint = _known_models(call) or error.hint
        raise
    if not is_ready:
        raise NotReady(f"model '{model}' on {where} is not ready", hint="Read the server's log.")
    policy = model_policy(call("ModelConfig", named))
    skipped = 1 if policy["max_batch_size"] > 0 else 0

    def specs(number: int) -> dict[str, TensorSpec]:
        return {
            name: TensorSpec(dtype, shape[skipped:], name in policy["optional"])
            for name, dtype, shape in tensor_specs(metadata, number)
        }

    return ModelInfo(
        name=model,
        inputs=specs(4),
        outputs=specs(5),
        max_batch_size=policy["max_batch_size"],
        is_decoupled=policy["is_decoupled"],
        steps=tuple(policy["steps"]),
        parameters=policy["parameters"],
    )


def _known_models(call: Callable[[str, bytes], bytes]) -> str:
    """Return a hint that names the models of a server, "" when it does not tell: a server may forbid this call."""
    try:
        index = [value for number, value in fields(call("RepositoryIndex", b"")) if number == 1]
    except ClientError:
        return ""
    names = [dict(fields(each)).get(1, b"") for each in index if isinstance(each, bytes)]
    return models_hint(name.decode("utf-8", "replace") for name in names if isinstance(name, bytes))
