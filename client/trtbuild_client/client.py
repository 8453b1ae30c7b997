"""The client: one object per server and model, for any number of threads."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Mapping
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, get_args

from trtbuild_client import defaults
from trtbuild_client.deadlines import seconds
from trtbuild_client.errors import Cancelled, ClientError, InvalidRequest
from trtbuild_client.parameters import Options, settle, validate
from trtbuild_client.records import Generation
from trtbuild_client.request import build, stop_tensors
from trtbuild_client.stream import Plan, Stream
from trtbuild_client.text import TextMode
from trtbuild_client.wire import ModelInfo, WireRequest

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from trtbuild_client.wire import Call

_log = logging.getLogger(__name__)

#: How long a request to stop may take; it only saves the server work.
_STOP_TIMEOUT_S = 0.5


class Client:
    """Asks one model of one Triton server over gRPC.

    Nothing is sent until the first request. Every request gets a unique id, a stream of its own and deadlines.

    Args:
        url: host:port of the gRPC endpoint.
        model: a model that takes and gives text: ensemble or tensorrt_llm_bls; for target pytorch tensorrt_llm.
        timeout_s: seconds for a whole answer, None for no limit.
        connect_timeout_s: seconds for the server to answer a question about itself, at most `timeout_s`.
        first_token_timeout_s: seconds until the first token, None for no limit of its own.
        between_tokens_timeout_s: seconds from one token to the next, None for no limit of its own.

    Raises:
        InvalidRequest: an address or a timeout that cannot be.
    """

    def __init__(
        self,
        url: str = defaults.URL,
        model: str = defaults.MODEL,
        *,
        timeout_s: float | None = defaults.TIMEOUT_S,
        connect_timeout_s: float = defaults.CONNECT_TIMEOUT_S,
        first_token_timeout_s: float | None = None,
        between_tokens_timeout_s: float | None = None,
    ) -> None:
        self.address = _address(url)
        self.model = model
        self._timeout_s = seconds(timeout_s, "timeout_s")
        self._first_token_s = seconds(first_token_timeout_s, "first_token_timeout_s")
        self._between_tokens_s = seconds(between_tokens_timeout_s, "between_tokens_timeout_s")
        connect_s = seconds(connect_timeout_s, "connect_timeout_s") or defaults.CONNECT_TIMEOUT_S
        # Imported here: grpc takes a third of a second, and bad arguments need not wait for it.
        from trtbuild_client.transport import GrpcTransport

        self._transport = GrpcTransport(self.address, connect_timeout_s=min(connect_s, self._timeout_s or connect_s))
        self._running: dict[str, Stream] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what is running and close the connection."""
        self.cancel_all()
        self._is_closed = True
        self._transport.close()

    @cached_property
    def info(self) -> ModelInfo:
        """Inputs, outputs and policy of the model, asked for once.

        Raises:
            ConnectError, ModelNotFound, NotReady: the server cannot be asked, or does not serve the model.
        """
        self._check_open()
        return self._transport.model_info(self.model)

    @cached_property
    def _core(self) -> ModelInfo | None:
        """The step of an ensemble that can be asked to stop; None for other models, which see cancellation themselves.

        Triton does not pass the cancellation of an ensemble on to the step that is running
        (https://github.com/triton-inference-server/server/issues/6739), so that step is asked directly.
        """
        names = self.info.steps
        try:
            steps = [self._transport.model_info(name) for name in names]
        except ClientError as error:
            _log.warning("cancelled requests may run on in the server: %s", error.message)
            return None
        return next((step for step in steps if "stop" in step.inputs), None)

    def check_ready(self) -> None:
        """Return when server and model are ready to serve.

        Raises:
            ConnectError, ModelNotFound, NotReady: they are not.
        """
        self._check_open()
        self._transport.check_ready(self.model)

    def generate(
        self,
        prompt: str,
        *,
        tensors: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Generation:
        """Return the whole answer to a prompt.

        The tokens are not streamed, so their times are not known; `stream` shows them.

        Args:
            prompt: text to continue.
            tensors: further inputs of the model by the server's own names; data types are the server's.
            request_id: unique among running requests; made up when not given.
            timeout_s: seconds for this answer instead of the client's.
            **options: see `parameters.Options`.

        Raises:
            ClientError: see `errors`. `partial_text` holds what had arrived.
        """
        stream = self.request(
            prompt, is_streaming=False, tensors=tensors, request_id=request_id, timeout_s=timeout_s, **options
        )
        for _ in stream:
            pass
        if stream.generation.finish_reason == "cancelled":
            error = Cancelled(f"request {stream.request_id} was cancelled", hint="Another thread asked for it.")
            error.partial_text = stream.generation.text
            raise error
        return stream.generation

    def stream(
        self,
        prompt: str,
        *,
        text_mode: TextMode | None = None,
        tensors: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Stream:
        """Return the answer to a prompt as a stream of pieces; reading it sends the request.

        Args:
            prompt: text to continue.
            text_mode: "delta" if each response of the server holds only new text (ensemble, tensorrt_llm_bls),
                "cumulative" if it holds all text so far (tensorrt_llm_bls with accumulate_tokens). None: as the model does by its
                inputs, which tell TensorRT-LLM's llmapi model (cumulative) from the others (delta).
            tensors: as in `generate`.
            request_id: as in `generate`.
            timeout_s: as in `generate`.
            **options: see `parameters.Options`.

        Raises:
            InvalidRequest, ConnectError, ModelNotFound, NotReady: found before anything was sent.
        """
        return self.request(
            prompt,
            is_streaming=True,
            text_mode=text_mode,
            tensors=tensors,
            request_id=request_id,
            timeout_s=timeout_s,
            **options,
        )

    def cancel(self, request_id: str) -> bool:
        """Cancel a running request; return False when there is none of that id."""
        with self._lock:
            stream = self._running.get(request_id)
        if stream is None:
            return False
        stream.cancel()
        return True

    def cancel_all(self) -> int:
        """Cancel all running requests; return how many there were."""
        with self._lock:
            streams = list(self._running.values())
        for stream in streams:
            stream.cancel()
        return len(streams)

    def request(
        self,
        prompt: str,
        *,
        is_streaming: bool,
        text_mode: TextMode | None = None,
        tensors: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Stream:
        """Return a request that is sent when it is read: what `generate` and `stream` do, with a record even of failures.

        Args:
            prompt: text to continue.
            is_streaming: ask for tokens as they come, or for the whole answer at once.
            text_mode: see `stream`.
            tensors: further inputs of the model by the server's own names; data types are the server's.
            request_id: unique among running requests; made up when not given.
            timeout_s: seconds for this answer instead of the client's.
            **options: see `parameters.Options`.

        Raises:
            InvalidRequest, ConnectError, ModelNotFound, NotReady: found before anything was sent.
        """
        values, warnings = settle(validate({"max_tokens": defaults.MAX_TOKENS, **options}))
        limit_s = seconds(timeout_s, "timeout_s") or self._timeout_s
        if text_mode is None:
            text_mode = "cumulative" if self.info.sends_all_text else "delta"
        if text_mode not in get_args(TextMode):
            raise InvalidRequest(f"text_mode={text_mode!r}", hint=f"It must be one of {', '.join(get_args(TextMode))}.")
        if not isinstance(prompt, str):
            raise InvalidRequest(f"the prompt is of type {type(prompt).__name__}", hint="It must be str.")
        for warning in warnings:
            _log.warning("%s", warning)
        _ = self._core  # looked up now: when a request has to be given up, the server may be slow to answer
        request = WireRequest(
            model=self.model,
            request_id=request_id or str(uuid.uuid4()),
            tensors=build(self.info, prompt, values, tensors or {}, is_streaming=is_streaming),
            timeout_s=limit_s,
        )
        plan = Plan(
            request_id=request.request_id,
            model=self.model,
            address=self.address,
            values=values,
            text_mode=text_mode,
            is_streaming=is_streaming,
            first_token_s=self._first_token_s,
            between_tokens_s=self._between_tokens_s,
            warnings=tuple(warnings),
        )
        return Stream(plan, start=lambda stream: self._begin(stream, request), abandon=self._abandon, on_end=self._end)

    def _begin(self, stream: Stream, request: WireRequest) -> Call:
        self._check_open()
        with self._lock:
            if self._running.setdefault(request.request_id, stream) is not stream:
                raise InvalidRequest(
                    f"request id '{request.request_id}' is already running", hint="Leave it out to get a unique one."
                )
        return self._transport.start(request, is_decoupled=self.info.is_decoupled)

    def _end(self, stream: Stream) -> None:
        with self._lock:
            if self._running.get(stream.request_id) is stream:
                del self._running[stream.request_id]

    def _abandon(self, request_id: str) -> None:
        """Ask the model behind an ensemble to stop working on a request."""
        core = self._core
        if core is None or self._is_closed:
            return
        request = WireRequest(core.name, request_id, stop_tensors(core), _STOP_TIMEOUT_S)
        try:
            for _ in self._transport.start(request, is_decoupled=core.is_decoupled):
                pass
        except ClientError as error:
            _log.warning("request %s was given up, but the server may work on: %s", request_id, error.message)

    def _check_open(self) -> None:
        if self._is_closed:
            raise InvalidRequest("this client is closed", hint="Make a new one.")


def _address(url: str) -> str:
    """Return host:port.

    Raises:
        InvalidRequest: it is something else.
    """
    host, _, port = url.rpartition(":")
    if "/" in url or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidRequest(f"url '{url}'", hint="It must be HOST:PORT of the gRPC endpoint, such as 127.0.0.1:8001.")
    return url
