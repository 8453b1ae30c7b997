"""Answers over HTTP: OpenAI's chat and text completions, and Triton's generate and generate_stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from trtbuild_client.counts import count
from trtbuild_client.errors import ServerError
from trtbuild_client.load.exchange import Exchange, Job
from trtbuild_client.load.http1 import MAX_BYTES, Events, Http1Error, Response
from trtbuild_client.load.json_answers import (
    Completion,
    Generated,
    Part,
    Reader,
    Usage,
    error_text,
    quoted,
)
from trtbuild_client.load.outcomes import Mark, Outcome
from trtbuild_client.load.table import NONE
from trtbuild_client.text import encoded

_DONE = b"[DONE]"


class HttpExchange(Exchange):
    """A request over HTTP/1.1; what an event means is said by subclasses.

    Attributes:
        is_read: the whole response has come: the connection is free.
    """

    #: Of one event, or of the whole body.
    READER: ClassVar[Reader[Any]]

    __slots__ = ("_body", "_body_bytes", "_events", "_is_stream", "_response", "is_read", "on_late")

    def __init__(
        self, job: Job, due_ns: int, on_end: Callable[[Exchange], None], on_late: Callable[[Exchange, Mark], None]
    ) -> None:
        super().__init__(job, due_ns, on_end)
        self.on_late = on_late
        self.is_read = False
        self._response = Response()
        self._events = Events()
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._is_stream = False

    @property
    def keeps_connection(self) -> bool:
        """Whether another request may follow on the connection."""
        return self._response.keeps_connection

    def receive(self, data: bytes, now_ns: int) -> None:
        """Take a part of the response."""
        response = self._response
        had_head = response.status
        try:
            body = response.feed(data)
            if not had_head and response.status == 200:
                self._is_stream = "event-stream" in response.headers.get("content-type", "")
            if body:
                if self._is_stream:
                    for event in self._events.feed(body):
                        self._take(event, now_ns)
                else:
                    self._keep(body)
        except Http1Error as error:
            self.end(Outcome.PROTOCOL_ERROR, now_ns, str(error))
            response.keeps_connection, self.is_read = False, True
            return
        if response.is_complete:
            self._complete(now_ns)

    def lost(self, now_ns: int, text: str, outcome: Outcome) -> None:
        """Take the end of the connection."""
        self.is_read = True
        if self._response.ends_with_connection and outcome is Outcome.CONNECTION_LOST and "broke" not in text:
            self._complete(now_ns)
        self.end(outcome, now_ns, text)

    def take_event(self, event: Any, raw: bytes, now_ns: int) -> None:
        """Take one event of a stream, or the body of an answer that is not streamed: as `READER` gives it, and as it came.

        Raises:
            ServerError: it is none of this API.
        """
        raise NotImplementedError

    def stream_ended(self, now_ns: int) -> None:
        """Take the end of a stream of events."""
        raise NotImplementedError

    def _keep(self, body: bytes) -> None:
        self._body.append(body)
        self._body_bytes += len(body)
        if self._body_bytes > MAX_BYTES:
            raise Http1Error(f"a body of more than {MAX_BYTES} bytes")

    def _complete(self, now_ns: int) -> None:
        self.is_read = True
        status = self._response.status
        body = b"".join(self._body)
        if status != 200:
            self.end(Outcome.HTTP_STATUS, now_ns, f"HTTP status {status}: {quoted(body)}", status)
        elif not self._is_stream:
            self._take(body, now_ns)
            self.finish(now_ns)
        elif self._events.rest.strip():
            self.end(Outcome.TRUNCATED, now_ns, f"the stream ended within an event: {quoted(self._events.rest)}")
        else:
            self.stream_ended(now_ns)

    def _take(self, raw: bytes, now_ns: int) -> None:
        if raw == _DONE:
            if self.outcome is Outcome.OK:
                self.on_late(self, Mark.DUPLICATE_FINAL)
            self.finish(now_ns)
            return
        if self.outcome is not None:
            if self.outcome is Outcome.OK:
                self.on_late(self, Mark.LATE_DATA)
            return
        try:
            event = self.READER.read(raw)
            if event.error:
                self._refused(event.error, event.code, raw, now_ns)
            else:
                self.take_event(event, raw, now_ns)
        except ServerError as error:
            self.end(Outcome.BAD_EVENT, now_ns, error.message)

    def _refused(self, said: Any, code: Any, raw: bytes, now_ns: int) -> None:
        self.end(Outcome.ERROR_IN_200, now_ns, f"an error with HTTP status 200: {error_text(said, code, raw)}")


class OpenAiExchange(HttpExchange):
    """A request to /v1/chat/completions or /v1/completions; which of them is seen from what each event holds."""

    READER = Reader(Completion)

    __slots__ = ("_is_finished",)

    def __init__(
        self, job: Job, due_ns: int, on_end: Callable[[Exchange], None], on_late: Callable[[Exchange, Mark], None]
    ) -> None:
        super().__init__(job, due_ns, on_end, on_late)
        self._is_finished = False

    def take_event(self, event: Completion, raw: bytes, now_ns: int) -> None:
        """Take a chunk, or a whole completion."""
        text = reasoning = ""
        choices = event.choices
        if choices:
            choice = choices[0]
            part = choice.delta or choice.message
            text = choice.text or ""
            if part is not None:
                reasoning = part.reasoning_content or part.reasoning or ""
                text = part.content or text or _calls(part)
            self._is_finished |= choice.finish_reason is not None
        elif event.object == "error" or (choices is None and event.message is not None):
            self._refused(event.message, event.code, raw, now_ns)
            return
        tokens = None
        usage = event.usage
        if usage is not None:
            total = usage.completion_tokens
            if total is not None:
                self.output_tokens = total
                if choices:  # counted with every chunk
                    tokens = total - sum(self.event_tokens)
            _take_extras(usage, self.extras)
        if text or reasoning or tokens:
            self.arrived(now_ns, tokens, encoded(reasoning + text))
        if text and self.first_content_ns == NONE:
            self.first_content_ns = now_ns

    def finish(self, now_ns: int) -> None:
        """End well, if there was an answer at all: text, tokens in a choice, or a reason to finish without any."""
        if self._is_finished or self.text or self.event_ns:
            super().finish(now_ns)
        else:
            self.end(Outcome.BAD_EVENT, now_ns, "an answer without text or reason to finish")

    def stream_ended(self, now_ns: int) -> None:
        """Take the end of the body where [DONE] should have been before."""
        if self.outcome is None:
            if self._is_finished:
                self.marks |= Mark.MISSING_FINAL
                self.finish(now_ns)
            else:
                self.end(Outcome.TRUNCATED, now_ns, "the stream ended without [DONE] or a reason to finish")


class GenerateExchange(HttpExchange):
    """A request to Triton's generate or generate_stream; the end of the body is the end of the answer."""

    READER = Reader(Generated)

    __slots__ = ("_has_output", "_is_odd")

    def __init__(
        self, job: Job, due_ns: int, on_end: Callable[[Exchange], None], on_late: Callable[[Exchange, Mark], None]
    ) -> None:
        super().__init__(job, due_ns, on_end, on_late)
        self._has_output = False
        self._is_odd = False

    def take_event(self, event: Generated, raw: bytes, now_ns: int) -> None:
        """Take one response."""
        text, said = event.text_output, event.num_output_tokens
        tokens = count("num_output_tokens", said) if isinstance(said, str) else said
        if text is None and tokens is None:
            self._is_odd = True
        else:
            self._has_output = True
        for name, column in _GENERATE_COLUMNS:
            value = getattr(event, name)
            if value is None:
                continue
            if not isinstance(value, str):
                self.extras[column] = value
            elif value.isdigit():  # else "None": not measured
                self.extras[column] = count(name, value)
        if isinstance(text, list):  # one text for each beam
            text = text[0] if text else ""
        self.arrived(now_ns, tokens, encoded(text) if text else b"")

    def finish(self, now_ns: int) -> None:
        """End well, unless all that came was something else; a stream without any event is an answer without tokens."""
        if self._is_odd and not self._has_output:
            self.end(Outcome.BAD_EVENT, now_ns, "an answer without text_output or num_output_tokens")
        else:
            super().finish(now_ns)

    def stream_ended(self, now_ns: int) -> None:
        """End well."""
        self.finish(now_ns)


_GENERATE_COLUMNS = (
    ("num_input_tokens", "input_tokens"),
    ("kv_cache_reused_blocks", "reused_blocks"),
    ("kv_cache_alloc_total_blocks", "total_blocks"),
    ("total_draft_tokens", "draft_tokens"),
    ("total_accepted_draft_tokens", "accepted_draft_tokens"),
)


def _calls(part: Part) -> str:
    """Return the text of tool calls: tokens, too."""
    functions = (call.function for call in part.tool_calls or ())
    return "".join(each.arguments for each in functions if each is not None and each.arguments)


def _take_extras(usage: Usage, extras: dict[str, int]) -> None:
    """Take what a usage object says of the prompt and of draft tokens (OpenAI's prediction tokens)."""
    if usage.prompt_tokens is not None:
        extras["input_tokens"] = usage.prompt_tokens
    details = usage.completion_tokens_details
    if details is None or details.accepted_prediction_tokens is None:
        return
    extras["accepted_draft_tokens"] = details.accepted_prediction_tokens
    if details.rejected_prediction_tokens is not None:
        drafted = details.accepted_prediction_tokens + details.rejected_prediction_tokens
        extras["draft_tokens"] = count("usage.completion_tokens_details (accepted and rejected)", drafted)
