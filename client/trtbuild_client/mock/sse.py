"""Answers over HTTP: Triton's generate and generate_stream, and OpenAI-like completions, whole or as server-sent events."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from trtbuild_client.mock.engine import Failure
from trtbuild_client.mock.http1 import HttpConnection
from trtbuild_client.mock.ledger import Entry
from trtbuild_client.mock.models import Model
from trtbuild_client.mock.replies import Output, Outputs
from trtbuild_client.mock.schedule import Piece

#: HTTP status by kind of error (tritonserver, src/http_server.cc), 400 for others.
HTTP_STATUS = {"INTERNAL": 500, "NOT_FOUND": 404, "UNAVAILABLE": 503, "UNIMPLEMENTED": 501, "UNAUTHENTICATED": 401}
_EVENT_STREAM = "text/event-stream"
_MANY = (
    "generate expects model to produce exactly 1 response, use generate stream for model to produce multiple responses"
)


class Format(Protocol):
    """How responses are put into JSON."""

    def events(self, piece: Piece, *, has_end: bool, entry: Entry) -> list[Any]:
        """Return the events of one response."""

    def ending(self, entry: Entry | None) -> list[Any]:
        """Return the events that say that the answer is complete; texts are sent as they are."""

    def whole(self, pieces: Sequence[Piece], entry: Entry | None) -> Any:
        """Return the answer as one document; `entry` is None for one without tokens."""

    def error(self, text: str, status: int) -> Any:
        """Return an error as one document."""


class StreamSink:
    """Sends an answer as server-sent events."""

    def __init__(self, connection: HttpConnection, form: Format) -> None:
        self._connection = connection
        self._form = form
        self._has_begun = False
        self._entry: Entry | None = None

    def send(self, pieces: Sequence[Piece], *, has_end: bool, entry: Entry) -> None:
        """Send responses that are due."""
        self._entry = entry
        self._begin()
        parts = []
        for number, piece in enumerate(pieces, 1):
            is_last = has_end and number == len(pieces)
            parts += [_event(each) for each in self._form.events(piece, has_end=is_last, entry=entry)]
        entry.sent_ns.extend([time.monotonic_ns()] * len(pieces))
        self._connection.chunk(*parts)

    def finish(self, *, times: int) -> None:
        """Say that the answer is complete, and end the body."""
        self._begin()
        for _ in range(times):
            for each in self._form.ending(self._entry):
                self._connection.chunk(_event(each))
        self._connection.end()

    def fail(self, failure: Failure) -> None:
        """Send the error: with its status while nothing was sent, as an event after that."""
        status = 200 if failure.is_200 else HTTP_STATUS.get(failure.status, 400)
        document = self._form.error(failure.text, status)
        if self._has_begun:
            self._connection.chunk(_event(document))
            self._connection.end()
        else:
            self._connection.answer_json(status, document)

    def garble(self) -> None:
        """Send an event that is cut in the middle, and glued to the next one."""
        self._begin()
        self._connection.chunk(b'data: {"text_output":"cdata: {"text_output":"d"}\n\n')
        self._connection.end()

    def reset(self, *, is_connection: bool) -> None:
        """Break the connection; streams within one do not exist here."""
        self._connection.drop()

    def _begin(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._connection.begin(_EVENT_STREAM)


class WholeSink:
    """Sends an answer as one document."""

    def __init__(self, connection: HttpConnection, form: Format) -> None:
        self._connection = connection
        self._form = form
        self._pieces: list[Piece] = []
        self._entry: Entry | None = None

    def send(self, pieces: Sequence[Piece], *, has_end: bool, entry: Entry) -> None:
        """Keep the responses."""
        entry.sent_ns.extend([time.monotonic_ns()] * len(pieces))
        self._pieces += pieces
        self._entry = entry

    def finish(self, *, times: int) -> None:
        """Send the document."""
        self._connection.answer_json(200, self._form.whole(self._pieces, self._entry))

    def fail(self, failure: Failure) -> None:
        """Send the error."""
        status = 200 if failure.is_200 else HTTP_STATUS.get(failure.status, 400)
        self._connection.answer_json(status, self._form.error(failure.text, status))

    def garble(self) -> None:
        """Send what is no JSON."""
        self._connection.answer(200, b'{"text_output": "cut o')

    def reset(self, *, is_connection: bool) -> None:
        """Break the connection."""
        self._connection.drop()


class TritonFormat:
    """Documents as Triton's generate endpoints write them."""

    def __init__(self, model: Model, outputs: Outputs, request_id: str) -> None:
        self._outputs = outputs
        self._head: dict[str, Any] = {"id": request_id} if request_id else {}
        self._head |= {"model_name": model.name, "model_version": "1"}
        if model.steps:
            self._head |= {"sequence_end": False, "sequence_id": 0, "sequence_start": False}

    def events(self, piece: Piece, *, has_end: bool, entry: Entry) -> list[Any]:
        """Return the event of one response."""
        return [self._document(self._outputs.of(piece, has_end=has_end, entry=entry))]

    def ending(self, entry: Entry | None) -> list[Any]:
        """Return nothing: the end of the body is the end."""
        return []

    def whole(self, pieces: Sequence[Piece], entry: Entry | None) -> Any:
        """Return the only response; none, or several, are an error with status 200."""
        if entry is None or len(pieces) != 1:
            return {"error": _MANY}
        return self._document(self._outputs.of(pieces[0], has_end=True, entry=entry))

    def error(self, text: str, status: int) -> Any:
        """Return an error."""
        return {"error": text}

    def _document(self, outputs: Sequence[Output]) -> Any:
        document = dict(self._head)
        for each in outputs:
            values = [v.decode("utf-8", "surrogateescape") if isinstance(v, bytes) else v for v in each.values]
            document[each.name] = values[0] if len(values) == 1 else values
        return document


