"""What the HTTP endpoint answers: Triton's v2 protocol with generate, OpenAI's paths, metrics, and the mock's own."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from google.protobuf.json_format import MessageToDict

from trtbuild_client.errors import InvalidRequest
from trtbuild_client.mock import faults, grpc_messages, replies
from trtbuild_client.mock.engine import Engine, Job, Sink
from trtbuild_client.mock.grpc_service import EXTENSIONS
from trtbuild_client.mock.http1 import HttpConnection, HttpRequest
from trtbuild_client.mock.metrics import text as metrics_text
from trtbuild_client.mock.models import Model
from trtbuild_client.mock.sse import Format, OpenAiFormat, StreamSink, TritonFormat, WholeSink
from trtbuild_client.wire import TensorSpec

_METRICS_TYPE = "text/plain; version=0.0.4"
_MODEL = r"/v2/models/(?P<model>[^/]+)(?:/versions/[^/]+)?"
_OPENAI_MAX_TOKENS = 16
_Answer = Callable[..., Awaitable[None]]


class _HttpError(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Routes:
    """The HTTP side of a mock.

    Args:
        models: by name.
    """

    def __init__(self, engine: Engine, models: dict[str, Model]) -> None:
        self._engine = engine
        self._models = models
        table: tuple[tuple[str, str, _Answer], ...] = (
            ("GET", r"/v2/health/live", self._live),
            ("GET", r"/v2/health/ready", self._ready),
            ("GET", r"/health", self._ready),
            ("GET", r"/v2/?", self._server),
            ("GET", _MODEL, self._metadata),
            ("GET", _MODEL + "/ready", self._model_ready),
            ("GET", _MODEL + "/config", self._config),
            ("GET", _MODEL + "/stats", self._stats),
            ("GET", r"/v2/models/stats", self._stats),
            ("POST", r"/v2/repository/index", self._index),
            ("POST", _MODEL + "/generate", self._generate),
            ("POST", _MODEL + "/generate_stream", self._generate),
            ("GET", r"/v1/models", self._openai_models),
            ("POST", r"/v1/(?P<kind>chat/completions|completions)", self._openai),
            ("GET", r"/metrics", self._metrics),
            ("GET", r"/mock/schedule", self._schedule),
            ("POST", r"/mock/reset", self._reset),
        )
        # /v2/models/stats must not be taken for a model of that name.
        self._table = [
            (method, re.compile(path), answer)
            for method, path, answer in sorted(table, key=lambda row: "(?P" in row[1])
        ]

    async def serve(self, request: HttpRequest, connection: HttpConnection) -> None:
        """Answer one request."""
        path = request.path.partition("?")[0]
        token = self._engine.options.token
        found = [
            (method, match, answer) for method, pattern, answer in self._table if (match := pattern.fullmatch(path))
        ]
        try:
            if token is not None and request.headers.get("authorization") != f"Bearer {token}":
                raise _HttpError(401, "invalid or missing bearer token")
            if not found:
                raise _HttpError(404, f"the mock has no {path}")
            for method, match, answer in found:
                if method == request.method:
                    await answer(request, connection, **match.groupdict())
                    return
            raise _HttpError(405, f"{path} cannot be asked with {request.method}")
        except _HttpError as error:
            connection.answer_json(error.status, {"error": error.text})

    def _model(self, name: str) -> Model:
        if name not in self._models:
            raise _HttpError(404, f"Request for unknown model: '{name}' is not found")
        if not self._engine.is_ready:
            raise _HttpError(400, f"Request for unknown model: '{name}' has no available versions")
        return self._models[name]

    async def _live(self, request: HttpRequest, connection: HttpConnection) -> None:
        connection.answer(200, b"", "text/plain")

    async def _ready(self, request: HttpRequest, connection: HttpConnection) -> None:
        connection.answer(200 if self._engine.is_ready else 400, b"", "text/plain")

    async def _server(self, request: HttpRequest, connection: HttpConnection) -> None:
        connection.answer_json(200, {"name": "trtbuild-mock", "version": "2.51.0", "extensions": EXTENSIONS})

    async def _metadata(self, request: HttpRequest, connection: HttpConnection, model: str) -> None:
        document = MessageToDict(grpc_messages.metadata(self._model(model)), preserving_proto_field_name=True)
        for tensor in (*document.get("inputs", ()), *document.get("outputs", ())):
            tensor["shape"] = [int(size) for size in tensor["shape"]]
        connection.answer_json(200, document)

    async def _model_ready(self, request: HttpRequest, connection: HttpConnection, model: str) -> None:
        connection.answer(200 if model in self._models and self._engine.is_ready else 400, b"", "text/plain")

    async def _config(self, request: HttpRequest, connection: HttpConnection, model: str) -> None:
        config = MessageToDict(grpc_messages.config(self._model(model)), preserving_proto_field_name=True)["config"]
        config.setdefault("max_batch_size", 0)
        connection.answer_json(200, config)

    async def _stats(self, request: HttpRequest, connection: HttpConnection, model: str | None = None) -> None:
        names = list(self._models) if model is None else [self._model(model).name]
        connection.answer_json(200, grpc_messages.statistics_json(names, self._engine.counters))

    async def _index(self, request: HttpRequest, connection: HttpConnection) -> None:
        state = "READY" if self._engine.is_ready else "LOADING"
        connection.answer_json(200, [{"name": name, "version": "1", "state": state} for name in self._models])

    async def _metrics(self, request: HttpRequest, connection: HttpConnection) -> None:
        connection.answer(200, metrics_text(self._engine, self._models).encode(), _METRICS_TYPE)

    async def _schedule(self, request: HttpRequest, connection: HttpConnection) -> None:
        connection.answer_json(200, self._engine.ledger.to_json())

    async def _reset(self, request: HttpRequest, connection: HttpConnection) -> None:
        self._engine.clear()
        connection.answer_json(200, {})

    async def _generate(self, request: HttpRequest, connection: HttpConnection, model: str) -> None:
        body, described = _json(request, 500), self._model(model)
        if not described.is_served:
            raise _HttpError(503, f"the mock only describes model '{model}'")
        body |= body.pop("parameters", None) or {}
        request_id = str(body.get("id", ""))
        values = {name: _elements(name, body[name], spec) for name, spec in described.inputs.items() if name in body}
        missing = [name for name, spec in described.inputs.items() if not spec.is_optional and name not in values]
        if missing:
            raise _HttpError(400, f"missing required input(s) {missing} for model '{model}'")
        protocol = request.path.rpartition("/")[2]
        if values.get("stop", (False,))[0]:  # answered by the final flag alone, which HTTP does not show
            self._engine.stop(request_id)
            sink = (StreamSink if protocol == "generate_stream" else WholeSink)(
                connection, TritonFormat(described, replies.Outputs(described, values), request_id)
            )
            sink.finish(times=1)
            return
        timeout_us = body.get("timeout")
        try:
            job = replies.job(
                described, values, request_id=request_id, protocol=protocol,
                timeout_ns=timeout_us * 1000 if isinstance(timeout_us, int) else None,
            )  # fmt: skip
        except InvalidRequest as error:
            raise _HttpError(400, error.message) from error
        form = TritonFormat(described, replies.Outputs(described, values), request_id)
        await self._work(job, connection, form, is_stream=protocol == "generate_stream")

    async def _openai_models(self, request: HttpRequest, connection: HttpConnection) -> None:
        if not self._engine.is_ready:
            raise _HttpError(503, "The model is loading.")
        length = self._engine.options.max_seq_len
        said = {} if length is None else {"max_model_len": length}
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "mock", **said} for name in self._served()]
        connection.answer_json(200, {"object": "list", "data": data})

    async def _openai(self, request: HttpRequest, connection: HttpConnection, kind: str) -> None:
        body = _json(request, 400)
        model, is_chat = body.get("model", ""), kind == "chat/completions"
        if not self._engine.is_ready:
            raise _HttpError(503, "The model is loading.")
        if model not in self._served():
            raise _HttpError(404, f"The model `{model}` does not exist.")
        try:
            prompt = _chat(body["messages"]) if is_chat else body["prompt"]
            prompt = prompt if isinstance(prompt, str) else prompt[0]
        except (KeyError, IndexError, TypeError) as error:
            raise _HttpError(400, "messages (or prompt) are missing, or not what they should be") from error
        asked = faults.directives(prompt)
        max_tokens = body.get("max_completion_tokens") or body.get("max_tokens") or _OPENAI_MAX_TOKENS
        is_stream = bool(body.get("stream"))
        job = Job(
            request_id=request.headers.get("x-request-id") or f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}",
            model=model,
            protocol="openai",
            prompt=prompt,
            max_tokens=int(max_tokens),
            input_tokens=max(len(prompt.split()), 1),
            is_streaming=is_stream,
        )
        form = OpenAiFormat(
            model,
            job.request_id,
            is_chat=is_chat,
            reasoning_tokens=int(asked.get("reasoning", 0)),
            has_usage=bool((body.get("stream_options") or {}).get("include_usage")),
        )
        await self._work(job, connection, form, is_stream=is_stream)

    async def _work(self, job: Job, connection: HttpConnection, form: Format, *, is_stream: bool) -> None:
        sink: Sink = StreamSink(connection, form) if is_stream else WholeSink(connection, form)
        task = self._engine.start(job, sink)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            task.cancel()
            raise

    def _served(self) -> list[str]:
        return [name for name, model in self._models.items() if model.is_served]


def _json(request: HttpRequest, status: int) -> dict[str, Any]:
    try:
        body = json.loads(request.body)
    except ValueError as error:
        raise _HttpError(status, f"failed to parse the request JSON buffer: {error}") from error
    if not isinstance(body, dict):
        raise _HttpError(status, "the request is no JSON object")
    return body


def _elements(name: str, value: Any, spec: TensorSpec) -> Sequence[Any]:
    """Return the elements of an input, under the rules of Triton's generate endpoint."""
    elements = value if isinstance(value, list) else [value]
    kind: type | tuple[type, ...] = {"BYTES": str, "BOOL": bool}.get(spec.dtype, int)
    if spec.dtype.startswith("FP"):
        kind = (int, float)
    if not all(isinstance(each, kind) and (spec.dtype == "BOOL" or not isinstance(each, bool)) for each in elements):
        raise _HttpError(
            500, f"Unable to parse 'data': attempt to access JSON of another type as {spec.dtype} for '{name}'"
        )
    return [each.encode("utf-8", "surrogatepass") for each in elements] if spec.dtype == "BYTES" else elements


def _chat(messages: Sequence[Any]) -> str:
    return "\n".join(f"{each['role']}: {each['content']}" for each in messages)
