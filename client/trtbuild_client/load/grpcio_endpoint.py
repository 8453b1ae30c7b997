"""The same requests through grpcio, for what our own transport does not speak: TLS, proxies. One thread per request in flight.

It costs several times the CPU per event; responses are read by the same code.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from trtbuild_client.connection import Connection as Server
from trtbuild_client.grpc_channel import channel_options, credentials
from trtbuild_client.load.connections import Connection
from trtbuild_client.load.endpoints import OnEnd, OnLate
from trtbuild_client.load.exchange import Exchange, Job
from trtbuild_client.load.outcomes import Outcome
from trtbuild_client.load.template import Template
from trtbuild_client.load.triton import STREAM_PATH, UNARY_PATH, TritonExchange
from trtbuild_client.wire import ModelInfo

if TYPE_CHECKING:
    from trtbuild_client.load.connections import Watcher


def open_channel(server: Server) -> Any:
    """Return a channel of its own (channels with equal options would share one connection).

    Raises:
        InvalidRequest: a TLS file cannot be read.
    """
    options = [*channel_options(server), ("grpc.use_local_subchannel_pool", 1)]
    if server.tls is None:
        return grpc.insecure_channel(server.address, options=options)
    return grpc.secure_channel(server.address, credentials(server.tls), options=options)


def model_info(server: Server, model: str, *, timeout_s: float) -> ModelInfo:
    """Return what the server says about a model: see `ask.model_info`."""
    from trtbuild_client.faults import question_error
    from trtbuild_client.load import ask

    with open_channel(server) as channel:

        def call(method: str, request: bytes) -> bytes:
            rpc = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
            try:
                answer: bytes = rpc(request, timeout=timeout_s, metadata=server.metadata())
                return answer
            except grpc.RpcError as error:
                text, status = error.details() or "", error.code().name
                where = server.address
                raise question_error(text, status, address=where, model=model, timeout_s=timeout_s) from error

        return ask.model_info_through(call, model, server.address)


@dataclass(frozen=True, slots=True)
class GrpcioEndpoint:
    """A model of a Triton server through grpcio: see `endpoints.TritonGrpc`."""

    server: Server
    template: Template
    run_id: str
    is_decoupled: bool = True
    is_cumulative: bool = False
    timeout_s: float | None = None

    def connect(self, watcher: Watcher, deadline_ns: int) -> Connection:
        """Open a connection."""
        return GrpcioConnection(self, watcher, deadline_ns)

    def exchange(self, job: Job, due_ns: int, on_end: OnEnd, on_late: OnLate) -> Exchange:
        """Return a request that has not been sent."""
        return TritonExchange(
            job, due_ns, on_end, on_late, is_stream=self.is_decoupled, is_cumulative=self.is_cumulative
        )

    def can_take(self, connection: Connection) -> bool:
        """Say whether another request may be sent on a connection."""
        return connection.active < 1

    def descriptors(self, requests: int) -> int:
        """Return how many file descriptors so many requests at the same time take: a socket, our pair, one of grpcio's own."""
        return 4 * requests


class GrpcioConnection(Connection):
    """A channel, and a thread for each of its calls; what the threads read goes to the loop through a socket pair.

    Threads only stamp and queue; the loop's thread does the rest, so that nothing of a request is touched by two threads.
    """

    def __init__(self, endpoint: GrpcioEndpoint, watcher: Watcher, deadline_ns: int) -> None:
        # Not Connection.__init__: the socket that is watched is our own.
        self.active = 0
        self.is_closed = self.is_idle = False
        self._is_open = True
        self._is_encrypted = False
        self.deadline_ns = deadline_ns
        self._watcher = watcher
        self._unsent = b""
        self._server = endpoint.server
        self._endpoint = endpoint
        self._calls: dict[Exchange, Any] = {}
        self._came: deque[tuple[Any, str, Any, int]] = deque()
        self.sock, self._wake = socket.socketpair()
        self.sock.setblocking(False)
        self._wake.setblocking(False)
        self.fd = self.sock.fileno()
        self._channel = open_channel(endpoint.server)
        path = STREAM_PATH if endpoint.is_decoupled else UNARY_PATH
        # One request and any number of answers: also right for the unary call.
        self._rpc = self._channel.unary_stream(path)
        watcher.watch(self, select.EPOLLIN)

    def begin(self, exchange: Any) -> None:
        """Start a call in a thread of its own."""
        message = self._endpoint.template.message(exchange.job, f"{self._endpoint.run_id}-{exchange.job.number}")
        call = self._rpc(message, timeout=self._endpoint.timeout_s, metadata=self._server.metadata())
        self._calls[exchange] = call
        threading.Thread(target=self._pump, args=(exchange, call), daemon=True).start()

    def give_up(self, exchange: Exchange) -> None:
        """Cancel a call."""
        call = self._calls.pop(exchange, None)
        if call is not None:
            call.cancel()

    def pending(self) -> bytes:
        """Return nothing: grpcio writes."""
        return b""

    def receive(self, data: bytes, now_ns: int) -> None:
        """Hand on what the threads have queued."""
        while self._came:
            exchange, kind, value, at_ns = self._came.popleft()
            if kind == "message":
                exchange.message(value, 0, len(value), at_ns)
                continue
            self._calls.pop(exchange, None)
            status, text = value
            if status == grpc.StatusCode.UNAVAILABLE.value[0] and not exchange.event_ns:
                exchange.broken(Outcome.CONNECT_FAILED, at_ns, text, status)
            elif status == grpc.StatusCode.UNAVAILABLE.value[0]:
                exchange.broken(Outcome.CONNECTION_LOST, at_ns, text, status)
            else:
                exchange.trailers(status, text, at_ns)

    @property
    def is_settled(self) -> bool:
        """Whether all calls are over."""
        return not self._calls

    def ended(self, now_ns: int, text: str, outcome: Outcome) -> None:
        """Cancel all calls and close the channel."""
        calls, self._calls = self._calls, {}
        for exchange, call in calls.items():
            call.cancel()
            exchange.end(outcome, now_ns, text)
        self._wake.close()
        self._channel.close()

    def _pump(self, exchange: Any, call: Any) -> None:
        """Read a call to its end; runs in a thread."""
        try:
            for message in call:
                self._tell(exchange, "message", message)
            ending = 0, ""
        except grpc.RpcError as error:
            ending = error.code().value[0], error.details() or ""
        except Exception as error:  # the channel was closed under it
            ending = grpc.StatusCode.CANCELLED.value[0], str(error)
        self._tell(exchange, "end", ending)

    def _tell(self, exchange: Any, kind: str, value: Any) -> None:
        self._came.append((exchange, kind, value, time.perf_counter_ns()))
        try:
            self._wake.send(b"\0")
        except OSError:  # full: the loop is awake already; closed: nobody reads any more
            pass