class OpenAiFormat:
    """Documents as OpenAI's API has them, for chats and completions.

    Args:
        reasoning_tokens: this many first tokens of a chat come as `reasoning_content`.
        has_usage: whether a stream ends with an event of token counts.
    """

    def __init__(self, model: str, request_id: str, *, is_chat: bool, reasoning_tokens: int, has_usage: bool) -> None:
        self._is_chat = is_chat
        self._reasoning_tokens = reasoning_tokens
        self._has_usage = has_usage
        kind = "chat.completion" if is_chat else "text_completion"
        head = {"id": request_id, "created": int(time.time()), "model": model}
        self._whole = {**head, "object": kind}
        self._chunk = {**head, "object": f"{kind}.chunk" if is_chat else kind}
        self._parts: Callable[[Piece], dict[str, Any]] = self._delta if is_chat else self._text

    def events(self, piece: Piece, *, has_end: bool, entry: Entry) -> list[Any]:
        """Return the event of one response."""
        choice = {"index": 0, **self._parts(piece), "finish_reason": "length" if has_end else None}
        return [{**self._chunk, "choices": [choice]}]

    def ending(self, entry: Entry | None) -> list[Any]:
        """Return the counts if they are wanted, and [DONE]; before them the reason to finish, where there was no token to carry it."""
        if entry is None:
            part: dict[str, Any] = {"delta": {"role": "assistant", "content": ""}} if self._is_chat else {"text": ""}
            return [{**self._chunk, "choices": [{"index": 0, **part, "finish_reason": "stop"}]}, "[DONE]"]
        usage = [{**self._chunk, "choices": [], "usage": _usage(entry)}] if self._has_usage else []
        return [*usage, "[DONE]"]

    def whole(self, pieces: Sequence[Piece], entry: Entry | None) -> Any:
        """Return the answer."""
        text = _text(b"".join(piece.text for piece in pieces))
        choice: dict[str, Any] = (
            {"message": {"role": "assistant", "content": text}} if self._is_chat else {"text": text}
        )
        if entry is None:
            return {**self._whole, "choices": [{"index": 0, **choice, "finish_reason": "stop"}]}
        return {**self._whole, "choices": [{"index": 0, **choice, "finish_reason": "length"}], "usage": _usage(entry)}

    def error(self, text: str, status: int) -> Any:
        """Return an error."""
        return {"error": {"message": text, "type": "server_error", "code": status}}

    def _delta(self, piece: Piece) -> dict[str, Any]:
        field = "reasoning_content" if piece.first < self._reasoning_tokens else "content"
        role = {"role": "assistant"} if piece.first == 0 else {}
        return {"delta": {**role, field: _text(piece.text)}}

    @staticmethod
    def _text(piece: Piece) -> dict[str, Any]:
        return {"text": _text(piece.text)}


def _usage(entry: Entry) -> dict[str, int]:
    completion = sum(entry.tokens)
    return {
        "prompt_tokens": entry.input_tokens,
        "completion_tokens": completion,
        "total_tokens": entry.input_tokens + completion,
    }


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _event(document: Any) -> bytes:
    text = document if isinstance(document, str) else json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return b"data: " + text.encode("utf-8", "surrogateescape") + b"\n\n"
