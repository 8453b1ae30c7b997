"""The client for asyncio: the same requests, results, deadlines and errors as `Client`, within one event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from trtbuild_client import arguments, defaults
from trtbuild_client import batch as batches
from trtbuild_client.aio_stream import AsyncStream
from trtbuild_client.batch import BatchResult
from trtbuild_client.chat import ChatTemplate, Message, ServerTemplate, prompt_of, server_template, template_models
from trtbuild_client.client import cancelled
from trtbuild_client.connection import Connection, Retry, Tls, connection
from trtbuild_client.deadlines import connect_limit_s
from trtbuild_client.errors import ClientError, InvalidRequest, ModelNotFound
from trtbuild_client.parameters import Options
from trtbuild_client.plan import Limits, Plan, prepare
from trtbuild_client.records import Generation
from trtbuild_client.request import stop_tensors
from trtbuild_client.text import TextMode
from trtbuild_client.wire import AsyncCall, AsyncTransport, ModelInfo, WireRequest

if TYPE_CHECKING:
    from typing_extensions import Unpack

_log = logging.getLogger(__name__)

#: How long a request to stop may take; it only saves the server work.
_STOP_TIMEOUT_S = 0.5


class AsyncClient:
    """Asks one model of one Triton server from an event loop; see `Client` for the arguments.

    Connections open with the first request, in the event loop that makes it.

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
        self._server = connection(
            url, tls=tls, token=token, headers=headers, keepalive_s=keepalive_s, max_message_bytes=max_message_bytes
        )
        self.address = self._server.address
        arguments.text("model", model)
        arguments.of_type("retry", retry, (Retry, type(None)), "a Retry, or None")
        self.model = model
        self._limits = Limits(timeout_s, first_token_timeout_s, between_tokens_timeout_s)
        self._retry = retry or Retry()
        self._connect_s = connect_limit_s(connect_timeout_s, timeout_s)
        self._open: AsyncTransport | None = None
        self._infos: asyncio.Task[tuple[ModelInfo, ModelInfo | None]] | None = None
        self._server_template: ServerTemplate | None = None
        self._running: dict[str, AsyncStream] = {}
        self._stopping: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel what is running and close the connections."""
        self.cancel_all()
        if self._stopping:
            await asyncio.wait(self._stopping, timeout=_STOP_TIMEOUT_S)
        self._is_closed = True
        if self._open is not None:
            await self._open.close()

    async def info(self) -> ModelInfo:
        """Return inputs, outputs and policy of the model, asked for once.

        Raises:
            ConnectError, ModelNotFound, NotReady: the server cannot be asked, or does not serve the model.
        """
        return (await self._know())[0]

    async def check_ready(self) -> None:
        """Return when server and model are ready to serve.

        Raises:
            ConnectError, ModelNotFound, NotReady: they are not.
        """
        await self._transport().check_ready(self.model)

    async def generate(
        self,
        prompt: str,
        *,
        tensors: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Generation:
        """Return the whole answer to a prompt; see `Client.generate`."""
        stream = self.request(
            prompt, is_streaming=False, tensors=tensors, request_id=request_id, timeout_s=timeout_s, **options
        )
        async for _ in stream:
            pass
        if stream.generation.finish_reason == "cancelled":
            raise cancelled(stream.generation)
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
    ) -> AsyncStream:
        """Return the answer as a stream of pieces; reading it asks the server, and finds what cannot be sent."""
        return self.request(
            prompt,
            is_streaming=True,
            text_mode=text_mode,
            tensors=tensors,
            request_id=request_id,
            timeout_s=timeout_s,
            **options,
        )

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        template: ChatTemplate | ServerTemplate | None = None,
        tensors: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Generation:
        """Return the answer to a chat; see `Client.chat`."""
        prompt = await self.chat_prompt(messages, template)
        return await self.generate(prompt, tensors=tensors, request_id=request_id, timeout_s=timeout_s, **options)

    async def chat_prompt(
        self, messages: Sequence[Message], template: ChatTemplate | ServerTemplate | None = None
    ) -> str:
        """Return the text that `chat` sends; see `Client.chat_prompt`."""
        if template is None:
            if self._server_template is None:
                self._server_template = await self._ask_template()
            template = self._server_template
        return prompt_of(messages, template)

    async def _ask_template(self) -> ServerTemplate:
        found = []
        for name in template_models(await self.info()):
            try:
                found.append(await self._transport().model_info(name))
            except ModelNotFound:  # a model without preprocessing, such as the LLM API's
                continue
        return server_template(found)

    async def batch(
        self,
        prompts: Iterable[str],
        *,
        concurrency: int = defaults.CONCURRENCY,
        tensors: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> list[BatchResult]:
        """Return the answers to many prompts in their order; a failure is the result of its own prompt only.

        Raises:
            InvalidRequest: the prompts are no iterable of texts, or the concurrency cannot be.
        """
        listed = batches.checked(prompts, concurrency)
        room = asyncio.Semaphore(concurrency)

        async def ask(prompt: str) -> BatchResult:
            async with room:
                try:
                    return BatchResult(await self.generate(prompt, tensors=tensors, timeout_s=timeout_s, **options))
                except ClientError as error:
                    return BatchResult(error=error)

        return list(await asyncio.gather(*(ask(prompt) for prompt in listed)))

    def cancel(self, request_id: str) -> bool:
        """Cancel a running request; return False when there is none of that id."""
        stream = self._running.get(request_id)
        if stream is None:
            return False
        stream.cancel()
        return True

    def cancel_all(self) -> int:
        """Cancel all running requests; return how many there were."""
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
    ) -> AsyncStream:
        """Return a request that is sent when it is read, with a record even of failures; see `Client.request`."""

        async def ready() -> tuple[Plan, WireRequest]:
            info, _ = await self._know()
            made = prepare(
                info,
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
            for warning in made[0].warnings:
                _log.warning("%s", warning)
            return made

        return AsyncStream(self, ready)

    async def _begin(self, stream: AsyncStream, request: WireRequest) -> AsyncCall:
        transport = self._transport()
        if self._running.setdefault(request.request_id, stream) is not stream:
            raise InvalidRequest(
                f"request id '{request.request_id}' is already running", hint="Leave it out to get a unique one."
            )
        return await transport.start(request, await self.info())

    def _end(self, stream: AsyncStream, request_id: str) -> None:
        if self._running.get(request_id) is stream:
            del self._running[request_id]

    def _abandon(self, request_id: str) -> None:
        """Ask the model behind an ensemble to stop working on a request, without waiting for it."""

        async def stop() -> None:
            try:
                _, core = await self._know()
                if core is None:
                    return
                request = WireRequest(core.name, request_id, stop_tensors(core), _STOP_TIMEOUT_S)
                async for _ in await self._transport().start(request, core):
                    pass
            except ClientError as error:
                _log.warning("request %s was given up, but the server may work on: %s", request_id, error.message)

        task = asyncio.get_running_loop().create_task(stop())
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    async def _know(self) -> tuple[ModelInfo, ModelInfo | None]:
        """Return the model, and the step of an ensemble that can be asked to stop; see `Client`."""
        self._transport()
        if self._infos is None or (self._infos.done() and (self._infos.cancelled() or self._infos.exception())):
            self._infos = asyncio.get_running_loop().create_task(self._ask())
        return await asyncio.shield(self._infos)

    async def _ask(self) -> tuple[ModelInfo, ModelInfo | None]:
        transport = self._transport()
        info = await transport.model_info(self.model)
        try:
            steps = [await transport.model_info(name) for name in info.steps]
        except ClientError as error:
            _log.warning("cancelled requests may run on in the server: %s", error.message)
            steps = []
        return info, next((step for step in steps if "stop" in step.inputs), None)

    def _transport(self) -> AsyncTransport:
        if self._is_closed:
            raise InvalidRequest("this client is closed", hint="Make a new one.")
        if self._open is None:
            self._open = _open(self._server, self._connect_s)
        return self._open


def _open(server: Connection, connect_timeout_s: float) -> AsyncTransport:
    if server.protocol == "http":
        from trtbuild_client.aio_http import AsyncHttpTransport

        return AsyncHttpTransport(server, connect_timeout_s=connect_timeout_s)
    from trtbuild_client.aio_grpc import AsyncGrpcTransport

    return AsyncGrpcTransport(server, connect_timeout_s=connect_timeout_s)
