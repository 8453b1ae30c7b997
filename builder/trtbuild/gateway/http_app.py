"""The endpoints."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from trtbuild.gateway import requests, sse
from trtbuild.gateway.auth import Guard
from trtbuild.gateway.backend import Backend
from trtbuild.gateway.documents import Documents, Finished, Piece
from trtbuild.gateway.errors import ApiError, from_client
from trtbuild.gateway.gate import Gate, Slot
from trtbuild.gateway.generation import Generator
from trtbuild.gateway.http_body import read_json, while_connected
from trtbuild.gateway.http_edge import Edge, Exchange
from trtbuild.gateway.metrics import CONTENT_TYPE, Metrics
from trtbuild.gateway.prompts import Tokenizer
from trtbuild.gateway.requests import Ask
from trtbuild.gateway.settings import Settings
from trtbuild_client import ClientError

#: endpoint -> how its body is read, and the beginning of the ids of its answers.
_ANSWERS: Mapping[str, tuple[Callable[[Mapping[str, Any]], Ask], str]] = {
    "/v1/chat/completions": (requests.chat, "chatcmpl-"),
    "/v1/completions": (requests.completion, "cmpl-"),
}


class Gateway:
    """One gateway.

    Attributes:
        gate: what is in flight.
        metrics: what was counted.
        backend: the server behind.

    Raises:
        TrtbuildError: the tokenizer cannot be used.
        InvalidRequest: the server's address or a TLS file cannot be.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.gate = Gate(settings.max_in_flight)
        self.metrics = Metrics()
        self._tokenizer = Tokenizer(settings.tokenizer_dir) if settings.tokenizer_dir is not None else None
        self._created = int(time.time())
        self.backend = Backend(settings)

    def app(self, on_ready: Callable[[], None] = lambda: None) -> Starlette:
        """Return the ASGI application.

        Args:
            on_ready: called when requests can be answered.
        """

        @asynccontextmanager
        async def lifespan(_app: Starlette) -> AsyncIterator[None]:
            try:
                on_ready()
                yield
            finally:
                await self.backend.close()
                if self._tokenizer is not None:
                    self._tokenizer.close()

        answers = [Route(path, _Answers(self, *how), methods=["POST"]) for path, how in _ANSWERS.items()]
        return Starlette(
            routes=[
                *answers,
                Route("/v1/models", self._list_models),
                Route("/v1/models/{name:path}", self._show_model),
                Route("/health", self._show_ready),
                Route("/health/ready", self._show_ready),
                Route("/health/live", self._show_live),
                Route("/metrics", self._show_metrics),
            ],
            middleware=[Middleware(Edge, guard=Guard(self.settings.tokens), metrics=self.metrics)],
            exception_handlers={HTTPException: _http_error},
            lifespan=lifespan,
        )

    def generator(self) -> Generator:
        """Return what makes answers."""
        return Generator(self.settings, self.backend, self._tokenizer)

    def check_model(self, name: str) -> None:
        """Return when a model of that name is served.

        Raises:
            ApiError: 404.
        """
        if name not in self.settings.names:
            known = ", ".join(self.settings.names)
            raise ApiError(
                404, f"there is no model '{name[:64]}'; there is: {known}", code="model_not_found", param="model"
            )

    async def _list_models(self, _request: Request) -> Response:
        return _json({"object": "list", "data": [await self._model(name) for name in self.settings.names]})

    async def _show_model(self, request: Request) -> Response:
        self.check_model(request.path_params["name"])
        return _json(await self._model(request.path_params["name"]))

    async def _model(self, name: str) -> dict[str, Any]:
        model = {"id": name, "object": "model", "created": self._created, "owned_by": "trtbuild"}
        try:
            length = (await self.backend.abilities()).max_seq_len
        except ClientError:  # the names are known without the server
            length = None
        return model if length is None else {**model, "max_model_len": length}  # vLLM's name for it

    async def _show_live(self, _request: Request) -> Response:
        return _json({"status": "live"})

    async def _show_ready(self, request: Request) -> Response:
        reason = "the gateway is stopping" if self.gate.is_draining else ""
        if not reason:
            try:
                await self.backend.check_ready()
            except ClientError as error:
                answer, noted = from_client(error)
                reason = answer.message
                request.scope["exchange"].notes["error"] = noted
        return _json({"status": reason or "ready"}, status=503 if reason else 200)

    async def _show_metrics(self, _request: Request) -> Response:
        return Response(self.metrics.text(in_flight=self.gate.in_flight), headers={"content-type": CONTENT_TYPE})


