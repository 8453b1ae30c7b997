"""The client: one object per server and model, for any number of threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any

from trtbuild_client import arguments, defaults
from trtbuild_client.batch import BatchResult, work_off
from trtbuild_client.chat import ChatTemplate, Message, ServerTemplate, prompt_of, server_template, template_models
from trtbuild_client.connection import Connection, Retry, Tls, connection
from trtbuild_client.deadlines import connect_limit_s, less
from trtbuild_client.errors import Cancelled, ClientError, InvalidRequest, ModelNotFound
from trtbuild_client.parameters import Options
from trtbuild_client.plan import Limits, prepare
from trtbuild_client.records import Generation
from trtbuild_client.request import stop_tensors
from trtbuild_client.stream import Stream
from trtbuild_client.text import TextMode
from trtbuild_client.wire import ModelInfo, Transport, WireRequest

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from trtbuild_client.wire import Call

_log = logging.getLogger(__name__)

#: How long a request to stop may take; it only saves the server work.
_STOP_TIMEOUT_S = 0.5


class Client:
    """Asks one model of one Triton server, over gRPC or over HTTP.

    Nothing is sent until the first request. Every request gets a unique id, a stream of its own and deadlines.

    Args:
        url: HOST:PORT of the gRPC endpoint (grpc://, grpcs://), or http://HOST:PORT, https://HOST:PORT for generate.
        model: a model that takes and gives text: ensemble, tensorrt_llm_bls, or the LLM API's model.
        timeout_s: seconds for a whole answer, None for no limit.
        connect_timeout_s: seconds for the server to answer a question about itself, at most `timeout_s`.
        first_token_timeout_s: seconds until the first token, None for no limit of its own.
        between_tokens_timeout_s: seconds from one token to the next, None for no limit of its own.
        retry: when a request is sent again; never by default.
        tls: encryption; implied by grpcs:// and https://.
        token: bearer token sent with every request.
        headers: further gRPC metadata or HTTP headers of every request.
        keepalive_s: see `connection.Connection`.
        max_message_bytes: longest message in either direction.

    Raises:
        InvalidRequest: an argument that cannot be, of whatever type it is.
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
        retry: Retry | None = None,
        tls: Tls | None = None,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        keepalive_s: float | None = None,
        max_message_bytes: int = defaults.MAX_MESSAGE_BYTES,
    ) -> None:
        server = connection(
            url, tls=tls, token=token, headers=headers, keepalive_s=keepalive_s, max_message_bytes=max_message_bytes
        )
        self.address = server.address
        arguments.text("model", model)
        arguments.of_type("retry", retry, (Retry, type(None)), "a Retry, or None")
        self.model = model
        self._limits = Limits(timeout_s, first_token_timeout_s, between_tokens_timeout_s)
        self._retry = retry or Retry()
        self._transport = _transport(server, connect_limit_s(connect_timeout_s, timeout_s))
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
        return whole(stream)

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
            text_mode: "delta" if each response of the server holds only new text, "cumulative" if it holds all text so
                far. None asks the model: the LLM API's is cumulative, and so is tensorrt_llm_bls with accumulate_tokens.
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

    def chat(
        self,
        messages: Sequence[Message],
        *,
        template: ChatTemplate | ServerTemplate | None = None,
        tensors: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Generation:
        """Return the answer to a chat; for a stream, `stream(client.chat_prompt(messages))`.

        Args:
            messages: each with `role` and `content`.
            template: makes one text of them. Or what the server's own template takes: "messages", a JSON list of them
                (`serving.chat_template: messages`), "user", the text of one user message (`true`). None asks the server.
            tensors: as in `generate`.
            request_id: as in `generate`.
            timeout_s: as in `generate`.
            **options: see `parameters.Options`.

        Raises:
            ClientError: see `errors`.
        """
        prompt = self.chat_prompt(messages, template)
        return self.generate(prompt, tensors=tensors, request_id=request_id, timeout_s=timeout_s, **options)

    def chat_prompt(self, messages: Sequence[Message], template: ChatTemplate | ServerTemplate | None = None) -> str:
        """Return the text that `chat` sends.

        Raises:
            InvalidRequest: no template is given, and the server has none that takes such messages.
            ConnectError, ModelNotFound, NotReady: the server cannot be asked.
        """
        return prompt_of(messages, self._server_template if template is None else template)

    @cached_property
    def _server_template(self) -> ServerTemplate:
        found = []
        for name in template_models(self.info):
            try:
                found.append(self._transport.model_info(name))
            except ModelNotFound:  # a model without preprocessing, such as the LLM API's
                continue
        return server_template(found)

    def batch(
        self,
        prompts: Iterable[str],
        *,
        concurrency: int = defaults.CONCURRENCY,
        tensors: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> list[BatchResult]:
        """Return the answers to many prompts in their order; a failure is the result of its own prompt only.

        Args:
            prompts: one request each; all are taken before the first is sent.
            concurrency: requests in flight at once.
            tensors: as in `generate`, for each of them.
            timeout_s: as in `generate`, for each of them.
            **options: see `parameters.Options`.

        Raises:
            InvalidRequest: the prompts are no iterable of texts, or the concurrency cannot be.
            KeyboardInterrupt: the main thread was interrupted; what ran was cancelled.
        """
        return work_off(
            prompts,
            lambda prompt: self.generate(prompt, tensors=tensors, timeout_s=timeout_s, **options),
            concurrency=concurrency,
            cancel=self.cancel_all,
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
        plan, request = prepare(
            self.info,
            prompt,
            options,
            address=self.address,
            is_streaming=is_streaming,
            text_mode=text_mode,
            tensors=tensors,
            request_id=request_id,
            timeout_s=timeout_s,
            limits=self._limits,
            retry=self._retry,
        )
        for warning in plan.warnings:
            _log.warning("%s", warning)
        _ = self._core  # looked up now: when a request has to be given up, the server may be slow to answer
        return Stream(
            plan,
            start=lambda stream, spent_s: self._begin(stream, less(request, spent_s, self.address)),
            abandon=self._abandon,
            on_end=self._end,
        )

    def _begin(self, stream: Stream, request: WireRequest) -> Call:
        self._check_open()
        with self._lock:
            if self._running.setdefault(request.request_id, stream) is not stream:
                raise InvalidRequest(
                    f"request id '{request.request_id}' is already running", hint="Leave it out to get a unique one."
                )
        return self._transport.start(request, self.info)

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
            for _ in self._transport.start(request, core):
                pass
        except ClientError as error:
            if self._is_closed:  # by the reader's thread, while another one cancelled: that ends everything anyway
                return
            _log.warning("request %s was given up, but the server may work on: %s", request_id, error.message)

    def _check_open(self) -> None:
        if self._is_closed:
            raise InvalidRequest("this client is closed", hint="Make a new one.")


def _transport(server: Connection, connect_timeout_s: float) -> Transport:
    # Imported here: grpc takes a third of a second, and bad arguments need not wait for it.
    if server.protocol == "http":
        from trtbuild_client.http_transport import HttpTransport

        return HttpTransport(server, connect_timeout_s=connect_timeout_s)
    from trtbuild_client.transport import GrpcTransport

    return GrpcTransport(server, connect_timeout_s=connect_timeout_s)


def whole(stream: Stream) -> Generation:
    """Read a stream to its end and return its answer.

    Raises:
        ClientError: it failed, or was cancelled.
    """
    for _ in stream:
        pass
    if stream.generation.finish_reason == "cancelled":
        raise cancelled(stream.generation)
    return stream.generation


def cancelled(generation: Generation) -> Cancelled:
    """Return the error for an answer that was given up."""
    error = Cancelled(f"request {generation.request_id} was cancelled", hint="Another thread asked for it.")
    error.partial_text = generation.text
    return error
