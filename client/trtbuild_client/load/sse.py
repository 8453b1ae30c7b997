"""Answers over HTTP: OpenAI's chat and text completions, and Triton's generate and generate_stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from trtbuild_client.load.exchange import Exchange, Job
from trtbuild_client.load.http1 import MAX_BYTES, Events, Http1Error, Response
from trtbuild_client.load.outcomes import Mark, Outcome
from trtbuild_client.load.table import NONE

_DONE = b"[DONE]"
#: Of what came, at most so much is quoted.
_QUOTED_BYTES = 200


class HttpExchange(Exchange):
    """A request over HTTP/1.1; what an event means is said by subclasses.

    Attributes:
        is_read: the whole response has come: the connection is free.
    """

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

    def take_event(self, event: Any, now_ns: int) -> None:
        """Take one event of a stream, or the body of an answer that is not streamed."""
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
            self.end(Outcome.HTTP_STATUS, now_ns, f"HTTP status {status}: {_quote(body)}", status)
        elif not self._is_stream:
            self._take(body, now_ns)
            self.finish(now_ns)
        elif self._events.rest.strip():
            self.end(Outcome.TRUNCATED, now_ns, f"the stream ended within an event: {_quote(self._events.rest)}")
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
            # Triton writes the bytes of a text as they are, UTF-8 or not.
            text = raw.decode("utf-8", "surrogateescape")
            event = json.loads(text)
        except ValueError as error:
            self.end(Outcome.BAD_EVENT, now_ns, f"an event that is no JSON ({error}): {_quote(raw)}")
            return
        if not isinstance(event, dict):
            self.end(Outcome.BAD_EVENT, now_ns, f"an event that is no JSON object: {_quote(raw)}")
            return
        problem = event.get("error")
        if problem:
            said = problem.get("message", problem) if isinstance(problem, dict) else problem
            self.end(Outcome.ERROR_IN_200, now_ns, f"an error with HTTP status 200: {str(said)[:_QUOTED_BYTES]}")
            return
        self.take_event(event, now_ns)


class OpenAiExchange(HttpExchange):
    """A request to /v1/chat/completions or /v1/completions; which of them is seen from what each event holds."""

    __slots__ = ("_is_finished",)

    def __init__(
        self, job: Job, due_ns: int, on_end: Callable[[Exchange], None], on_late: Callable[[Exchange, Mark], None]
    ) -> None:
        super().__init__(job, due_ns, on_end, on_late)
        self._is_finished = False

    def take_event(self, event: Any, now_ns: int) -> None:
        """Take a chunk, or a whole completion."""
        text = reasoning = ""
        choices = event.get("choices") or []
        for choice in choices[:1]:
            part = choice.get("delta") or choice.get("message") or {}
            reasoning = part.get("reasoning_content") or part.get("reasoning") or ""
            text = part.get("content") or choice.get("text") or _calls(part)
            self._is_finished |= choice.get("finish_reason") is not None
        count = None
        usage = event.get("usage")
        if usage:
            total = usage.get("completion_tokens")
            if total is not None:
                self.output_tokens = total
                if choices:  # counted with every chunk
                    count = total - sum(self.event_tokens)
            _extras(usage, self.extras)
        if text or reasoning or count:
            self.arrived(now_ns, count, (reasoning + text).encode("utf-8", "surrogateescape"))
        if text and self.first_content_ns == NONE:
            self.first_content_ns = now_ns

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

    __slots__ = ()

    def take_event(self, event: Any, now_ns: int) -> None:
        """Take one response."""
        text = event.get("text_output")
        count = event.get("num_output_tokens")
        for name, column in _GENERATE_COLUMNS.items():
            if isinstance(event.get(name), int):
                self.extras[column] = event[name]
        raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else b""
        self.arrived(now_ns, count if isinstance(count, int) else None, raw)

    def stream_ended(self, now_ns: int) -> None:
        """End well."""
        self.finish(now_ns)


_GENERATE_COLUMNS = {
    "num_input_tokens": "input_tokens",
    "kv_cache_reused_blocks": "reused_blocks",
    "kv_cache_alloc_total_blocks": "total_blocks",
    "total_draft_tokens": "draft_tokens",
    "total_accepted_draft_tokens": "accepted_draft_tokens",
}


def _calls(part: Mapping[str, Any]) -> str:
    """Return the text of tool calls: tokens, too."""
    return "".join(str((each.get("function") or {}).get("arguments") or "") for each in part.get("tool_calls") or ())


def _extras(usage: Mapping[str, Any], extras: dict[str, int]) -> None:
    """Take what a usage object says of the prompt and of draft tokens (OpenAI's prediction tokens)."""
    if usage.get("prompt_tokens") is not None:
        extras["input_tokens"] = usage["prompt_tokens"]
    details = usage.get("completion_tokens_details") or {}
    accepted, rejected = details.get("accepted_prediction_tokens"), details.get("rejected_prediction_tokens")
    if accepted is not None:
        extras["accepted_draft_tokens"] = accepted
        if rejected is not None:
            extras["draft_tokens"] = accepted + rejected


def _quote(raw: bytes) -> str:
    return raw[:_QUOTED_BYTES].decode("utf-8", "replace")