class _Answers:
    """An endpoint that makes answers; an ASGI application, since it must see its caller go away.

    Args:
        read: makes an `Ask` of a body.
    """

    def __init__(self, gateway: Gateway, read: Callable[[Mapping[str, Any]], Ask], prefix: str) -> None:
        self._gateway = gateway
        self._read = read
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        settings = self._gateway.settings
        with self._gateway.gate.enter() as slot:
            body = await read_json(
                Headers(scope=scope), receive, limit_bytes=settings.max_body_bytes, limit_s=settings.body_timeout_s
            )
            work = self._answer(body, slot, scope["exchange"], send)
            await while_connected(receive, work, limit_s=settings.timeout_s)

    async def _answer(self, body: Mapping[str, Any], slot: Slot, exchange: Exchange, send: Send) -> None:
        ask = self._read(body)
        self._gateway.check_model(ask.model)
        slot.widen(ask.answers)
        generator = self._gateway.generator()
        choices = await generator.choices(ask, exchange.request_id)
        documents = Documents(
            id=self._prefix + uuid.uuid4().hex,
            created=int(time.time()),
            model=ask.model,
            is_chat=ask.is_chat,
            n=ask.n,
            wants_usage=ask.wants_usage,
        )
        async with aclosing(generator.events(choices)) as events:
            if ask.is_stream:
                answers = await self._stream(events, documents, exchange)
            else:
                answers = [event async for event in events if isinstance(event, Finished)]
        answers.sort(key=lambda answer: answer.index)
        self._count(documents.usage(answers), exchange)
        if ask.is_stream:
            last = sse.event(documents.usage_event(answers)) if ask.wants_usage else b""
            await exchange.send_part(last + sse.DONE, is_last=True)
        else:
            await _json(documents.whole(answers))({"type": "http"}, _never, exchange.send)

    async def _stream(
        self, events: AsyncGenerator[Piece | Finished, None], documents: Documents, exchange: Exchange
    ) -> list[Finished]:
        """Send events as they come. The head waits for the first, so that an error before it has its own status."""
        answers: list[Finished] = []
        opened: set[int] = set()
        async for event in events:
            if not exchange.is_stream:
                self._gateway.metrics.observe("first_token_seconds", exchange.passed_s(), endpoint=exchange.endpoint)
                await exchange.start_stream()
            data = b""
            if event.index not in opened:
                opened.add(event.index)
                opening = documents.opening(event.index)
                data = sse.event(opening) if opening is not None else b""
            if isinstance(event, Finished):
                answers.append(event)
                data += sse.event(documents.ending(event))
            else:
                data += sse.event(documents.piece(event))
            await exchange.send_part(data)
        return answers

    def _count(self, usage: Mapping[str, int] | None, exchange: Exchange) -> None:
        if usage is not None:
            for name in ("prompt_tokens", "completion_tokens"):
                exchange.notes[name] = usage[name]
                self._gateway.metrics.count(f"{name}_total", usage[name])


def _json(value: Any, *, status: int = 200) -> Response:
    return Response(sse.document(value), status, media_type="application/json")


async def _never() -> Any:
    raise AssertionError("a plain response receives nothing")


async def _http_error(_request: Request, error: Exception) -> Response:
    """Answer what the router refuses: unknown paths and methods."""
    assert isinstance(error, HTTPException)
    codes = {404: "not_found", 405: "method_not_allowed"}
    problem = ApiError(error.status_code, error.detail, code=codes.get(error.status_code, "http_error"))
    return Response(
        sse.document(problem.document()), error.status_code, dict(error.headers or {}), media_type="application/json"
    )
